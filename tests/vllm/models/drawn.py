# SPDX-License-Identifier: Apache-2.0
"""Random weights that are the same wherever they are drawn: each tensor's generator is seeded with its name."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

SEED = "kvferry"


class Weights:
    """Tensors by name. Shapes are (output, input), as torch.nn.Linear has them."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def draw(self, name: str, *shape: int) -> torch.Tensor:
        digest = hashlib.sha256(f"{SEED}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
        return torch.randn(*shape, generator=generator)

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0, dtype=torch.bfloat16) -> None:
        """Keeps the size of what it is multiplied with, times gain."""
        self.tensors[name] = (self.draw(name, rows, columns) * gain / columns**0.5).to(dtype)

    def vector(self, name: str, *shape: int, mean: float = 1.0, spread: float = 0.1, dtype=torch.bfloat16) -> None:
        self.tensors[name] = (mean + spread * self.draw(name, *shape)).to(dtype)

    def attention_and_mlp(self, layer: str, c: dict, gated: bool = False) -> None:
        """The projections of a layer as most models have them; `gated`: those of queries are twice as many."""
        hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        queries, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
        self.matrix(f"{layer}.self_attn.q_proj.weight", queries * (2 if gated else 1), hidden)
        self.matrix(f"{layer}.self_attn.k_proj.weight", keys, hidden)
        self.matrix(f"{layer}.self_attn.v_proj.weight", keys, hidden)
        self.matrix(f"{layer}.self_attn.o_proj.weight", hidden, queries)
        self.matrix(f"{layer}.mlp.gate_proj.weight", inner, hidden)
        self.matrix(f"{layer}.mlp.up_proj.weight", inner, hidden)
        self.matrix(f"{layer}.mlp.down_proj.weight", hidden, inner)


def make(model: Callable[[dict], dict[str, torch.Tensor]]) -> None:
    """The command of a maker that needs nothing but sizes: writes the model of SOURCE/config.json to FOLDER."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {Path(sys.argv[0]).name} SOURCE FOLDER")
    config, folder = Path(sys.argv[1]) / "config.json", Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model(json.loads(config.read_text())), folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(config, folder / "config.json")
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}) + "\n")
