"""A warm start: a child begins with its parent's state and its own hyperparameters.

A warm start copies the parent's weights, buffers, moments and counters. Settings in which a fresh child differs from a
fresh parent, such as the learning rate or the end of a schedule, take the child's value. Where training has moved
a setting, the child's value is moved in proportion: a rate that decayed to a tenth becomes a tenth of the child's own.
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

WEIGHT_PARTS = ("model", "buffers")
_FLOATS: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def warm_start(framework: Framework, parent: Any, child: Any, state: Path) -> None:
    """Restore a state of the parent into a fresh child; `parent` is a fresh model with the parent's values."""
    with tempfile.TemporaryDirectory(prefix="regatta-child-") as folder:
        fresh = []
        for name, trainee in (("parent", parent), ("child", child)):
            framework.save(trainee, Path(folder) / name)
            fresh.append(_StateFile(Path(folder) / name))
        saved = _StateFile(state)
        saved.apply_differences(*fresh)
        saved.write(Path(folder) / "start")
        try:
            framework.restore(child, framework.read(Path(folder) / "start"))
        except (RuntimeError, ValueError, KeyError, RegattaError) as error:
            raise UsageError(
                f"The parent's state does not fit the child: {error}",
                hint="A warm start needs the same architecture and the same kind of optimizer.",
            ) from error


class _StateFile:
    """The file of a state in memory, to change numbers in its metadata and tensors of one number."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        try:
            header = split_header(memoryview(content))
            self.header = header.content
            self.meta: dict[str, Any] = json.loads(self.header[METADATA]["regatta"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"The state cannot be read: {error}.", place=str(path)) from error
        self.data = bytearray(content[header.size :])

    def apply_differences(self, parent: _StateFile, child: _StateFile) -> None:
        tree = self.meta["tree"]
        for part in tree.keys() & parent.meta["tree"].keys() & child.meta["tree"].keys() - set(WEIGHT_PARTS):
            tree[part] = _blend(tree[part], parent.meta["tree"][part], child.meta["tree"][part])
        for name in self.header.keys() & parent.header.keys() & child.header.keys():
            if name != METADATA and name.partition("/")[0] not in WEIGHT_PARTS:
                self._set_number(name, parent.number(name), child.number(name))

    def number(self, name: str) -> float | None:
        entry = self.header[name]
        if entry["dtype"] not in _FLOATS or math.prod(entry["shape"]) != 1:
            return None
        return float(np.frombuffer(self.data, _FLOATS[entry["dtype"]], 1, entry["data_offsets"][0])[0])

    def _set_number(self, name: str, parent: float | None, child: float | None) -> None:
        own = self.number(name)
        if own is not None and parent is not None and child is not None and parent != child:
            start, end = self.header[name]["data_offsets"]
            value = np.array(_blend(own, parent, child), _FLOATS[self.header[name]["dtype"]])
            self.data[start:end] = value.tobytes()

    def write(self, path: Path) -> None:
        self.header[METADATA]["regatta"] = json.dumps(self.meta, separators=(",", ":"))
        path.write_bytes(encode_header(self.header) + self.data)


def _blend(saved: Any, parent: Any, child: Any) -> Any:
    """The saved value, except where a fresh parent and a fresh child differ."""
    if parent == child:
        return saved
    if all(isinstance(value, dict) for value in (saved, parent, child)) and parent.keys() == child.keys():
        return {key: _blend(saved[key], parent[key], child[key]) if key in parent else saved[key] for key in saved}
    if all(isinstance(value, list) for value in (saved, parent, child)) and len(saved) == len(parent) == len(child):
        return [_blend(*values) for values in zip(saved, parent, child, strict=True)]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (saved, parent, child))
    return child if saved == parent or not numbers or parent == 0 else saved * (child / parent)
