"""Pack files being written: nothing is left of those that cannot be finished."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from regatta.store.folder import PackBatch
from regatta.store.format.pack_file import ManifestRecord

LIMIT_BYTES = 100_000


@pytest.fixture
def small_files() -> Iterator[None]:
    """The system refuses to write more than LIMIT_BYTES to a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_files_behind(tmp_path: Path, small_files: None) -> None:
    piece = bytes(1_000)
    with pytest.raises(OSError, match="too large"), PackBatch(tmp_path, limit=LIMIT_BYTES // 2) as packing:
        packing.add(ManifestRecord("ab" * 32, 0, 60_000, xxh3_64_intdigest(piece)), [piece] * 60)
        assert len(packing.sealed) == 1
        packing.add(ManifestRecord("cd" * 32, 0, 500_000, xxh3_64_intdigest(piece)), [piece] * 500)
    assert not list(tmp_path.iterdir())
