# SPDX-License-Identifier: Apache-2.0
"""Random weights that are the same wherever they are drawn: each tensor's generator is seeded with its name."""

import hashlib

import torch

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
