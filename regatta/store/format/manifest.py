"""Manifests: a snapshot as names and tensor ids, with one canonical text.

The id of a snapshot is the hash of that text. A manifest whose text is not canonical, byte for byte, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from regatta.errors import CorruptError, UsageError
from regatta.store.format.dtypes import DTYPES, dtype_named
from regatta.store.format.tensor_id import is_id, snapshot_id, why_not_name, why_not_shape, word_count

FORMAT = 1
MAX_MANIFEST_BYTES = 2**26
MAX_TENSORS = 2**18


@dataclass(frozen=True)
class ManifestEntry:
    """A tensor in a manifest. A lossy one also names its scheme, and the id of the original tensor."""

    id: str
    dtype: str
    shape: tuple[int, ...]
    scheme: str | None = None
    original: str | None = None

    @property
    def bytes(self) -> int:
        """The size of the tensor itself, however it is encoded."""
        dtype = dtype_named(self.dtype)
        return word_count(dtype, self.shape) * dtype.width_bytes


@dataclass(frozen=True)
class Manifest:
    """A snapshot: its tensors by name, in the order of the names, and its metadata."""

    tensors: Mapping[str, ManifestEntry]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> bytes:
        """The canonical text: sorted keys, no spaces, UTF-8."""
        return self._text

    @cached_property
    def _text(self) -> bytes:
        tensors: dict[str, dict[str, Any]] = {}
        for name, member in self.tensors.items():
            tensors[name] = {"dtype": member.dtype, "id": member.id, "shape": list(member.shape)}
            if member.scheme is not None:
                tensors[name] |= {"scheme": member.scheme, "original": member.original}
        content = {"format": FORMAT, "metadata": dict(self.metadata), "tensors": tensors}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @cached_property
    def id(self) -> str:
        return snapshot_id(self.text())

    @property
    def lossy(self) -> bool:
        return any(member.scheme is not None for member in self.tensors.values())


def make_manifest(tensors: Mapping[str, ManifestEntry], metadata: Mapping[str, str] | None = None) -> Manifest:
    """A manifest; its content is checked, so it can be read back."""
    made = Manifest(dict(sorted(tensors.items())), dict(sorted((metadata or {}).items())))
    if (reason := _why_not(made)) is not None:
        raise UsageError(f"This is not a snapshot: {reason}.")
    if len(made.text()) > MAX_MANIFEST_BYTES:
        raise UsageError(f"The manifest would take {len(made.text())} bytes; {MAX_MANIFEST_BYTES} is the limit.")
    return made


def parse_manifest(text: bytes, snapshot: str, place: str) -> Manifest:
    """The manifest of a snapshot, from an untrusted text; CorruptError says what is wrong with it."""
    if len(text) > MAX_MANIFEST_BYTES:
        raise CorruptError(f"The manifest of {snapshot} has {len(text)} bytes.", place=place)
    if snapshot_id(text) != snapshot:
        raise CorruptError(f"The manifest of {snapshot} is not the one that its id names.", place=place)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"The manifest of {snapshot} is not JSON: {error}.", place=place) from error
    made = _from_json(content, snapshot, place)
    if (reason := _why_not(made)) is not None:
        raise CorruptError(f"The manifest of {snapshot} is wrong: {reason}.", place=place)
    if made.text() != text:
        raise CorruptError(f"The manifest of {snapshot} is not in its canonical form.", place=place)
    return made


def _from_json(content: Any, snapshot: str, place: str) -> Manifest:
    """Checks only the structure of the JSON; `_why_not` checks the values."""
    if not isinstance(content, dict) or set(content) != {"format", "metadata", "tensors"}:
        raise CorruptError(f"The manifest of {snapshot} is not an object with its three fields.", place=place)
    if content["format"] != FORMAT or type(content["format"]) is not int:
        raise CorruptError(
            f"The manifest of {snapshot} has format {content['format']!r:.40}; this version reads {FORMAT}.",
            place=place,
        )
    if not isinstance(content["metadata"], dict) or not isinstance(content["tensors"], dict):
        raise CorruptError(f"The manifest of {snapshot} has fields that are not objects.", place=place)
    members = {}
    for name, fields in content["tensors"].items():
        if not isinstance(fields, dict) or not isinstance(fields.get("shape"), list):
            raise CorruptError(f"The manifest of {snapshot} has no tensor in {name!r:.200}.", place=place)
        known: dict[str, Any] = {key: fields.get(key) for key in ("id", "dtype", "scheme", "original")}
        members[name] = ManifestEntry(shape=tuple(fields["shape"]), **known)
    return Manifest(members, content["metadata"])


def _why_not(manifest: Manifest) -> str | None:
    if len(manifest.tensors) > MAX_TENSORS:
        return f"{len(manifest.tensors)} tensors are more than {MAX_TENSORS}"
    for key, value in manifest.metadata.items():
        if not _is_text(key) or not _is_text(value):
            return f"the metadata {key!r:.200} is not a text but {value!r:.200}"
    for name, member in manifest.tensors.items():
        if (reason := why_not_name(name)) is not None:
            return f"the name {name!r:.200} {reason}"
        if (reason := _why_not_entry(member)) is not None:
            return f"the tensor {name!r:.200}: {reason}"
    return None


def _is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can hold: JSON can contain lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _why_not_entry(member: ManifestEntry) -> str | None:
    if not is_id(member.id):
        return f"{member.id!r:.100} is not a tensor id"
    if not isinstance(member.dtype, str) or member.dtype not in DTYPES:
        return f"{member.dtype!r:.100} is not an element type"
    if (member.scheme is None) != (member.original is None):
        return "it has a scheme without an original tensor, or the reverse"
    if member.scheme is not None and (not isinstance(member.scheme, str) or not is_id(member.original)):
        return f"{member.scheme!r:.100} of {member.original!r:.100} is not a lossy scheme of a tensor"
    return why_not_shape(member.shape)
