"""gc: what is needed stays, what is not goes, and not before its time."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from regatta.durable import exclusive
from regatta.errors import ConflictError, CorruptError, NotFoundError, UsageError
from regatta.paths import MAINTENANCE_LOCK
from regatta.store.commit import NewSnapshot
from regatta.store.folder import PackBatch
from regatta.store.format.encodings import encoding_named
from regatta.store.maintenance import gc, rewrite
from regatta.store.store import ParameterStore


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 4e9  # later than any file is

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[ParameterStore]:
    with ParameterStore.open(tmp_path / "store", threads=1, clock=clock) as opened:
        yield opened


def weights(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=2000).astype(np.float32)


def packs(store: ParameterStore) -> set[str]:
    return {path.stem for path in store.folder.packs.iterdir()}


def test_named_snapshots_stay(store: ParameterStore, clock: Clock) -> None:
    snapshot = store.put({"w": weights(1)}, reference="kept")
    clock.now += 1e6
    collected = store.gc(grace=0.0)
    assert (collected.snapshots, collected.tensors, collected.packs) == (0, 0, 0)
    assert np.array_equal(store.get(snapshot)["w"], weights(1))


def test_unnamed_snapshots_are_deleted_after_the_grace_period(store: ParameterStore, clock: Clock) -> None:
    snapshot = store.put({"w": weights(1)})
    clock.now += 9
    assert store.gc(grace=10).snapshots == 0
    clock.now += 2
    collected = store.gc(grace=10)  # dropped from the index; the file stays for active readers
    assert (collected.snapshots, collected.tensors, collected.packs) == (1, 1, 0)
    assert len(packs(store)) == 1
    with pytest.raises(NotFoundError):
        store.get(snapshot)
    clock.now += 11
    collected = store.gc(grace=10)
    assert (collected.packs, packs(store)) == (1, set())
    assert collected.bytes > 6000


def test_a_released_snapshot_stays_for_the_grace_period(store: ParameterStore, clock: Clock) -> None:
    snapshot = store.put({"w": weights(1)}, reference="old")
    clock.now += 1000
    store.release("old")
    assert store.gc(grace=10).snapshots == 0
    assert store.snapshots() == [snapshot]
    clock.now += 11
    assert store.gc(grace=10).snapshots == 1


def test_storing_a_snapshot_again_restarts_its_age(store: ParameterStore, clock: Clock) -> None:
    store.put({"w": weights(1)})
    clock.now += 9
    store.put({"w": weights(1)})
    clock.now += 9
    assert store.gc(grace=10).snapshots == 0


def test_tensors_that_others_share_stay(store: ParameterStore, clock: Clock) -> None:
    store.put({"a": weights(1), "b": weights(2)}, reference="going")
    kept = store.put({"x": weights(2)}, reference="staying")
    store.release("going")
    clock.now += 1
    assert store.gc(grace=0).tensors == 1
    assert np.array_equal(store.get(kept)["x"], weights(2))
    assert store.fsck("deep").clean


def test_bases_stay_as_long_as_their_deltas(store: ParameterStore, clock: Clock) -> None:
    ids = [store.put({"w": weights(seed)}, reference=str(seed)) for seed in range(3)]
    tensors = [store.manifest(snapshot).tensors["w"].id for snapshot in ids]
    store.reencode({child: (encoding_named("subtract").id, base) for base, child in itertools.pairwise(tensors)})
    store.release("0")
    store.release("1")
    clock.now += 1
    collected = store.gc(grace=0)
    assert (collected.snapshots, collected.tensors) == (2, 0)
    assert np.array_equal(store.get(ids[2])["w"], weights(2))
    store.reencode({tensors[2]: (encoding_named("pcodec").id, None)})
    assert store.gc(grace=0).tensors == 2
    assert np.array_equal(store.get(ids[2])["w"], weights(2))


def test_a_lease_protects_snapshots_from_gc(store: ParameterStore, clock: Clock) -> None:
    snapshot = store.put({"w": weights(1)})
    with store.lease([snapshot], seconds=100):
        clock.now += 99
        assert store.gc(grace=0).snapshots == 0
    clock.now += 1
    assert store.gc(grace=0).snapshots == 1
    with pytest.raises(NotFoundError), store.lease([snapshot]):
        pass


def test_a_lease_of_a_dead_process_expires(store: ParameterStore, clock: Clock) -> None:
    snapshot = store.put({"w": weights(1)})
    lease = store.lease([snapshot], seconds=100)
    lease.__enter__()
    clock.now += 101
    assert store.gc(grace=0).snapshots == 1


def test_old_encodings_go_and_manifests_move(store: ParameterStore, clock: Clock) -> None:
    ids = [store.put({"w": weights(seed)}, reference=str(seed)) for seed in range(5)]
    store.reencode({store.manifest(i).tensors["w"].id: (encoding_named("pcodec").id, None) for i in ids})
    clock.now += 1
    collected = store.gc(grace=0)
    assert (collected.packs, collected.copied_packs, len(packs(store))) == (5, 0, 1)
    assert [np.array_equal(store.get(i)["w"], weights(seed)) for seed, i in enumerate(ids)] == [True] * 5
    assert store.fsck("deep").clean
    clock.now += 1
    again = store.gc(grace=0)
    assert (again.copied_packs, again.packs) == (0, 0)  # nothing left to do


def test_what_is_left_of_a_pack_file_is_copied(store: ParameterStore, clock: Clock) -> None:
    """A fifth of a pack file is no longer needed: after gc only the rest takes space."""
    kept, gone = ({f"w{number}": weights(10 * first + number) for number in range(first)} for first in (4, 1))
    ids = store.put_all([NewSnapshot(kept, reference="kept"), NewSnapshot(gone, reference="gone")])
    before = sum(store.index.used_bytes().values())
    store.release("gone")
    clock.now += 1
    collected = store.gc(grace=0)
    assert (collected.copied_packs, collected.packs, len(packs(store))) == (1, 1, 1)
    left = sum(path.stat().st_size for path in store.folder.packs.iterdir())
    assert left < 0.85 * before
    assert all(np.array_equal(value, kept[name]) for name, value in store.get(ids[0]).items())
    assert store.fsck("deep").clean


def test_small_pack_files_are_not_copied_again_and_again(store: ParameterStore) -> None:
    """Header and trailer are a large part of a pack file with one number, and are not unneeded content."""
    store.put({"w": np.float32(1)}, reference="kept")
    assert store.gc(grace=0).copied_packs == 0


def test_a_lost_tensor_that_is_stored_again_while_gc_copies_it(
    store: ParameterStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old segment, a delta to a lost base, must not take the place of the new one."""
    base, ids = weights(1), {}
    for name, value in {"base": base, "delta": base + np.float32(1e-3), "gone": weights(2)}.items():
        ids[name] = store.manifest(store.put({"w": value}, reference=name)).tensors["w"].id
    store.reencode({ids["delta"]: (encoding_named("subtract").id, ids["base"]), ids["gone"]: (0, None)})
    with store.index.transaction():
        store.index.mark_lost(ids["delta"], "its base is lost")
    store.release("gone")
    clock.now += 1

    def copy_out(copying: ParameterStore, pack: str, packing: PackBatch) -> None:
        rewrite.copy_out(copying, pack, packing)
        with ParameterStore.open(store.path, threads=1, clock=clock) as another:
            another.put({"w": base + np.float32(1e-3)}, reference="again")

    monkeypatch.setattr(gc, "copy_out", copy_out)
    assert store.gc(grace=0).copied_packs == 1
    assert store.fsck("deep").clean
    assert np.array_equal(store.get(ids["delta"]), base + np.float32(1e-3))


def test_a_full_disk_keeps_no_unneeded_pack_file(
    store: ParameterStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies need room, so what is not needed at all is deleted before."""
    both = [NewSnapshot({"w": weights(seed)}, reference=str(seed)) for seed in (1, 2)]
    kept = store.put_all(both)[0]
    needed = packs(store)
    store.put({"w": weights(3)}, reference="3")
    (unneeded,) = packs(store) - needed
    store.release("2")
    store.release("3")
    clock.now += 1

    def copy_out(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(gc, "copy_out", copy_out)
        assert store.gc(grace=0).copied_packs == 0  # the copies wait until there is room
    assert not store.folder.path(unneeded).exists()
    assert store.gc(grace=0).copied_packs == 1
    assert np.array_equal(store.get(kept)["w"], weights(1)) and store.fsck("deep").clean


def test_old_files_that_were_never_listed_are_deleted(store: ParameterStore, clock: Clock) -> None:
    kept = store.put({"w": weights(1)}, reference="kept")
    orphan, half = store.folder.path("ab" * 32), store.folder.tmp / "1-left.pack"
    for path in (orphan, half):
        path.write_bytes(b"left by a killed process")
        os.utime(path, (clock.now - 5, clock.now - 5))
    strange = store.folder.packs / "README"
    strange.write_bytes(b"not ours")
    store.gc(grace=10)
    assert orphan.exists()
    assert half.exists()
    store.gc(grace=4)
    assert (orphan.exists(), half.exists(), strange.exists()) == (False, False, True)
    assert np.array_equal(store.get(kept)["w"], weights(1))


@pytest.mark.parametrize("archived", [False, True])
def test_nothing_is_deleted_while_a_needed_tensor_is_not_in_its_pack(store: ParameterStore, archived: bool) -> None:
    """A damaged index may name another pack file, or one that can no longer be read. Then gc would delete the copy."""
    kept, other = (store.put({"w": weights(seed)}, reference=str(seed)) for seed in (1, 2))
    tensor, foreign = (store.manifest(snapshot).tensors["w"].id for snapshot in (kept, other))
    if archived:  # the old form is still in its pack file
        store.reencode({tensor: (encoding_named("raw").id, None)})
        path = store.folder.path(store.index.stored(tensor).segments[0].pack)
        path.write_bytes(path.read_bytes()[:-1])
    else:
        elsewhere = store.index.stored(foreign).segments[0].pack
        with store.index.transaction():
            values = bytes.fromhex(elsewhere), bytes.fromhex(tensor)
            store.index._run("UPDATE segments SET pack = ? WHERE tensor = ?", *values)
    before = packs(store)
    with pytest.raises(CorruptError, match="does not hold it as the index says"):
        store.gc(grace=0.0)
    assert packs(store) == before
    store.close()
    ParameterStore.rebuild(store.path)
    with ParameterStore.open(store.path, threads=1) as again:
        assert again.gc(grace=0.0).packs == int(archived)
        assert np.array_equal(again.get(kept)["w"], weights(1)) and np.array_equal(again.get(other)["w"], weights(2))


def test_a_pack_that_is_stored_again_is_not_deleted(store: ParameterStore, clock: Clock) -> None:
    """The same content has the same name: what gc is about to delete may be what a writer has just placed."""
    store.put({"w": weights(1)})
    clock.now += 11
    store.gc(grace=10)
    (pack,) = packs(store)
    snapshot = store.put({"w": weights(1)}, reference="again")
    assert packs(store) == {pack}
    clock.now += 100
    store.gc(grace=10)
    assert np.array_equal(store.get(snapshot)["w"], weights(1))


def test_maintenance_operations_exclude_each_other(store: ParameterStore) -> None:
    with exclusive(store.path / MAINTENANCE_LOCK, "a test"):
        for work in (store.gc, store.fsck, lambda wait: store.reencode({}, wait=wait)):
            with pytest.raises(ConflictError, match=f"a test, process {os.getpid()}"):
                work(wait=False)


def test_grace_is_not_negative(store: ParameterStore) -> None:
    with pytest.raises(UsageError):
        store.gc(grace=-1)
