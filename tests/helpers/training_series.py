"""Made-up training: weights that take steps, fine-tuned copies of them, and unrelated weights of the same shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[Any]]
SHAPES = {"conv.weight": (20, 25), "hidden.weight": (300, 400), "hidden.bias": (300,), "out.weight": (10, 300)}


def start(seed: int, dtype: str = "float32") -> Weights:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.05, shape).astype(dtype) for name, shape in SHAPES.items()}


def step(weights: Weights, seed: int, size: float = 1e-4) -> Weights:
    """The weights a while of training later."""
    rng = np.random.default_rng(seed)
    return {name: (value + rng.normal(0, size, value.shape)).astype(value.dtype) for name, value in weights.items()}


def series(seed: int, length: int, first: Weights | None = None, size: float = 1e-4) -> list[Weights]:
    found = [start(seed) if first is None else step(first, 1000 + seed, size)]
    for number in range(length - 1):
        found.append(step(found[-1], 100 * seed + number, size))
    return found
