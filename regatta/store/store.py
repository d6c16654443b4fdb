"""The parameter store: snapshots of tensors enter, the same bits leave, whatever was done to their encoding meanwhile.

(The signatures; the bodies follow.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from regatta.store.dtypes import DType, Words

MAX_CHAIN = 128  # the longest way from a tensor over its bases to one that needs none
Index: TypeAlias = int | slice | tuple[int | slice, ...]


class Bits(NamedTuple):
    """A tensor of a type that NumPy lacks: what `get` gives for it and what `put` takes (any buffer will do)."""

    dtype: str
    shape: tuple[int, ...]
    buffer: Any


@dataclass(frozen=True)
class Member:
    """A tensor as a manifest names it."""

    id: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """A snapshot: its tensors by name, in order of their names, and a few words about it."""

    tensors: Mapping[str, Member]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """How a tensor is stored now. `stored_bytes` are all of its streams, `remote_bytes` those kept only remotely."""

    tensor: str
    dtype: DType
    shape: tuple[int, ...]
    encoding: int
    base: str | None
    stored_bytes: int
    remote_bytes: int


@dataclass(frozen=True)
class Partial:
    """A tensor of which only the leading planes were read: exact bounds of every element."""

    dtype: DType
    shape: tuple[int, ...]
    planes: int  # how many are known: all of them where the encoding cannot be read in part
    words: Words

    @property
    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        raise NotImplementedError


class ParameterStore:
    @classmethod
    def open(cls, path: str | Path, *, create: bool = True, threads: int | None = None) -> ParameterStore:
        """The store in that folder, made when it is not there."""
        raise NotImplementedError

    def put(
        self,
        tensors: Mapping[str, Any],
        *,
        metadata: Mapping[str, str] | None = None,
        reference: str | None = None,
        encoding: str = "zstd-planes",
        scheme: str | None = None,
    ) -> str:
        """Store a snapshot; its id. Tensors already there cost nothing. `scheme` is a lossy encoding's name."""
        raise NotImplementedError

    def put_async(self, tensors: Mapping[str, Any], **options: Any) -> Future[str]:
        raise NotImplementedError

    def manifest(self, snapshot: str) -> Manifest: ...

    def snapshots(self) -> list[str]:
        """The ids of all snapshots, oldest first."""
        raise NotImplementedError

    def get(
        self, what: str, names: Sequence[str] | None = None, planes: int | None = None, slices: Any = None
    ) -> Any:
        """A snapshot's tensors as a dict, or one tensor by its id.

        Arrays, or Bits where NumPy lacks the type; with `planes`, Partial. `slices` is an index as NumPy's basic
        ones for a tensor, and for a snapshot a dict of them by name.
        """
        raise NotImplementedError

    def words(self, tensor: str, start: int = 0, stop: int | None = None) -> Words:
        """The words of a tensor, or a part of them: only the chunks that hold it are decoded."""
        raise NotImplementedError

    def entry(self, tensor: str) -> Entry:
        """How the tensor is stored now."""
        raise NotImplementedError

    def entries(self) -> Iterator[Entry]:
        """All tensors of the store."""
        raise NotImplementedError

    def reencode(self, plan: Mapping[str, tuple[int, str | None]]) -> None:
        """Store tensors in another way: {tensor id: (encoding id, base's tensor id or None)}.

        Every tensor is decoded again and compared before the index is swapped, in one transaction; ids never change.
        A base has the type and the number of elements of its tensor. Refused: unknown ids, cycles, chains of more
        than MAX_CHAIN, lossy encodings.
        """
        raise NotImplementedError

    def reference(self, name: str, snapshot: str) -> None: ...
    def release(self, name: str) -> None: ...
    def references(self) -> dict[str, str]: ...
    def close(self) -> None: ...
