# SPDX-License-Identifier: Apache-2.0
"""Writes a small model of the DeepSeek-V4 kind with random weights.

    python make_deepseek_v4.py SOURCE FOLDER

The sizes are those of SOURCE/config.json. Tensors are scaled so that greedy answers vary and hang on what was read
from every kind of cache.
"""

import torch
from drawn import Weights, make


def compressor(weights: Weights, prefix: str, ratio: int, dim: int, hidden: int, mean: float = 1.0) -> None:
    width = dim * (2 if ratio == 4 else 1)  # windows of ratio 4 overlap
    weights.matrix(f"{prefix}.wkv.weight", width, hidden)
    weights.matrix(f"{prefix}.wgate.weight", width, hidden)
    weights.vector(f"{prefix}.ape", ratio, width, mean=0, spread=0.5, dtype=torch.float32)
    weights.vector(f"{prefix}.norm.weight", dim, mean=mean)


def attention(weights: Weights, prefix: str, c: dict, ratio: int) -> None:
    hidden, heads, dim, low = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
    groups, out = c["o_groups"], c["o_lora_rank"]
    weights.vector(f"{prefix}.attn_sink", heads, mean=0, spread=1, dtype=torch.float32)
    weights.matrix(f"{prefix}.wq_a.weight", low, hidden)
    weights.vector(f"{prefix}.q_norm.weight", low)
    weights.matrix(f"{prefix}.wq_b.weight", heads * dim, low)
    weights.matrix(f"{prefix}.wkv.weight", dim, hidden)
    sharp = 3.0  # so that what is attended to counts
    weights.vector(f"{prefix}.kv_norm.weight", dim, mean=sharp)
    weights.matrix(f"{prefix}.wo_a.weight", groups * out, heads * dim // groups)
    weights.matrix(f"{prefix}.wo_b.weight", hidden, groups * out, gain=2.5)
    if ratio > 1:
        compressor(weights, f"{prefix}.compressor", ratio, dim, hidden, mean=sharp)
    if ratio == 4:
        index_dim = c["index_head_dim"]
        weights.matrix(f"{prefix}.indexer.wq_b.weight", c["index_n_heads"] * index_dim, low)
        weights.matrix(f"{prefix}.indexer.weights_proj.weight", c["index_n_heads"], hidden)
        compressor(weights, f"{prefix}.indexer.compressor", ratio, index_dim, hidden)


def experts(weights: Weights, prefix: str, c: dict, by_hash: bool) -> None:
    hidden, inner, count = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    weights.matrix(f"{prefix}.gate.weight", count, hidden)
    if by_hash:
        name = f"{prefix}.gate.tid2eid"
        scores = weights.draw(name, c["vocab_size"], count)
        weights.tensors[name] = scores.topk(c["num_experts_per_tok"], dim=1).indices.to(torch.int32)
    else:
        weights.vector(f"{prefix}.gate.bias", count, mean=0, dtype=torch.float32)
    for expert in (*(f"experts.{number}" for number in range(count)), "shared_experts"):
        weights.matrix(f"{prefix}.{expert}.w1.weight", inner, hidden)
        weights.matrix(f"{prefix}.{expert}.w3.weight", inner, hidden)
        weights.matrix(f"{prefix}.{expert}.w2.weight", hidden, inner)


def model(c: dict) -> dict[str, torch.Tensor]:
    weights = Weights()
    hidden, vocabulary, copies = c["hidden_size"], c["vocab_size"], c["hc_mult"]
    weights.vector("embed.weight", vocabulary, hidden, mean=0, spread=0.5)
    for number in range(c["num_hidden_layers"]):
        layer = f"layers.{number}"
        for part in ("attn", "ffn"):
            weights.vector(f"{layer}.{part}_norm.weight", hidden)
            # Hyper-connections: how the copies of the residual stream are mixed.
            mixes = (2 + copies) * copies
            weights.matrix(f"{layer}.hc_{part}_fn", mixes, copies * hidden, dtype=torch.float32)
            weights.vector(f"{layer}.hc_{part}_base", mixes, mean=0, spread=0.5, dtype=torch.float32)
            weights.vector(f"{layer}.hc_{part}_scale", 3, mean=0.5, spread=0.05, dtype=torch.float32)
        attention(weights, f"{layer}.attn", c, c["compress_ratios"][number])
        experts(weights, f"{layer}.ffn", c, by_hash=number < c["num_hash_layers"])
    weights.matrix("hc_head_fn", copies, copies * hidden, dtype=torch.float32)
    weights.vector("hc_head_base", copies, mean=0, spread=0.5, dtype=torch.float32)
    weights.vector("hc_head_scale", 1, dtype=torch.float32)
    weights.vector("norm.weight", hidden)
    weights.matrix("head.weight", vocabulary, hidden, gain=3)
    return weights.tensors


if __name__ == "__main__":
    make(model)
