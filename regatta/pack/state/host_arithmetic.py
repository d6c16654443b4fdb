"""Arithmetic on the host that gives the bits of a device.

Sums and products round the same everywhere. Other operations may not: a GPU divides by a number by multiplying with its
reciprocal, and has functions of its own for roots and cosines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

_ROUNDS_ALIKE = frozenset((
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "neg", "abs", "minimum", "maximum", "clamp",
    "eq", "ne", "lt", "le", "gt", "ge", "fill", "copy", "clone", "detach", "item", "float", "bool", "dim", "get", "set",
))  # fmt: skip
_QUOTIENTS = frozenset(("div", "truediv", "true_divide", "divide", "itruediv"))


class WatchedArithmetic(TorchFunctionMode):
    """Notes the first operation on tensors whose result may differ on a device."""

    differs: str | None = None

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(function, "__name__", str(function)).strip("_")
        alike = name in _ROUNDS_ALIKE or (name in _QUOTIENTS and _is_power_of_two(args[-1]))
        if self.differs is None and (not alike or kwargs):
            self.differs = name
        return function(*args, **(kwargs or {}))


def _is_power_of_two(divisor: object) -> bool:
    return isinstance(divisor, int | float) and math.frexp(abs(divisor))[0] == 0.5
