"""For frameworks whose data and states are arrays: seeds of Python and NumPy, batches, files of arrays.

Nothing here imports a framework, except PyTorch for types that NumPy lacks, such as bfloat16.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.format import brief
from regatta.store.format.tensor_id import Bits
from regatta.store.states.state_files import read_metadata, read_state, state_metadata
from regatta.store.torch_tensors import torch_tensors

Arrays = dict[str, NDArray[Any]]
ARRAYS_HINT = (
    "Batches are taken from arrays or tensors with a row for each example: let input_fn return (x, y), or a dict of "
    "arrays, and turn lists into arrays with np.asarray(...)."
)
# Types that NumPy has only through ml_dtypes.
EXTENDED_TYPES = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A scope in which random numbers of Python and NumPy come from the seed; it changes nothing outside."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def rows(data: Any) -> int:
    """The number of examples in tuples and dicts of arrays, which all have a row for each; else a UsageError."""
    lengths = [_length(part) for part in leaves(data)]
    if not lengths:
        raise UsageError("The data of a partition is empty: it holds no array.", hint=ARRAYS_HINT)
    if len(set(lengths)) > 1:
        shown = ", ".join(map(str, lengths[:4]))
        raise UsageError(f"The arrays of a partition have different numbers of rows: {shown}.", hint=ARRAYS_HINT)
    return lengths[0]


def _length(part: Any) -> int:
    shape = getattr(part, "shape", None)
    if shape:
        return int(shape[0])
    if shape is None and hasattr(part, "__len__") and not isinstance(part, str | bytes):
        return len(part)  # an object of the user's, which takes rows by their indices
    raise UsageError(
        f"The data of a partition holds {brief(part)} where an array belongs; are there lists of numbers in it?",
        hint=ARRAYS_HINT,
    )


def take(data: Any, indices: Any) -> Any:
    """The rows with these indices, of every array."""
    return map_leaves(lambda part: part[indices], data)


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """Apply a function to every leaf of tuples and dicts; lists become tuples."""
    if isinstance(data, tuple | list):
        return tuple(map_leaves(function, part) for part in data)
    if isinstance(data, dict):
        return {name: map_leaves(function, part) for name, part in data.items()}
    return function(data)


def leaves(data: Any) -> Iterator[Any]:
    """Every leaf of tuples and dicts."""
    if isinstance(data, tuple | dict):
        for part in data.values() if isinstance(data, dict) else data:
            yield from leaves(part)
    else:
        yield data


def mean_loss(losses: list[tuple[Any, int]]) -> dict[str, float]:
    """The mean over rows; losses are read at the end, so that steps do not wait for each other."""
    seen = sum(count for _, count in losses)
    return {"loss": sum(float(loss) * count for loss, count in losses) / max(1, seen)}


def read_only(data: Any) -> Any:
    """Read-only views, because other units will use the same arrays."""

    def view(part: Any) -> Any:
        if not isinstance(part, np.ndarray):
            return part
        part = part.view()
        part.flags.writeable = False
        return part

    return map_leaves(view, data)


def unique_names(names: Iterable[str]) -> list[str]:
    """The names, with "~" appended to repeated ones."""
    found: dict[str, None] = {}
    for name in names:
        while name in found:
            name += "~"
        found[name] = None
    return list(found)


def check_same_variables(part: str, saved: Any, built: list[str]) -> None:
    """A state fits only a model with the same variables in the same places."""
    if saved == built:
        return
    saved = saved if isinstance(saved, list) else []
    missing = [name for name in built if name not in saved]
    extra = [name for name in saved if name not in built]
    raise UsageError(
        f"The state has {len(saved)} arrays under {part}, the model that model_fn built has {len(built)}"
        + (f"; only in the state: {', '.join(extra[:3])}" if extra else "")
        + (f"; only in the model: {', '.join(missing[:3])}." if missing else "."),
        hint="model_fn must build the same model each time it is given the same configuration.",
    )


def write_arrays(path: Path, framework: str, arrays: Mapping[str, NDArray[Any]], tree: Any, **more: Any) -> None:
    """Write a state of arrays as a safetensors file."""
    extended = {name: array.dtype.name for name, array in arrays.items() if array.dtype.name in EXTENDED_TYPES}
    meta = state_metadata(framework, tree, extended=extended, **more)
    own = {name: _to_storable(name, array) for name, array in arrays.items()}
    if not extended:
        from safetensors.numpy import save_file

        save_file(own, path, meta)
    else:
        from safetensors.torch import save_file as save_tensors

        bits = {
            name: Bits(EXTENDED_TYPES[kind], own[name].shape, own[name].tobytes()) for name, kind in extended.items()
        }
        save_tensors(torch_tensors({**own, **bits}), path, meta)


def _to_storable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    plain = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
    if not plain and array.dtype != np.complex64 and array.dtype.name not in EXTENDED_TYPES:
        raise UsageError(f"{name} is an array of dtype {array.dtype}, which cannot travel with the model.")
    return np.array(array, order="C")


@dataclass
class ArrayState:
    """A saved state in memory."""

    arrays: Arrays
    meta: dict[str, Any]


def read(path: Path) -> ArrayState:
    return ArrayState(*read_arrays(path))


def read_arrays(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a state and its metadata; types that NumPy lacks come from ml_dtypes."""
    extended = read_metadata(path).get("extended", {})
    if not extended:
        return read_state(path, "np")
    import ml_dtypes

    tensors, meta = read_state(path, "pt")
    torch = sys.modules["torch"]
    integers = {1: torch.uint8, 2: torch.int16}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if name not in extended}
    for name, kind in extended.items():
        words = tensors[name].view(integers[tensors[name].element_size()]).numpy()
        arrays[name] = words.view(getattr(ml_dtypes, kind))
    return arrays, meta
