"""A snapshot as a safetensors file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regatta.durable import replacing
from regatta.errors import UsageError
from regatta.safetensors_io import METADATA, encode_header, tensor_entry
from regatta.store.format.manifest import Manifest
from regatta.store.format.tensor_id import as_tensor


def write_safetensors(target: Path, manifest: Manifest, tensors: Iterable[tuple[str, Any]]) -> None:
    """Write tensors, in the order of the manifest, as a file that appears complete or not at all."""
    content: dict[str, Any] = {METADATA: dict(manifest.metadata)} if manifest.metadata else {}
    end = 0
    for name, member in manifest.tensors.items():
        if member.dtype == "C128" or name == METADATA:
            raise UsageError(f"safetensors cannot hold {name!r} of type {member.dtype}.")
        start, end = end, end + member.bytes
        content[name] = tensor_entry(member.dtype, member.shape, start, end)
    with replacing(target) as written, written.open("wb") as file:
        file.write(encode_header(content))
        for name, value in tensors:
            file.write(as_tensor(name, value).words.data)
