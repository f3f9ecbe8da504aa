# SPDX-License-Identifier: Apache-2.0
"""Writes a small model of the Gemma-3 kind, of windows and full attention, with random weights.

    python make_gemma3.py SOURCE FOLDER

The sizes are those of SOURCE/config.json. Tensors are scaled so that greedy answers vary and hang on what was read
from layers of both kinds.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from drawn import Weights
from safetensors.torch import save_file


def model(c: dict) -> dict[str, torch.Tensor]:
    weights = Weights()
    hidden, inner, dim, vocabulary = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["vocab_size"]
    queries, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    weights.vector("model.embed_tokens.weight", vocabulary, hidden, mean=0, spread=hidden**-0.5)
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        weights.matrix(f"{layer}.self_attn.q_proj.weight", queries, hidden)
        weights.matrix(f"{layer}.self_attn.k_proj.weight", keys, hidden)
        weights.matrix(f"{layer}.self_attn.v_proj.weight", keys, hidden)
        weights.matrix(f"{layer}.self_attn.o_proj.weight", hidden, queries)
        weights.matrix(f"{layer}.mlp.gate_proj.weight", inner, hidden)
        weights.matrix(f"{layer}.mlp.up_proj.weight", inner, hidden)
        weights.matrix(f"{layer}.mlp.down_proj.weight", hidden, inner)
        # What Gemma's norms multiply with is one more than their weight.
        sharp = 2.0  # so that what is attended to counts
        weights.vector(f"{layer}.self_attn.q_norm.weight", dim, mean=sharp)
        weights.vector(f"{layer}.self_attn.k_norm.weight", dim, mean=0)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            weights.vector(f"{layer}.{norm}_layernorm.weight", hidden, mean=0)
    weights.vector("model.norm.weight", hidden, mean=0)
    weights.matrix("lm_head.weight", vocabulary, hidden, gain=3)
    return weights.tensors


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: make_gemma3.py SOURCE FOLDER")
    config, folder = Path(sys.argv[1]) / "config.json", Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model(json.loads(config.read_text())), folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(config, folder / "config.json")
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}) + "\n")


if __name__ == "__main__":
    main()
