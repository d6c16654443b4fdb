from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.data import Dataset
from regatta.data.availability import place_partitions
from regatta.errors import DataError, UsageError

W3 = ["w0", "w1", "w2"]


@given(st.integers(1, 20), st.integers(1, 20))
def test_each_partition_is_held_and_each_worker_holds_one(partitions: int, workers: int) -> None:
    names = [f"w{i}" for i in range(workers)]
    held = place_partitions([Path(f"/p{j}") for j in range(partitions)], {}, names)
    assert list(held) == names
    assert {j for parts in held.values() for j in parts} == set(range(partitions))
    assert all(held[f"w{j % workers}"].count(j) == 1 for j in range(partitions))
    assert all(parts for parts in held.values()) or workers < partitions
    if workers > partitions:
        assert all(held[f"w{w}"] == (w % partitions,) for w in range(workers))


def test_without_partitions_workers_hold_none() -> None:
    assert place_partitions([], {}, W3) == {"w0": (), "w1": (), "w2": ()}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{name}.npz" for name in ("a", "b", "c", "e")]
    for path in found:
        np.savez(path, x=np.zeros((4, 2)), y=np.zeros(4))
    return found


def test_the_map_decides_by_number_and_by_name(paths: list[Path]) -> None:
    data = Dataset.from_paths(
        paths[:3], paths[3:], availability={paths[0]: [0, "w2"], str(paths[1]): ["w1", 1], paths[2]: [2]}
    )
    train, held_out = data.holders(W3)
    assert train == {"w0": (0,), "w1": (1,), "w2": (0, 2)}
    assert held_out == {"w0": (0,), "w1": (0,), "w2": (0,)}, "files that the map does not mention are dealt out"


def test_the_map_may_have_relative_paths(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paths[0].parent)
    data = Dataset.from_paths(["a.npz", paths[1]], availability={"./a.npz": [1], "b.npz": [0]})
    assert data.holders(["w0", "w1"])[0] == {"w0": (1,), "w1": (0,)}


def test_a_partition_without_a_holder_is_refused(paths: list[Path]) -> None:
    data = Dataset.from_paths(paths[:2], availability={paths[0]: [0]})
    with pytest.raises(DataError, match="No worker holds") as error:
        data.holders(W3)
    assert error.value.place == str(paths[1])
    with pytest.raises(DataError, match="No worker holds"):
        Dataset.from_paths(paths[:1], availability={paths[0]: []}).holders(W3)


def test_unknown_workers_are_refused(paths: list[Path]) -> None:
    with pytest.raises(UsageError, match="worker 'W1x'") as error:
        Dataset.from_paths(paths[:1], availability={paths[0]: ["W1x"]}).holders(W3)
    assert error.value.candidates[0] == "w1"
    for number in (3, -1):
        with pytest.raises(UsageError, match=f"worker number {number}"):
            Dataset.from_paths(paths[:1], availability={paths[0]: [number]}).holders(W3)
    with pytest.raises(UsageError, match="no workers"):
        Dataset.from_paths(paths[:1]).holders([])


def test_an_invalid_map_is_refused(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a partition") as error:
        Dataset.from_paths(paths[:1], availability={tmp_path / "aa.npz": [0]})
    assert error.value.candidates == (str(paths[0]),)
    for workers in ("w0", [1.5], [True], [None]):
        with pytest.raises(UsageError, match="give a list of numbers or names"):
            Dataset.from_paths(paths[:1], availability={paths[0]: workers})  # type: ignore[dict-item]
