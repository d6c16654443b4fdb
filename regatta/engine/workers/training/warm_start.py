"""A child that begins with its parent's state, and with its own values: what a warm start keeps and what it changes.

Weights, buffers, moments and counters are the parent's. Whatever a fresh child has otherwise than a fresh parent
(a learning rate, a momentum, the end of a schedule) is the child's: as it stands where training has not moved it,
in the same proportion where it has. A rate that decayed to a tenth is a tenth of the child's own.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from regatta.errors import CorruptError, RegattaError, UsageError
from regatta.frameworks.base import Framework
from regatta.safetensors_io import METADATA, encode_header, split_header

WEIGHTS = ("model", "buffers")
_FLOATS: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def warm_start(framework: Framework, parent: Any, child: Any, state: Path) -> None:
    """Put a state of the parent's kind into a fresh child; `parent` is a fresh one of the parent's values."""
    with tempfile.TemporaryDirectory(prefix="regatta-child-") as folder:
        fresh = []
        for name, trainee in (("parent", parent), ("child", child)):
            framework.save(trainee, Path(folder) / name)
            fresh.append(_StateFile(Path(folder) / name))
        saved = _StateFile(state)
        saved.take_over(*fresh)
        saved.write(Path(folder) / "begins")
        try:
            framework.restore(child, framework.read(Path(folder) / "begins"))
        except (RuntimeError, ValueError, KeyError, RegattaError) as error:
            raise UsageError(
                f"The parent's state does not fit the child: {error}",
                hint="A warm start needs the same architecture and the same kind of optimizer.",
            ) from error


class _StateFile:
    """A state's file, to be changed in place: numbers in its metadata, and tensors of one number."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        try:
            header = split_header(memoryview(content))
            self.header = header.content
            self.meta: dict[str, Any] = json.loads(self.header[METADATA]["regatta"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"The state cannot be read: {error}.", place=str(path)) from error
        self.data = bytearray(content[header.size :])

    def take_over(self, parent: _StateFile, child: _StateFile) -> None:
        tree = self.meta["tree"]
        for part in tree.keys() & parent.meta["tree"].keys() & child.meta["tree"].keys() - set(WEIGHTS):
            tree[part] = _blended(tree[part], parent.meta["tree"][part], child.meta["tree"][part])
        for name in self.header.keys() & parent.header.keys() & child.header.keys():
            if name != METADATA and name.partition("/")[0] not in WEIGHTS:
                self._take_over_number(name, parent.number(name), child.number(name))

    def number(self, name: str) -> float | None:
        entry = self.header[name]
        if entry["dtype"] not in _FLOATS or math.prod(entry["shape"]) != 1:
            return None
        return float(np.frombuffer(self.data, _FLOATS[entry["dtype"]], 1, entry["data_offsets"][0])[0])

    def _take_over_number(self, name: str, parent: float | None, child: float | None) -> None:
        own = self.number(name)
        if own is not None and parent is not None and child is not None and parent != child:
            start, end = self.header[name]["data_offsets"]
            value = np.array(_blended(own, parent, child), _FLOATS[self.header[name]["dtype"]])
            self.data[start:end] = value.tobytes()

    def write(self, path: Path) -> None:
        self.header[METADATA]["regatta"] = json.dumps(self.meta, separators=(",", ":"))
        path.write_bytes(encode_header(self.header) + self.data)


def _blended(saved: Any, parent: Any, child: Any) -> Any:
    """What was saved, but for what differs between a fresh parent and a fresh child."""
    if parent == child:
        return saved
    if all(isinstance(value, dict) for value in (saved, parent, child)) and parent.keys() == child.keys():
        return {key: _blended(saved[key], parent[key], child[key]) if key in parent else saved[key] for key in saved}
    if all(isinstance(value, list) for value in (saved, parent, child)) and len(saved) == len(parent) == len(child):
        return [_blended(*values) for values in zip(saved, parent, child, strict=True)]
    if saved == parent or not all(_is_number(value) for value in (saved, parent, child)) or parent == 0:
        return child
    return saved * (child / parent)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))
