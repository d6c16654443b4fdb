"""Pack files: what is written is read, and nothing else is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import CorruptError
from regatta.store.folder import MissingPackError, PackBatch, PackFolder
from regatta.store.format.encodings import encoding_named
from regatta.store.format.manifest import ManifestEntry, make_manifest
from regatta.store.format.pack_file import (
    HEADER,
    TRAILER,
    ManifestRecord,
    Record,
    Segment,
    chunk_count,
    parse_record,
    read_records,
)
from regatta.store.format.tensor_id import as_tensor
from regatta.store.writer import TensorEncoder, write_manifest


def fill(packing: PackBatch) -> None:
    """Three tensors, one with two chunks and one without any, and a manifest."""
    members = {}
    for name, value in {"a": np.arange(300_000, dtype=np.float32), "b": np.int8(3), "c": np.zeros((0, 2))}.items():
        tensor = as_tensor(name, value)
        TensorEncoder(None).encode(tensor, tensor.id, encoding_named("zstd-planes")).write(packing)
        members[name] = ManifestEntry(tensor.id, tensor.dtype.name, tensor.shape)
    write_manifest(packing, make_manifest(members))


@pytest.fixture
def folder(tmp_path: Path) -> PackFolder:
    made = PackFolder(tmp_path)
    made.create()
    return made


@pytest.fixture
def pack(folder: PackFolder) -> str:
    """A pack in the folder."""
    with folder.packing() as packing:
        fill(packing)
        (sealed,) = packing.seal()
        folder.place([sealed])
    return sealed.id


def parse(data: bytes) -> list[Record]:
    return read_records(lambda at, length: data[at : at + length], len(data), "here")


def test_a_pack_is_named_by_its_content(folder: PackFolder, pack: str) -> None:
    assert blake3(folder.path(pack).read_bytes()).hexdigest() == pack == folder.digest(pack)
    assert list(folder.tmp.iterdir()) == []


def test_records_are_read_as_they_were_written(folder: PackFolder, pack: str) -> None:
    a, b, c, manifest = folder.records(pack)
    assert isinstance(a, Segment)
    assert isinstance(manifest, ManifestRecord)
    assert (a.shape, a.chunks, a.count, len(a.table), a.base) == ((300_000,), 2, 4, 8, None)
    assert [record.shape for record in (b, c) if isinstance(record, Segment)] == [(), (0, 2)]
    for record in (a, b, c, manifest):
        assert parse_record(record.pack(), "here").pack() == record.pack()


def test_leading_planes_are_one_range(folder: PackFolder, pack: str) -> None:
    segment = folder.records(pack)[0]
    assert isinstance(segment, Segment)
    high, low = segment.part(0, 2), segment.part(2, 2)
    assert (high.offset, high.size + low.size) == (segment.offset, segment.size)
    assert low.offset == high.offset + high.size
    assert list(high.table) + list(low.table) == list(segment.table)


def test_equal_content_makes_equal_packs(folder: PackFolder, pack: str) -> None:
    with folder.packing() as packing:
        fill(packing)
        assert packing.seal()[0].id == pack


def test_packs_that_are_not_placed_are_deleted(folder: PackFolder) -> None:
    with pytest.raises(RuntimeError), folder.packing() as packing:
        fill(packing)
        packing.seal()
        fill(packing)
        raise RuntimeError
    assert list(folder.tmp.iterdir()) == list(folder.packs.iterdir()) == []


def test_a_full_pack_is_followed_by_another(folder: PackFolder) -> None:
    with PackBatch(folder.tmp, limit=1000) as packing:
        fill(packing)
        packing.seal()
        assert [len(sealed.records) for sealed in packing.sealed] == [1, 3]
        assert len(packing.segments()) == 3


def test_a_record_must_come_with_its_bytes(folder: PackFolder) -> None:
    with pytest.raises(ValueError, match="claims"), folder.packing() as packing:
        packing.add(ManifestRecord("ab" * 32, 0, 7, 0), [b"six..."])


def test_cut_off_anywhere(folder: PackFolder, pack: str) -> None:
    data = folder.path(pack).read_bytes()
    for size in [*range(0, 200, 7), *range(200, len(data), 9973), *range(len(data) - 600, len(data))]:
        with pytest.raises(CorruptError):
            parse(data[:size])
    for more in (b"\0", b"x" * TRAILER.size):
        with pytest.raises(CorruptError):
            parse(data + more)


@settings(deadline=None)
@given(data=st.data())
def test_any_bit_of_header_and_footer_matters(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = made_once(tmp_path_factory)
    footer = TRAILER.unpack(whole[-TRAILER.size :])[0]
    at = data.draw(st.integers(0, HEADER.size - 1) | st.integers(footer, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptError, match="here"):
        parse(bytes(changed))


_made: list[bytes] = []


def made_once(factory: pytest.TempPathFactory) -> bytes:
    if not _made:
        folder = PackFolder(factory.mktemp("made"))
        folder.create()
        with folder.packing() as packing:
            fill(packing)
            _made.append(packing.seal()[0].path.read_bytes())
    return _made[0]


def test_chunks_of_a_shape() -> None:
    dtype = as_tensor("w", np.zeros(1, np.complex64)).dtype
    assert [chunk_count(dtype, (n,)) for n in (0, 1, 2**17, 2**17 + 1)] == [0, 1, 1, 2]


def test_a_read_beyond_the_end(folder: PackFolder, pack: str) -> None:
    size = folder.path(pack).stat().st_size
    for at, length in [(size, 1), (size - 1, 2), (-1, 1), (0, -1), (2**63, 2**63)]:
        with pytest.raises(CorruptError, match=pack):
            folder.read(pack, at, length)


def test_a_pack_file_truncated_while_it_is_mapped(folder: PackFolder, pack: str) -> None:
    """Touching a mapping beyond the end of its file would end the process."""
    before = len(folder.view(pack))
    os.truncate(folder.path(pack), 20)
    with pytest.raises(CorruptError, match="file of 20"):
        folder.read(pack, before - 8, 8)
    folder.path(pack).unlink()
    with pytest.raises(MissingPackError, match=pack):
        folder.read(pack, 0, 8)


def test_temporary_files_of_live_writers_stay(folder: PackFolder) -> None:
    with folder.packing() as packing:
        fill(packing)
        (folder.tmp / "left.pack").write_bytes(b"left by a killed process")
        assert folder.sweep_tmp(before=2e9 * 10) == 1
        packing.seal()
        assert folder.sweep_tmp(before=2e9 * 10) == 0
        folder.place(packing.sealed)
    assert folder.sweep_tmp(before=2e9 * 10) == 0
    assert len(list(folder.packs.iterdir())) == 1


def test_a_temporary_file_deleted_before_it_is_locked(folder: PackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making a temporary file and locking it, gc may take it for abandoned."""
    lock, swept = fcntl.flock, []

    def lock_late(file: Any, how: int) -> None:
        if not swept:
            swept.append(None)
            assert folder.sweep_tmp(before=1e11) == 1
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with folder.packing() as packing:
        fill(packing)
        folder.place(packing.seal())
    assert len(list(folder.packs.iterdir())) == 1


def test_a_pack_is_synced_before_its_name_and_the_folder_after(
    folder: PackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        story.append(f"fsync {os.readlink(f'/proc/self/fd/{handle}').rsplit('/', 2)[-2:][0]}")
        fsync(handle)

    def note_replace(source: Path, target: Path) -> None:
        story.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    with folder.packing() as packing:
        fill(packing)
        folder.place(packing.seal())
    assert [step.split()[0] for step in story] == ["fsync", "rename", "fsync"]
    assert story[0] == "fsync tmp"
