"""The data of a pack: on the device once for all members, at an address that captured steps can rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from regatta.errors import UsageError


def to_device(data: Any, device: torch.device) -> Any:
    """Convert the arrays and tensors in a tree of tuples, lists and dicts to tensors on the device."""
    if isinstance(data, tuple | list):
        return tuple(to_device(part, device) for part in data)
    if isinstance(data, dict):
        return {name: to_device(part, device) for name, part in data.items()}
    if isinstance(data, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(data)).to(device)
    if isinstance(data, torch.Tensor):
        return data.to(device)
    raise UsageError(f"Data for a pack are arrays or tensors, in tuples or dicts, not {type(data).__name__}.")


def tensors(data: Any) -> Iterator[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        yield data
    else:
        for part in data.values() if isinstance(data, dict) else data:
            yield from tensors(part)


def count_rows(data: Any) -> int:
    counts = {len(tensor) for tensor in tensors(data)}
    if len(counts) != 1:
        raise UsageError(f"The parts of the data have different numbers of rows: {sorted(counts)}.")
    return counts.pop()


def take_rows(data: Any, indices: torch.Tensor) -> Any:
    """The rows of every part of the data."""
    return map_tensors(data, lambda part: part.index_select(0, indices))


def map_tensors(data: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(data, tuple):
        return tuple(map_tensors(part, function) for part in data)
    if isinstance(data, dict):
        return {name: map_tensors(part, function) for name, part in data.items()}
    return function(data)


class DeviceData:
    """The data that is on the device now. `generation` changes when captured steps would read a wrong address."""

    def __init__(self, device: torch.device, transform: Callable[[Any], Any] | None) -> None:
        self.device = device
        self.transform = transform
        self.generation = 0
        self.data: Any = None
        self.rows = 0
        self._source: Any = None
        self._owned = False

    def place(self, source: Any) -> None:
        """Copy data to the device and transform it once, unless it is there already."""
        if source is self._source:
            return
        placed = to_device(source, self.device)
        if self.transform is not None:
            placed = to_device(self.transform(placed), self.device)
        self._source, self.rows = source, count_rows(placed)
        if self._owned and self._fits(placed):
            for mine, new in zip(tensors(self.data), tensors(placed), strict=True):
                mine[: self.rows].copy_(new)
            return
        # the first data set is used in place; from the second on there is a buffer to copy into
        self._owned = self.data is not None
        self.data = map_tensors(placed, torch.clone) if self._owned else placed
        self.generation += 1

    def _fits(self, placed: Any) -> bool:
        mine, new = list(tensors(self.data)), list(tensors(placed))
        alike = len(mine) == len(new) and _tree_structure(self.data) == _tree_structure(placed)
        return alike and all(
            a.shape[1:] == b.shape[1:] and a.dtype == b.dtype and len(a) >= len(b)
            for a, b in zip(mine, new, strict=True)
        )


def _tree_structure(data: Any) -> Any:
    if isinstance(data, tuple):
        return tuple(_tree_structure(part) for part in data)
    if isinstance(data, dict):
        return {name: _tree_structure(part) for name, part in data.items()}
    return None
