"""A flipped bit anywhere in a repository: no wrong answer passes a deep check, and a repair mends or names the loss."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import flip_bits
import pytest

MENDED = ["catalog", "catalog-wal", "index", "index-wal", "versions.log"]  # what a repair restores in any case


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as made:
        yield Path(made)


def check(folder: Path, target: str, first: int, count: int) -> None:
    result = flip_bits.main(folder, target, first, count)
    assert result["wrong"] == []
    assert target not in MENDED or not result["lost"], result["examples"]


@pytest.mark.parametrize("target", flip_bits.TARGETS)
def test_no_flipped_bit_passes_for_the_truth(folder: Path, target: str) -> None:
    check(folder, target, first=0, count=20)


@pytest.mark.slow
@pytest.mark.parametrize("target", flip_bits.TARGETS)
def test_no_flipped_bit_of_many_passes_for_the_truth(folder: Path, target: str) -> None:
    check(folder, target, first=1000, count=600)
