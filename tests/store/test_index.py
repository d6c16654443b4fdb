"""The index: chains, marks, transactions and what it says when it is damaged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from regatta.errors import CorruptError, NotFoundError, RegattaError
from regatta.store.format.dtypes import DTYPES
from regatta.store.format.pack_file import ManifestRecord, Segment, stream_table
from regatta.store.index import LOCAL, MAX_CHAIN_LENGTH, REMOTE, Index

PACK = "cc" * 32


def tensor(number: int) -> str:
    return f"{number:064x}"


def segment(number: int, base: int | None = None, first: int = 0, count: int = 1) -> Segment:
    table = stream_table([[b"some bytes"]] * count)
    return Segment(
        tensor(number), None if base is None else tensor(base), 3, DTYPES["F32"], (3,), first, count, 16, table
    )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    opened = Index(tmp_path / "index.sqlite")
    with opened.transaction():
        opened.add_pack(PACK, 1000, LOCAL, now=0.0)
    yield opened
    opened.close()


def link(index: Index, *edges: tuple[int, int | None]) -> None:
    with index.transaction():
        for number, base in edges:
            index.store_tensor([(segment(number, base), PACK)])


def test_a_stored_tensor_is_found_with_its_segments(index: Index) -> None:
    with index.transaction():
        index.add_pack("dd" * 32, 10, REMOTE, now=0.0)
        index.store_tensor([(segment(1, 2, 0, 1), PACK), (segment(1, 2, 1, 3), "dd" * 32)])
    found = index.stored(tensor(1))
    assert (found.encoding, found.base, found.shape) == (3, tensor(2), (3,))
    parts = [(part.segment.first, part.segment.size, part.pack[:2], part.place) for part in found.segments]
    assert parts == [(0, 10, "cc", 1), (1, 30, "dd", 2)]
    with pytest.raises(NotFoundError, match=tensor(9)):
        index.stored(tensor(9))


def test_chains_end_or_raise_an_error(index: Index) -> None:
    link(index, (1, 2), (2, 3), (3, None), (4, 5), (5, 4), (6, 7), (8, 8))
    assert [one.tensor for one in index.chain(tensor(1))] == [tensor(1), tensor(2), tensor(3)]
    for number, message in [(4, "cycle"), (8, "cycle"), (6, f"{tensor(7)} of {tensor(6)} is gone")]:
        with pytest.raises(CorruptError, match=message):
            index.chain(tensor(number))
    link(index, *((n, n + 1) for n in range(100, 100 + MAX_CHAIN_LENGTH)), (100 + MAX_CHAIN_LENGTH, None))
    with pytest.raises(CorruptError, match="deeper"):
        index.chain(tensor(100))
    assert len(index.chain(tensor(101))) == MAX_CHAIN_LENGTH


def keep(index: Index, snapshot: int, *tensors: int, now: float = 0.0, name: str | None = None) -> None:
    with index.transaction():
        index.store_snapshot(ManifestRecord(tensor(snapshot), 0, 5, 0), PACK, map(tensor, tensors), now)
        if name is not None:
            index.set_name(name, tensor(snapshot), now)


def test_bases_of_needed_deltas_are_kept(index: Index) -> None:
    link(index, (1, 2), (2, 3), (3, None), (4, 3), (5, 6), (6, 5), (7, None))
    keep(index, 50, 1, name="kept")
    keep(index, 51, 4)
    keep(index, 52, 7, now=95.0)
    with index.transaction():
        assert index.drop_unneeded(now=100.0, grace=10.0) == (1, 3)
    assert index.tensors() == [tensor(n) for n in (1, 2, 3, 7)]
    assert index.snapshots() == [tensor(50), tensor(52)]


def test_leases_hold_until_they_end(index: Index) -> None:
    link(index, (1, None))
    keep(index, 50, 1)
    with index.transaction():
        index.set_lease("mine", [tensor(50)], expires=200.0)
        assert index.drop_unneeded(now=199.0, grace=0.0) == (0, 0)
        assert index.drop_unneeded(now=201.0, grace=0.0) == (1, 1)


def test_packs_are_dated_when_nothing_needs_them(index: Index) -> None:
    link(index, (1, None))
    with index.transaction():
        index.retire_packs(5.0)
    assert index.packs()[PACK] == (1000, LOCAL, None)
    keep(index, 50, 1)
    with index.transaction():
        index.drop_unneeded(now=100.0, grace=0.0)
        index.retire_packs(6.0)
        index.retire_packs(7.0)
    assert index.packs()[PACK] == (1000, LOCAL, 6.0)
    with index.transaction():
        index.add_pack(PACK, 1000, LOCAL, now=8.0)  # the same content again
    assert index.packs()[PACK] == (1000, LOCAL, None)


def test_a_transaction_is_all_or_nothing(index: Index) -> None:
    with pytest.raises(RuntimeError), index.transaction():
        index.store_tensor([(segment(1), PACK)])
        raise RuntimeError
    assert index.tensors() == []


def test_a_reader_sees_a_single_moment(index: Index, tmp_path: Path) -> None:
    other = Index(tmp_path / "index.sqlite")
    with index.reading():
        assert index.tensors() == []
        link(other, (1, None))
        assert index.tensors() == []
    assert index.tensors() == [tensor(1)]
    other.close()


def test_lost_tensors_are_missing_until_stored_again(index: Index) -> None:
    link(index, (1, None))
    assert index.missing([tensor(1), tensor(2)]) == [tensor(2)]
    with index.transaction():
        index.mark_lost(tensor(1), "moths")
    assert index.missing([tensor(1)]) == [tensor(1)]
    with pytest.raises(CorruptError, match="moths"):
        index.stored(tensor(1))
    link(index, (1, None))
    assert index.missing([tensor(1)]) == []


@pytest.mark.parametrize(
    "wrong", [b"", b"\1", segment(2).pack(), segment(1).pack()[:-1], ManifestRecord(tensor(1), 0, 5, 0).pack()]
)
def test_records_of_another_tensor_are_refused(index: Index, tmp_path: Path, wrong: bytes) -> None:
    link(index, (1, None))
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        db.execute("UPDATE segments SET record = ?", (wrong,))
    db.close()
    with pytest.raises(CorruptError):
        index.stored(tensor(1))


def test_an_index_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptError, match=r"index\.sqlite.*\n.*rebuild"):
        Index(tmp_path / "index.sqlite")


def test_a_folder_in_place_of_the_index_file(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").mkdir()
    with pytest.raises(RegattaError, match="index"):
        Index(tmp_path / "index.sqlite")


def test_stream_tables_are_read_from_the_index(index: Index) -> None:
    link(index, (1, None))
    (part,) = index.stored(tensor(1)).segments
    assert np.array_equal(part.segment.table, segment(1).table)


_TAKES_ALL = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # what SQLite locks to be alone with a file
except BlockingIOError:
    sys.exit(1)
"""


def test_closing_one_connection_does_not_give_up_the_locks_of_another(tmp_path: Path) -> None:
    """Otherwise another process that closes the file empties the log that the other connection still reads."""
    path = tmp_path / "index.sqlite"

    def is_alone() -> bool:
        return subprocess.run([sys.executable, "-c", _TAKES_ALL, str(path)], check=False).returncode == 0

    first, second = Index(path), Index(path)
    assert first.tensors() == second.tensors() == []
    second.close()
    assert not is_alone()
    third = Index(path)
    third.close()
    assert not is_alone()
    first.close()
    assert is_alone()
