"""Data to evaluate with, from a file: .npz, .npy, .safetensors or .parquet, never unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.data.formats import find_format
from regatta.errors import DataError, NotFoundError, nearest


def read_data(path: str | Path, x: str | None = None, y: str | None = None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The arrays `x` and `y` of a file, or arrays of other names; a single array is x, whatever its name."""
    place = Path(path)
    if not place.is_file():
        raise NotFoundError("There is no such file.", place=str(place))
    if place.suffix.lower() == ".npy":
        try:
            return np.asarray(np.load(place, mmap_mode="r", allow_pickle=False)), None
        except (ValueError, EOFError, OSError) as error:
            raise DataError(f"The file cannot be read: {error}.", place=str(place)) from error
    known = find_format(place)
    if known is None:
        raise DataError(
            f"Data comes from .npz, .npy, .safetensors or .parquet files, not from {place.suffix or 'this'!r}.",
            place=str(place),
            hint="Write it with numpy.savez(path, x=..., y=...).",
        )
    arrays = dict(zip((stored.name for stored in known.inspect(place)), known.read(place), strict=True))
    inputs = _named(arrays, x, "x", place) if x is not None or len(arrays) != 1 else next(iter(arrays.values()))
    targets = _named(arrays, y, "y", place) if y is not None or "y" in arrays else None
    return inputs, targets


def _named(arrays: dict[str, Any], wanted: str | None, usual: str, place: Path) -> NDArray[Any]:
    name = usual if wanted is None else wanted
    if name not in arrays:
        raise DataError(
            f"The file has no array {name!r}; it has {', '.join(sorted(arrays)[:20]) or 'none'}.",
            place=str(place),
            candidates=nearest(name, arrays),
            hint="Name the arrays: --x NAME --y NAME.",
        )
    return np.asarray(arrays[name])
