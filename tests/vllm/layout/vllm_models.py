# SPDX-License-Identifier: Apache-2.0
"""The small models, the options that they are served with, and what the library derives for them."""

import os
import subprocess
import sys
from pathlib import Path

import kvferry
from kvferry.model import derive

SOURCE = Path(os.environ["KVFERRY_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "python"))
from same import check_equal  # noqa: E402

#: Where modules of these tests are found by those that they start.
HERE = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
MODELS = Path(os.environ.get("KVFERRY_VLLM_MODELS", SOURCE / "tests" / "vllm" / "models"))
OPTIONS = ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "2048", "--num-gpu-blocks-override", "1024"]
BLOCKS = 1024


def has(flag):
    return flag in Path("/proc/cpuinfo").read_text().split()


#: What vLLM calls this machine's order of attention pages, and its default order of convolutions.
PLATFORM = "cpu-amx" if has("amx_tile") else "cpu"


def run(module, *arguments, **environment):
    """A module in this interpreter; its stdout. It fails with all that it said."""
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def served(model, topology):
    """vllm serve's options for a model and a topology like "tp2pp2"."""
    sizes = {"tp": 1, "pp": 1}
    for part in topology.replace("pp", " pp").replace("tp", " tp").split():
        sizes[part[:2]] = int(part[2:])
    return ["--model", str(MODELS / model), *OPTIONS, "-tp", str(sizes["tp"]), "-pp", str(sizes["pp"])]


def blocks_of(layout):
    """As groups with layers of this stage have them."""
    return max(group.blocks for group in layout.groups)


def derived(model, layout, **options):
    """What the library derives for the worker of a document."""
    worker = layout.worker
    return derive(
        (MODELS / model / "config.json").read_text(),
        platform=PLATFORM,
        tp_size=worker.tp_size,
        tp_rank=worker.tp_rank,
        pp_size=worker.pp_size,
        pp_rank=worker.pp_rank,
        blocks=blocks_of(layout),
        **options,
    )


def check(model, layouts, topology, **options):
    """Every worker of the topology is there, and is as the library derives it."""
    arguments = served(model, topology)
    tp_size, pp_size = int(arguments[-3]), int(arguments[-1])
    ranks = {(one.worker.pp_rank, one.worker.tp_rank) for one in layouts}
    assert ranks == {(pp, tp) for pp in range(pp_size) for tp in range(tp_size)}
    for layout in layouts:
        assert blocks_of(layout) == BLOCKS
        check_equal(layout, derived(model, layout, **options))


def parse_all(text):
    return [kvferry.Layout.parse(line) for line in text.splitlines()]
