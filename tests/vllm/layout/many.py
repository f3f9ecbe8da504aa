# SPDX-License-Identifier: Apache-2.0
"""python -m kvferry.vllm.layout several times in one process: python -m many, a JSON list of argument lists."""

import json
import sys

from kvferry.vllm._offline import main

for arguments in json.loads(sys.argv[1]):
    status = main(arguments)
    if status:
        sys.exit(f"status {status} of {arguments}")
    print("--", flush=True)
