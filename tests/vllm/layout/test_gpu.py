# SPDX-License-Identifier: Apache-2.0
"""python -m kvferry.vllm.layout --gpu: recorded cases of GPUs, by vLLM's own code where no GPU is.

The library derives these cases (tests/vectors); here the installed vLLM does it again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_models import HERE, SOURCE, check_equal, parse_all, run

from kvferry.model import derive

VECTORS = SOURCE / "tests" / "vectors"
#: What the recorded configs leave out, since no cache hangs on it, and vLLM's modules need.
LEFT_OUT = json.loads(Path(__file__).with_name("left_out.json").read_text())

ARGUMENTS = {
    "tp_size": "--tensor-parallel-size",
    "pp_size": "--pipeline-parallel-size",
    "backend": "--attention-backend",
    "kv_dtype": "--kv-cache-dtype",
    "state_dtype": "--mamba-ssm-cache-dtype",
    "block_size": "--block-size",
}


def recorded():
    """Cases of a GPU, each stage's other cases left out."""
    for case in json.loads((VECTORS / "vllm-0.32.json").read_text()):
        options = case["options"]
        platform = options.get("platform", "sm90")
        if "groups" in case and platform != "cpu" and not options.get("pp_rank"):
            yield case


def arguments(case, folder):
    """vllm serve's options for a case, and its environment."""
    options, given, environment = dict(case["options"]), [], {"VLLM_KV_CACHE_LAYOUT": case["order"]}
    for name in ("pp_rank", "platform", "memory_order"):
        options.pop(name, None)
    for name, option in ARGUMENTS.items():
        if name in options:
            given += [option, str(options.pop(name))]
    if options.pop("mamba_mode", "align") == "none":
        given += ["--no-enable-prefix-caching"]
    drafts = options.pop("mtp_layers", 0)
    tokens = options.pop("speculative_tokens", drafts)
    if tokens:
        given += ["--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": tokens})]
    if "conv_layout" in options:
        environment["VLLM_SSM_CONV_STATE_LAYOUT"] = options.pop("conv_layout")
    if "indexer_dtype" in options:
        given += ["--attention-config", json.dumps({"indexer_kv_dtype": options.pop("indexer_dtype")})]
    given += ["--max-model-len", str(options.pop("max_model_len", 8192))]
    assert not options, options
    given += ["--gpu", case["options"].get("platform", "sm90"), "--model", str(folder), "--enforce-eager"]
    return {"arguments": [*given, "--num-gpu-blocks-override", str(case["blocks"])], "environment": environment}


def model_folder(config, root):
    folder = root / Path(config).stem
    if not folder.exists():
        folder.mkdir()
        content = json.loads((VECTORS / "configs" / config).read_text())
        (folder / "config.json").write_text(json.dumps(merged(content, LEFT_OUT.get(config, {}))))
    return folder


def merged(content, more):
    """Two configs, one inside the other's gaps."""
    both = {key: merged(content[key], value) for key, value in more.items() if isinstance(content.get(key), dict)}
    return {**more, **content, **both}


CASES = list(recorded())
if os.environ.get("KVFERRY_VLLM_ALL") != "1":  # each kind of GPU is a process of half a minute: one with FlashInfer
    CASES = [case for case in CASES[::4] if case["options"].get("platform") not in ("sm90-fi", "sm120-fi")]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """By case, the documents. Those of one GPU and order of convolutions share a process: vLLM asks once."""
    found, root = {}, tmp_path_factory.mktemp("models")
    for kind in sorted({kind_of(case) for case in CASES}):
        cases = [case for case in CASES if kind_of(case) == kind]
        jobs = [arguments(case, model_folder(case["config"], root)) for case in cases]
        output = run("many", json.dumps(jobs), PYTHONPATH=HERE)
        found.update(zip((case["name"] for case in cases), output.split("--\n"), strict=False))
    return found


def kind_of(case):
    return case["options"].get("platform", "sm90"), case["options"].get("conv_layout", "")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_as_recorded(case, printed):
    layouts = parse_all(printed[case["name"]])
    options = {name: value for name, value in case["options"].items() if name != "pp_rank"}
    config = (VECTORS / "configs" / case["config"]).read_text()
    assert len(layouts) == options.get("tp_size", 1) * options.get("pp_size", 1)
    for layout in layouts:
        worker = layout.worker
        options.update(tp_rank=worker.tp_rank, pp_rank=worker.pp_rank, memory_order=case["order"])
        check_equal(layout, derive(config, **options, blocks=case["blocks"]))


def test_without_eager(tmp_path):
    """A server that compiles and captures graphs has the same caches: nothing of that is needed here."""
    case = next(case for case in recorded() if case["config"] == "llama31-8b.json")
    given = arguments(case, model_folder(case["config"], tmp_path))["arguments"]
    given.remove("--enforce-eager")
    process = subprocess.run(
        [sys.executable, "-m", "kvferry.vllm.layout", *given],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_KV_CACHE_LAYOUT": case["order"]},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    assert "stubbed: compiling the model" in process.stderr
    options = {name: value for name, value in case["options"].items() if name != "pp_rank"}
    config = (VECTORS / "configs" / case["config"]).read_text()
    for layout in parse_all(process.stdout):
        options.update(tp_rank=layout.worker.tp_rank, pp_rank=layout.worker.pp_rank, memory_order=case["order"])
        check_equal(layout, derive(config, **options, blocks=case["blocks"]))
