# SPDX-License-Identifier: Apache-2.0
"""Starts vLLM's engine, with the recorder as its connector if none is given, and ends it: vllm serve's options."""

import os

from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main():
    from vllm.v1.engine.llm_engine import LLMEngine

    given = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args()
    given.skip_tokenizer_init = True
    given.load_format = "dummy"
    given.kv_transfer_config = given.kv_transfer_config or {
        "kv_connector": "LayoutRecorder",
        "kv_connector_module_path": "recorder",
        "kv_role": "kv_both",
    }
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(given))
    print("started", os.getpid())
    engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
