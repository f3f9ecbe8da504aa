# SPDX-License-Identifier: Apache-2.0
"""Gives the trained Qwen3.5 of SOURCE a draft (MTP) layer with random weights.

    python make_qwen35_mtp.py SOURCE FOLDER

The trained tensors stay as they are, and with greedy sampling so do the answers: a draft counts only where it is what
the model says itself.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from drawn import Weights
from safetensors.torch import load_file, save_file


def draft_layer(c: dict) -> dict[str, torch.Tensor]:
    weights = Weights()
    hidden, dim = c["hidden_size"], c["head_dim"]
    layer = "mtp.layers.0"
    weights.matrix("mtp.fc.weight", hidden, 2 * hidden)
    weights.attention_and_mlp(layer, c, gated=True)
    # What Qwen3.5's norms multiply with is one more than their weight.
    for name, size in {
        f"{layer}.input_layernorm": hidden,
        f"{layer}.post_attention_layernorm": hidden,
        f"{layer}.self_attn.q_norm": dim,
        f"{layer}.self_attn.k_norm": dim,
        "mtp.norm": hidden,
        "mtp.pre_fc_norm_embedding": hidden,
        "mtp.pre_fc_norm_hidden": hidden,
    }.items():
        weights.vector(f"{name}.weight", size, mean=0)
    return weights.tensors


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: make_qwen35_mtp.py SOURCE FOLDER")
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
    tensors = load_file(source / "model.safetensors") | draft_layer(config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(source / "generation_config.json", folder)


if __name__ == "__main__":
    main()
