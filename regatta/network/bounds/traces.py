"""What the forward pass keeps of a layer, so that bounds can be taken back through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from regatta.network.bounds.balls import Array, Ball, Rows


class NotBounded(Exception):
    """A layer, or a use of it, that has no bound here."""


@dataclass(frozen=True)
class Back:
    """A lower bound on products with a layer's output, in terms of its operands.

    For each row of coefficients: the coefficients of each operand, and a constant. `costs` is the part of the constant
    that is lost because a parameter is not known more exactly.
    """

    parts: tuple[Array | None, ...]
    constant: Array
    costs: Mapping[str, Array] = field(default_factory=dict)


GoBack: TypeAlias = Callable[[Array, Rows], Back]


@dataclass(frozen=True)
class Trace:
    """The output of a layer. Without a step back, bounds end at its ball. Coefficients i belong to input rows[i].

    `farthest`, where there is one, bounds how far products of coefficients with the output can be from those with its
    centre: less far than the radii allow. `fine` is a step back that asks for such bounds, and takes longer.
    """

    ball: Ball
    back: GoBack | None = None
    batched: bool = True
    farthest: Callable[[Array, Rows], Array] | None = None
    fine: GoBack | None = None

    def rows(self, values: Any, rows: Rows) -> Any:
        """Those of values in the shape of the output that belong to the rows."""
        return values[rows] if self.batched else values


Step: TypeAlias = Callable[..., Trace]
Boxes: TypeAlias = Mapping[str, Ball]


def unchanged(x: Trace) -> Trace:
    """A layer that does nothing, such as dropout in evaluation mode."""
    return Trace(x.ball, lambda a, rows: Back((a,), np.zeros(len(a))), x.batched)


def unbroadcast(a: Array, shape: tuple[int, ...], batched: bool) -> Array:
    """Coefficients of an operand of that shape, which was broadcast. The first axis of `a` is rows."""
    wanted = shape[1:] if batched else shape
    inner = a.ndim - 1
    if not batched and len(wanted) == inner + 1:
        wanted = wanted[1:]
    a = a.sum(axis=tuple(range(1, 1 + inner - len(wanted)))) if len(wanted) < inner else a
    ones = tuple(axis for axis, size in enumerate(wanted, 1) if size == 1 and a.shape[axis] != 1)
    return np.asarray(a.sum(axis=ones, keepdims=True) if ones else a)
