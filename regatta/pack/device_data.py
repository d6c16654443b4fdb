"""The data of a pack: on the device once for all members, at an address that captured steps can rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from regatta.errors import UsageError
from regatta.frameworks.arrays import leaves, map_leaves


def to_device(data: Any, device: torch.device) -> Any:
    """Convert the arrays and tensors in a tree of tuples, lists and dicts to tensors on the device."""

    def placed(part: Any) -> torch.Tensor:
        if isinstance(part, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(part)).to(device)
        if isinstance(part, torch.Tensor):
            return part.to(device)
        raise UsageError(f"Data for a pack are arrays or tensors, in tuples or dicts, not {type(part).__name__}.")

    return map_leaves(placed, data)


def count_rows(data: Any) -> int:
    counts = {len(tensor) for tensor in leaves(data)}
    if len(counts) != 1:
        raise UsageError(f"The parts of the data have different numbers of rows: {sorted(counts)}.")
    return counts.pop()


def take_rows(data: Any, indices: torch.Tensor) -> Any:
    """The rows of every part of the data."""
    return map_leaves(lambda part: part.index_select(0, indices), data)


def _versions(data: Any) -> list[int]:
    """How often tensors were changed in place. Arrays do not count their changes."""
    return [part._version for part in leaves(data) if isinstance(part, torch.Tensor) and not part.is_inference()]


class DeviceData:
    """The data that is on the device now. `generation` changes when captured steps would read a wrong address."""

    def __init__(self, device: torch.device, transform: Callable[[Any], Any] | None) -> None:
        self.device = device
        self.transform = transform
        self.generation = 0
        self.data: Any = None
        self.rows = 0
        self._source: Any = None
        self._versions: list[int] = []
        self._owned = False

    def place(self, source: Any) -> None:
        """Copy data to the device and transform it once, unless it is there already."""
        if source is self._source and self._versions == _versions(source):
            return
        placed = to_device(source, self.device)
        if self.transform is not None:
            placed = to_device(self.transform(placed), self.device)
        self._source, self._versions, self.rows = source, _versions(source), count_rows(placed)
        if self._owned and self._fits(placed):
            for mine, new in zip(leaves(self.data), leaves(placed), strict=True):
                mine[: self.rows].copy_(new)
            return
        # the first data set is used in place; from the second on there is a buffer to copy into
        self._owned = self.data is not None
        self.data = map_leaves(torch.clone, placed) if self._owned else placed
        self.generation += 1

    def _fits(self, placed: Any) -> bool:
        def form(part: torch.Tensor) -> Any:
            return part.shape[1:], part.dtype

        if map_leaves(form, self.data) != map_leaves(form, placed):
            return False
        return all(len(mine) >= len(new) for mine, new in zip(leaves(self.data), leaves(placed), strict=True))
