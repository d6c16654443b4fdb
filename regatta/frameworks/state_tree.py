"""Nested state as tensors and JSON: the form in which optimizers and schedules are saved.

Tensors are stored under names that give their place in the tree. Everything else becomes JSON that restores the same
Python objects: integers stay integers, floats keep every bit, keys keep their types. An object without such a form is
an error that names its place; nothing is pickled.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from regatta.errors import CorruptError, UsageError

TAG = "$"


def flatten(tree: Mapping[str, Any], is_tensor: Callable[[Any], bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON skeleton of a tree, and its tensors by name."""
    tensors: dict[str, Any] = {}

    def encode(value: Any, place: str) -> Any:
        if is_tensor(value):
            while place in tensors:  # two keys may look alike, such as 1 and "1"
                place += "~"
            tensors[place] = value
            return {TAG: "tensor", "v": place}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
        if isinstance(value, list):
            return [encode(item, f"{place}/{i}") for i, item in enumerate(value)]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return {TAG: "tuple", "v": [encode(item, f"{place}/{i}") for i, item in enumerate(value)]}
        if type(value) in (dict, OrderedDict, Counter):
            return encode_mapping(value, place)
        raise UsageError(
            f"{place} holds a {type(value).__name__}, which cannot travel with the model.",
            hint="State may hold tensors, numbers, strings, None, lists, tuples and dicts of them.",
        )

    def encode_mapping(value: Mapping[Any, Any], place: str) -> Any:
        if any(is_tensor(key) for key in value):
            raise UsageError(f"{place} has a tensor as a key, which cannot travel with the model.")
        if type(value) is not Counter and all(type(key) is str and key != TAG for key in value):
            return {key: encode(item, f"{place}/{key}") for key, item in value.items()}
        pairs = [[encode(key, f"{place}/key"), encode(item, f"{place}/{key}")] for key, item in value.items()]
        return {TAG: "counter" if isinstance(value, Counter) else "dict", "v": pairs}

    return {part: encode(value, part) for part, value in tree.items()}, tensors


def unflatten(skeleton: Any, tensor: Callable[[str], Any]) -> Any:
    """The tree of a skeleton; `tensor` looks up a tensor by its name."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensor) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if TAG not in skeleton:
        return {key: unflatten(item, tensor) for key, item in skeleton.items()}
    kind, value = skeleton[TAG], skeleton["v"]
    if kind == "tensor":
        try:
            return tensor(value)
        except KeyError as error:
            raise CorruptError(f"A saved state lacks its tensor {value!r}.") from error
    if kind == "float":
        return float(value)
    if kind == "tuple":
        return tuple(unflatten(item, tensor) for item in value)
    if kind in ("dict", "counter"):
        pairs = {unflatten(key, tensor): unflatten(item, tensor) for key, item in value}
        return Counter(pairs) if kind == "counter" else pairs
    raise CorruptError(f"A saved state has an unknown tag {kind!r}.")
