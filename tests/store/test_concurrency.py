"""Several processes and threads at one store."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kill_drill import snapshot_of

from regatta.store.folder import PackBatch
from regatta.store.format.encodings import encoding_named
from regatta.store.store import ParameterStore
from regatta.testing.store import bits_of

PROCESSES = multiprocessing.get_context("spawn")


def put_some(folder: Path, writer: int, count: int) -> list[str]:
    """Snapshots of its own, and one that all have."""
    with ParameterStore.open(folder, threads=1) as store:
        mine = [store.put(snapshot_of(writer, n), reference=f"{writer}/{n}") for n in range(count)]
        return [*mine, store.put(snapshot_of(99, 0), reference=f"{writer}/shared")]


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return {k: bits_of(v) for k, v in found.items()} == {k: bits_of(v) for k, v in expected.items()}


def test_four_processes_write_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=PROCESSES) as pool:
        results = list(pool.map(put_some, [tmp_path] * 4, range(4), [6] * 4))
    with ParameterStore.open(tmp_path) as store:
        assert len({result[-1] for result in results}) == 1
        assert len(store.snapshots()) == 4 * 6 + 1
        assert len(store.references()) == 4 * 7
        for writer, result in enumerate(results):
            assert all(same(store.get(snapshot), snapshot_of(writer, n)) for n, snapshot in enumerate(result[:-1]))
        assert store.fsck("deep").clean
        # All started from the same weights, which are stored once.
        starts = {store.manifest(snapshot).tensors["start"].id for snapshot in store.snapshots()}
        assert len(starts) == 1


def test_threads_share_a_store(tmp_path: Path) -> None:
    with ParameterStore.open(tmp_path, threads=2) as store, ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(lambda n: store.put(snapshot_of(0, n), reference=str(n)), range(12)))
        found = list(pool.map(store.get, ids))
        assert all(same(values, snapshot_of(0, n)) for n, values in enumerate(found))


def test_readers_are_not_disturbed_by_reencoding(tmp_path: Path) -> None:
    """While it is read, the store is archived back and forth and collected without any grace."""
    with ParameterStore.open(tmp_path, threads=2, cache_bytes=0) as store, ParameterStore.open(tmp_path) as other:
        ids = [store.put(snapshot_of(0, n), reference=str(n)) for n in range(4)]
        tensors = [store.manifest(snapshot).tensors["weight"].id for snapshot in ids]
        done = threading.Event()
        reads: list[bool] = []

        def read() -> None:
            while not done.is_set():
                reads.append(all(same(store.get(snapshot), snapshot_of(0, n)) for n, snapshot in enumerate(ids)))

        reader = threading.Thread(target=read)
        reader.start()
        for turn in range(6):
            base = tensors[turn % 4]
            other.reencode({tensor: (encoding_named("subtract").id, base) for tensor in tensors if tensor != base}
                           | {base: (encoding_named(["pcodec", "zstd-planes"][turn % 2]).id, None)})  # fmt: skip
            other.gc(grace=0.0)
        done.set()
        reader.join()
        assert reads
        assert all(reads)


def test_tensors_that_gc_removes_during_a_commit_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer finds a tensor present; before it publishes, the last that needed the tensor goes."""
    with ParameterStore.open(tmp_path) as store, ParameterStore.open(tmp_path) as other:
        other.put({"shared": np.arange(5000.0)})
        seal, collected = PackBatch.seal, []

        def seal_late(packing: PackBatch) -> Any:
            sealed = seal(packing)
            if not collected:
                collected.append(other.gc(grace=0.0))
            return sealed

        monkeypatch.setattr(PackBatch, "seal", seal_late)
        snapshot = store.put({"shared": np.arange(5000.0), "own": np.arange(7.0)}, reference="kept")
        assert collected[0].tensors == 1
        assert np.array_equal(store.get(snapshot)["shared"], np.arange(5000.0))
        assert store.fsck("deep").clean


def test_a_snapshot_deleted_while_it_is_stored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ParameterStore.open(tmp_path) as store, ParameterStore.open(tmp_path) as other:
        gone = other.put({"w": np.arange(3000.0)})
        manifests, collected = store.index.has_snapshot, []

        def look_late(snapshot: str) -> bool:
            found = manifests(snapshot)
            if not collected:
                collected.append(other.gc(grace=0.0))
            return found

        monkeypatch.setattr(store.index, "has_snapshot", look_late)
        assert store.put({"w": np.arange(3000.0)}, reference="kept") == gone
        assert (collected[0].snapshots, collected[0].packs) == (1, 1)
        assert np.array_equal(store.get(gone)["w"], np.arange(3000.0))
        assert store.fsck("deep").clean


def open_and_close(folder: Path) -> int:
    with ParameterStore.open(folder) as store:
        return len(store.snapshots())


def test_many_open_a_new_store_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_and_close, [tmp_path / "new"] * 16)) == [0] * 16
