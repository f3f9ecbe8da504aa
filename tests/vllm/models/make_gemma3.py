# SPDX-License-Identifier: Apache-2.0
"""Writes a small model of the Gemma-3 kind, of windows and full attention, with random weights.

    python make_gemma3.py SOURCE FOLDER

The sizes are those of SOURCE/config.json. Tensors are scaled so that greedy answers vary and hang on what was read
from layers of both kinds.
"""

import torch
from drawn import Weights, make


def model(c: dict) -> dict[str, torch.Tensor]:
    weights = Weights()
    hidden, dim, vocabulary = c["hidden_size"], c["head_dim"], c["vocab_size"]
    weights.vector("model.embed_tokens.weight", vocabulary, hidden, mean=0, spread=hidden**-0.5)
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        weights.attention_and_mlp(layer, c)
        # What Gemma's norms multiply with is one more than their weight.
        sharp = 2.0  # so that what is attended to counts
        weights.vector(f"{layer}.self_attn.q_norm.weight", dim, mean=sharp)
        weights.vector(f"{layer}.self_attn.k_norm.weight", dim, mean=0)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            weights.vector(f"{layer}.{norm}_layernorm.weight", hidden, mean=0)
    weights.vector("model.norm.weight", hidden, mean=0)
    weights.matrix("lm_head.weight", vocabulary, hidden, gain=3)
    return weights.tensors


if __name__ == "__main__":
    make(model)
