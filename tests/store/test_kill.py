"""SIGKILL at any moment: nothing that the store promised is lost, and the store is sound."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kill_drill
import pytest
from crash_drill import run_drill

HERE = Path(__file__).parent


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory if possible: a killed process leaves the same files there, and tests are faster."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        yield Path(folder)


def drill(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, kill_drill.__file__, str(folder), str(rounds), str(seed), str(folder / "result")]
    subprocess.run(command, check=True, timeout=600)
    result: dict[str, Any] = json.loads((folder / "result").read_text())
    return result


def kill_operations(folder: Path, every: int) -> dict[str, list[Any]]:
    result: dict[str, list[Any]] = run_drill(HERE / "crash_points.py", folder, every)
    return result


def test_writers_and_an_archiver_are_killed_at_random(tmp_path: Path) -> None:
    result = drill(tmp_path, rounds=8, seed=11)
    assert result["problems"] == []
    assert result["kills"] == 8
    assert result["checked"] > 8
    assert result["promised"] > 20
    assert result["in_archive"] + result["in_reencode"] + result["in_gc"] > 0


def test_a_drill_notices_a_missing_pack(tmp_path: Path) -> None:
    """A test of the drill: it reports a pack that vanished."""
    drill(tmp_path, rounds=1, seed=3)
    for pack in (tmp_path / "store" / "packs").iterdir():
        pack.unlink()
    assert drill(tmp_path, rounds=1, seed=4)["problems"] != []


def test_kill_every_operation_at_some_steps(memory: Path) -> None:
    for operation, (moments, *problems) in kill_operations(memory, every=13).items():
        assert problems == [], operation
        assert moments > 13, operation


def test_kill_the_archiving_of_states_at_some_steps(memory: Path) -> None:
    moments, *problems = run_drill(HERE / "states" / "archive_crash_points.py", memory, every=13)
    assert problems == []
    assert moments > 60


@pytest.mark.slow
def test_kill_every_operation_at_every_step(memory: Path) -> None:
    for operation, (moments, *problems) in kill_operations(memory, every=1).items():
        assert problems == [], operation
        assert moments > 15, operation
