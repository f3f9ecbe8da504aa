# SPDX-License-Identifier: Apache-2.0
"""What is run: the models, the connectors, and which topologies meet."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from server import Topology

HERE = Path(__file__).resolve().parent


#: What servers take: each worker, and both servers' other processes together.
GIB_OF_A_WORKER, GIB_BESIDE_WORKERS = 1, 6


def cpu_has(*flags: str) -> bool:
    """One of these."""
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), flags=re.M)
    return not set(found[1].split()).isdisjoint(flags)


@dataclass(frozen=True)
class Model:
    name: str
    #: Its folder under models/; or, if it is made, under the folder for what is made.
    folder: str
    #: Whether it was trained to answer recall.py's questions. Otherwise its weights are random.
    trained: bool
    #: Lengths of prompts that it was trained for, or that reach into each of its caches.
    shortest: int
    longest: int
    arguments: tuple[str, ...]
    #: What the connector's test hook can take away (README.md), each of which has to show.
    damages: tuple[str, ...]
    #: Of windows: where all caches have a block's end, and how far a loaded prompt may go on behind it so that the
    #: blocks before it are found again. The further, the less of them it reads itself.
    common_block: int = 1
    ahead: int = 0
    #: How many requests a check has: all, and where a few are enough. Large models are slow.
    many: int = 40
    few: int = 10
    embeddings: bool = False
    #: One of these the CPU has to have.
    cpu: tuple[str, ...] = ()
    #: Of models that are made: the program under models/ that makes it, and the folder that it makes it from.
    maker: str = ""
    source: str = ""

    def path(self, made: Path) -> Path:
        """Where it is; made: the folder for what is made."""
        return (made if self.maker else HERE / "models") / self.folder

    def lacks(self) -> str:
        """Why this machine cannot run it; empty if it can."""
        return "" if not self.cpu or cpu_has(*self.cpu) else f"the CPU has neither {' nor '.join(self.cpu)}"


# Caches are small, so that new requests soon get the blocks of earlier ones.
LLAMA = Model(
    "Llama",
    "llama-recall",
    True,
    100,
    900,
    (
        "--max-model-len",
        "1024",
        "--max-num-batched-tokens",
        "256",
        "--num-gpu-blocks-override",
        "160",
        "--enable-prompt-embeds",
    ),
    damages=("heads",),
    embeddings=True,
)
QWEN = Model(
    "Qwen3.5",
    "qwen35-recall",
    True,
    100,
    1400,
    (
        "--max-model-len",
        "1536",
        "--max-num-batched-tokens",
        "768",
        "--num-gpu-blocks-override",
        "160",
        "--enable-prompt-embeds",
    ),
    damages=("conv", "ssm", "heads"),
    embeddings=True,
    cpu=("avx512_bf16", "amx_bf16"),
)
#: The same with a draft layer. vLLM's drafts need the ids of a prompt. With them it gives up the last block of a prefix
#: that it finds, and by default keeps the state before that one only, which a decode server never has.
MTP = replace(
    QWEN,
    name="Qwen3.5 MTP",
    folder="qwen35-mtp",
    arguments=(
        *(one for one in QWEN.arguments if one != "--enable-prompt-embeds"),
        "--prefix-cache-retention-interval",
        "None",
    ),
    embeddings=False,
    maker="make_qwen35_mtp.py",
    source="qwen35-recall",
)
DEEPSEEK = Model(
    "DeepSeek-V4",
    "deepseek-v4",
    False,
    5,
    900,
    ("--max-model-len", "2048", "--max-num-batched-tokens", "512", "--num-gpu-blocks-override", "4000"),
    damages=("window", "latent", "index", "compressor"),
    # Of the fastest compressor, whose window is 8 and blocks are of 4, only what the next token reads is loaded.
    common_block=256,
    ahead=3,
    many=16,
    few=6,
    cpu=("avx512_bf16", "amx_bf16"),
    maker="make_deepseek_v4.py",
    source="deepseek-v4",
)
GEMMA = Model(
    "Gemma-3",
    "gemma3",
    False,
    5,
    900,
    ("--max-model-len", "1152", "--max-num-batched-tokens", "256", "--num-gpu-blocks-override", "800"),
    damages=("window heads", "full heads"),
    # The window, of 128 tokens, reads the last one of the block before.
    common_block=128,
    ahead=127,
    maker="make_gemma3.py",
    source="gemma3",
)


@dataclass(frozen=True)
class Pair:
    """Two servers of a model."""

    model: Model
    prefill: Topology
    decode: Topology
    #: What either server has beside its topology, and what the two are called for it.
    prefill_environment: dict[str, str] = field(default_factory=dict)
    decode_environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    prefill_arguments: tuple[str, ...] = ()
    decode_arguments: tuple[str, ...] = ()
    #: The prefill server does not hold all of the blocks that windows begin in at the decode server.
    in_part: bool = False
    #: How many tokens both draft a step.
    drafts: int = 0
    label: str = ""
    #: What it is run with where nothing else is asked for.
    connector: str = "kvferry"

    def __str__(self) -> str:
        return f"{self.model.name} {self.prefill} to {self.decode}" + (f", {self.label}" if self.label else "")

    def lacks(self) -> str:
        """Why this machine cannot run it; empty if it can."""
        needed = GIB_BESIDE_WORKERS + GIB_OF_A_WORKER * sum(side.tp * side.pp for side in (self.prefill, self.decode))
        memory = int(re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.M)[1]) / 2**20
        if memory < needed:
            return f"it needs {needed} GiB of memory, and there are {memory:.0f}"
        return self.model.lacks()

    @property
    def drifts(self) -> bool:
        """The two sides' answers drift apart: their numbers differ a little, and the model is sure of nothing. With AMX
        they hang on how many tokens are computed at once, too, so that one server contradicts itself."""
        return not self.model.trained and (self.prefill != self.decode or cpu_has("amx_bf16"))


def pair(model: Model, prefill: str, decode: str, **more: Any) -> Pair:
    return Pair(model, Topology.parse(prefill), Topology.parse(decode), **more)


def conv(prefill: str, decode: str) -> dict[str, Any]:
    """Which layouts of the convolution state the sides have."""
    name = "VLLM_SSM_CONV_STATE_LAYOUT"
    return {
        "prefill_environment": {name: prefill},
        "decode_environment": {name: decode},
        "label": f"conv {prefill}" + (f" to {decode}" if prefill != decode else ""),
    }


#: In every run of make test-vllm.
USUAL = [
    pair(LLAMA, "tp2", "tp1"),
    pair(QWEN, "pp2tp2", "tp4"),
    pair(QWEN, "tp1", "tp2"),
    pair(DEEPSEEK, "tp2", "tp1"),
]

#: What make test-vllm-all runs besides.
MORE = [
    pair(LLAMA, "tp1", "tp1"),
    pair(LLAMA, "tp1", "tp2"),
    pair(LLAMA, "tp2", "tp4"),
    pair(QWEN, "tp1", "tp1"),
    pair(QWEN, "tp2", "tp1"),
    pair(QWEN, "tp1", "tp4"),
    pair(QWEN, "tp4", "tp2"),
    pair(QWEN, "pp2", "pp1"),
    pair(QWEN, "pp1", "pp2"),
    pair(QWEN, "tp2", "tp1", **conv("SD", "SD")),
    pair(QWEN, "tp2", "tp1", **conv("DS", "DS")),
    pair(QWEN, "tp1", "tp2", **conv("DS", "SD")),
    pair(QWEN, "tp1", "tp4", arguments=("--block-size", "768"), label="blocks of 768"),
    pair(DEEPSEEK, "tp1", "tp1"),
    pair(DEEPSEEK, "tp1", "tp2"),
    pair(DEEPSEEK, "tp2", "tp2"),
    pair(GEMMA, "tp1", "tp1"),
    pair(GEMMA, "tp2", "tp1"),
    pair(GEMMA, "tp1", "tp2"),
    pair(GEMMA, "tp1", "tp1", prefill_arguments=("--block-size", "32"), in_part=True, label="blocks of 32 to 128"),
    pair(GEMMA, "tp1", "tp2", prefill_arguments=("--block-size", "32"), in_part=True, label="blocks of 32 to 128"),
    pair(MTP, "tp1", "tp1", drafts=2),
    pair(MTP, "tp1", "tp2", drafts=2),
    pair(MTP, "pp2", "tp2", drafts=2),
    pair(LLAMA, "tp1", "tp1", connector="kvferry-both", label="kv_both"),
    pair(QWEN, "tp2", "tp1", connector="kvferry-among-others", label="in MultiConnector"),
    pair(QWEN, "tp2", "tp1", connector="kvferry-recompute", label="recompute"),
    pair(GEMMA, "tp1", "tp1", connector="kvferry-recompute", label="recompute"),
    pair(LLAMA, "tp2", "tp1", connector="kvferry-mooncake", label="over Mooncake"),
    pair(QWEN, "tp2", "tp1", connector="kvferry-mooncake", label="over Mooncake"),
    pair(LLAMA, "tp2", "tp1", connector="kvferry-nixl", label="over NIXL"),
    pair(QWEN, "tp2", "tp1", connector="kvferry-nixl", label="over NIXL"),
]


@dataclass(frozen=True)
class Connector:
    """A connector by what --kv-transfer-config says of it."""

    name: str
    config: dict[str, Any]
    #: It takes vLLM's Mooncake parameters. Otherwise those that the prefill server's answer has (NIXL).
    bootstrap: bool = True
    roles: tuple[str, str] = ("kv_producer", "kv_consumer")
    #: Connectors before it, where it is one of several.
    others: tuple[dict[str, Any], ...] = ()

    @property
    def recomputes(self) -> bool:
        """What cannot be loaded is computed by the decode server; otherwise its request fails."""
        return self.config.get("kv_load_failure_policy") == "recompute"

    def of(self, role: int) -> dict[str, Any]:
        own = {**self.config, "kv_role": self.roles[role]}
        if not self.others:
            return own
        several = {"connectors": [*self.others, own]}
        return {"kv_connector": "MultiConnector", "kv_role": self.roles[role], "kv_connector_extra_config": several}


#: With the hooks of the harness, which do nothing while nothing is asked of them.
KVFERRY = {"kv_connector": "HookedConnector", "kv_connector_module_path": "hooks"}
BYSTANDER = {"kv_connector": "Bystander", "kv_connector_module_path": "bystander", "kv_role": "kv_both"}


CONNECTORS = {
    connector.name: connector
    for connector in (
        Connector("kvferry", KVFERRY),
        Connector("kvferry-both", KVFERRY, roles=("kv_both", "kv_both")),
        Connector("kvferry-among-others", KVFERRY, others=(BYSTANDER,)),
        Connector("kvferry-recompute", {**KVFERRY, "kv_load_failure_policy": "recompute"}),
        Connector("kvferry-mooncake", {**KVFERRY, "kv_connector_extra_config": {"engine": "mooncake"}}),
        Connector("kvferry-nixl", {**KVFERRY, "kv_connector_extra_config": {"engine": "nixl"}}),
        Connector(
            "mooncake",
            {
                "kv_connector": "MooncakeOnCpu",
                "kv_connector_module_path": "kvferry_vllm_mends.mooncake",
                "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
            },
        ),
        Connector(
            "nixl",
            {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"},
            bootstrap=False,
            roles=("kv_both", "kv_both"),
        ),
    )
}
