"""Other names of layers, for those whose own name says little.

Networks read from ONNX have ids such as `/conv1/Conv`, and those of a Sequential `0`, `1`, ... A query may call these
layers `conv1`, or by their kind and number: `conv1` is the first CONV, `full2` the second FULL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class LayerNames(NamedTuple):
    """The id and name of a layer, the module that an ONNX id names, and its kind with a number; "" where there is none.

    Only a layer whose last name is a number has `numbered`.
    """

    id: str
    name: str
    module: str
    numbered: str


def layer_names(layers: Iterable[tuple[str, str, str]]) -> list[LayerNames]:
    """The names of all layers of one network, given by (id, kind, name) in the network's order."""
    counts: Counter[str] = Counter()
    found = []
    for id, kind, name in layers:
        counts[kind] += 1
        module = _module(id)
        last = (module or name or id).replace("/", ".").rpartition(".")[2]
        numbered = f"{kind.lower()}{counts[kind]}" if last.isascii() and last.isdecimal() else ""
        found.append(LayerNames(id, name, module, numbered))
    return found


def other_names(layers: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """(id, name) of the layers that have other names than their id and name."""
    for each in layer_names(layers):
        yield from ((each.id, name) for name in dict.fromkeys((each.module, each.numbered)) if name)


def _module(id: str) -> str:
    """`/features/features.0/Conv` is the operator Conv of the module features.0."""
    parts = id.strip("/").split("/")
    return parts[-2] if len(parts) > 1 else ""
