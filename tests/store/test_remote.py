"""Packs elsewhere: pushed, read in part, brought back; and a remote that lies or is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from numpy.typing import NDArray

from regatta.errors import CorruptError, RegattaError, UsageError
from regatta.store.format.encodings import CHUNK_WORDS, encoding_named
from regatta.store.index import LOCAL, REMOTE
from regatta.store.remote import Remote
from regatta.store.store import ParameterStore


class CountingFileSystem(MemoryFileSystem):
    """Files in memory; records the requests to it."""

    protocol = "counted"
    store: dict[str, Any] = {}  # noqa: RUF012 (as fsspec has it)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    cachable = True
    asked: list[tuple[int, int]] = []  # noqa: RUF012
    away = False
    writes_wrong = False

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, **options: Any) -> Any:
        type(self).asked += zip(starts, ends, strict=True)
        if self.away:
            raise ConnectionError("no answer")
        return super().cat_ranges(paths, starts, ends, **options)

    def put_file(self, lpath: Any, rpath: Any, **options: Any) -> Any:
        super().put_file(lpath, rpath, **options)
        if self.writes_wrong:
            self.pipe_file(rpath, self.cat_file(rpath)[:-1] + b"?")


fsspec.register_implementation("counted", CountingFileSystem)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParameterStore]:
    CountingFileSystem.store.clear()
    CountingFileSystem.asked.clear()
    CountingFileSystem.away = CountingFileSystem.writes_wrong = False
    with ParameterStore.open(tmp_path / "here", remote="counted://bucket/weights", threads=2) as opened:
        yield opened


def weights(seed: int = 0, count: int = CHUNK_WORDS + 500) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def places(store: ParameterStore) -> list[int]:
    return sorted(place for _, place, retired in store.index.packs().values() if retired is None)


def test_pushed_once(store: ParameterStore) -> None:
    first = store.put({"w": weights(1)}, reference="1")
    assert store.push([first]) == 1
    store.put({"w": weights(2)}, reference="2")
    assert store.push() == 1
    assert store.push() == 0
    assert places(store) == [LOCAL | REMOTE] * 2
    assert store.remote is not None
    assert {pack for pack, _ in store.remote.packs()} == set(store.index.packs())


def test_low_planes_can_be_only_at_the_remote(store: ParameterStore, tmp_path: Path) -> None:
    snapshot = store.put({"w": weights(), "n": np.arange(5)}, reference="1")
    tensor = store.manifest(snapshot).tensors["w"].id
    whole = store.entry(tensor).stored_bytes
    freed = store.offload([snapshot], keep_planes=2)
    entry = store.entry(tensor)
    assert (entry.stored_bytes, entry.remote_bytes) == (whole, freed)
    assert freed > 0.55 * whole
    store.gc(grace=0.0)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "here" / "packs").iterdir())
    assert on_disk < 0.45 * whole
    assert store.fsck("deep").clean
    # Local planes need no remote.
    CountingFileSystem.asked.clear()
    CountingFileSystem.away = True
    lower, upper = store.get(tensor, planes=2).bounds
    assert ((lower <= weights()) & (weights() <= upper)).all()
    assert np.array_equal(store.get(snapshot, ["n"])["n"], np.arange(5))
    assert CountingFileSystem.asked == []
    with pytest.raises(RegattaError, match=r"no answer[\s\S]*[Ll]eading planes"):
        store.get(tensor)
    # The rest is one range of one file.
    CountingFileSystem.away = False
    CountingFileSystem.asked.clear()
    assert np.array_equal(store.get(tensor), weights())
    assert [end - start for start, end in CountingFileSystem.asked] == [freed]
    CountingFileSystem.asked.clear()
    store.get(tensor, planes=3)
    assert sum(end - start for start, end in CountingFileSystem.asked) < 0.51 * freed
    assert store.offload([snapshot], keep_planes=2) == 0


def test_offloaded_twice_deeper(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    first = store.offload([snapshot], keep_planes=3)
    second = store.offload([snapshot], keep_planes=1)
    assert first > 0
    assert second == 0  # what is elsewhere already stays as it is
    assert np.array_equal(store.get(snapshot)["w"], weights())


def test_encodings_that_are_not_progressive_stay_here(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    store.reencode({store.manifest(snapshot).tensors["w"].id: (encoding_named("pcodec").id, None)})
    assert store.offload([snapshot], keep_planes=1) == 0
    assert set(places(store)) == {LOCAL}


def test_types_without_further_planes_stay_here(store: ParameterStore) -> None:
    snapshot = store.put({"half": weights().astype(np.float16), "byte": np.arange(2000, dtype=np.uint8)})
    packs = store.index.packs()
    assert store.offload([snapshot], keep_planes=2) == 0
    assert store.index.packs() == packs


def test_deltas_are_offloaded_with_their_bases(store: ParameterStore) -> None:
    one, two = store.put({"w": weights(1)}, reference="1"), store.put({"w": weights(1) + 1e-4}, reference="2")
    base, child = (store.manifest(snapshot).tensors["w"].id for snapshot in (one, two))
    store.reencode({child: (encoding_named("subtract-planes").id, base)})
    store.offload([two], keep_planes=1)
    assert store.entry(base).remote_bytes > 0
    assert store.entry(child).remote_bytes > 0
    CountingFileSystem.asked.clear()
    assert store.get(child, planes=1).planes == 1
    assert CountingFileSystem.asked == []
    assert np.array_equal(store.get(child), weights(1) + np.float32(1e-4))


def test_recalled_packs_are_local_again(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    store.offload([snapshot], keep_planes=1)
    assert store.recall([snapshot]) == 1
    assert store.recall([snapshot]) == 0
    CountingFileSystem.away = True
    assert np.array_equal(store.get(snapshot)["w"], weights())
    store.gc(grace=0.0)
    assert store.fsck("deep").clean


def test_planes_are_dropped_only_after_the_remote_has_them(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    CountingFileSystem.writes_wrong = True
    for work in (lambda: store.offload([snapshot], keep_planes=1), store.push):
        with pytest.raises(CorruptError, match=r"pushed.*returned"):
            work()
    assert store.entry(store.manifest(snapshot).tensors["w"].id).remote_bytes == 0
    assert places(store) == [LOCAL]
    assert store.fsck("deep").clean


def damage_remote(how: str) -> None:
    for path in list(CountingFileSystem.store):
        file = CountingFileSystem.store[path]
        data = file.getvalue()
        if how == "gone":
            del CountingFileSystem.store[path]
        else:
            file.seek(0)
            file.truncate()
            file.write(data[: len(data) // 2] if how == "cut" else data[:50] + bytes([data[50] ^ 1]) + data[51:])


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_a_remote_without_a_pack_is_reported(store: ParameterStore, how: str) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    store.offload([snapshot], keep_planes=1)
    store.gc(grace=0.0)
    damage_remote(how)
    with pytest.raises(CorruptError, match="counted://bucket/weights"):
        store.get(snapshot)
    assert not store.fsck("checksums").clean
    with pytest.raises(CorruptError):
        store.recall([snapshot])
    findings = store.fsck("checksums", repair=True)
    assert findings.lost
    store.put({"w": weights()})
    assert np.array_equal(store.get(snapshot)["w"], weights())
    assert store.fsck("deep").clean


def test_an_unreachable_remote_is_not_reported_as_loss(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    store.offload([snapshot], keep_planes=1)
    CountingFileSystem.away = True
    findings = store.fsck("deep", repair=True)
    assert any("no answer" in problem for problem in findings.problems)
    assert findings.lost == ()
    CountingFileSystem.away = False
    assert store.fsck("deep").clean
    assert np.array_equal(store.get(snapshot)["w"], weights())


def test_the_remote_is_remembered(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()}, reference="1")
    store.offload([snapshot], keep_planes=1)
    store.close()
    with ParameterStore.open(store.path) as again:
        assert np.array_equal(again.get(snapshot)["w"], weights())


def test_without_a_remote(tmp_path: Path) -> None:
    with ParameterStore.open(tmp_path) as store:
        snapshot = store.put({"w": weights(count=10)})
        for work in (store.push, lambda: store.offload([snapshot], 1), lambda: store.recall([snapshot])):
            with pytest.raises(UsageError, match="remote"):
                work()
    with pytest.raises(RegattaError, match="nosuch"):
        Remote("nosuch://x")


def test_at_least_one_plane_stays(store: ParameterStore) -> None:
    with pytest.raises(UsageError, match="one plane"):
        store.offload([store.put({"w": weights()})], keep_planes=0)


def test_neighbouring_ranges_take_one_request(store: ParameterStore) -> None:
    store.put({"w": weights()})
    store.push()
    remote = store.remote
    assert remote is not None
    ((pack, size),) = remote.packs()
    data = store.folder.path(pack).read_bytes()
    CountingFileSystem.asked.clear()
    wanted = [(500_000, 10), (0, 16), (16, 100), (500_010, 7), (200, 0)]
    assert [bytes(view) for view in remote.read(pack, wanted)] == [data[at : at + length] for at, length in wanted]
    assert CountingFileSystem.asked == [(0, 200), (500_000, 500_017)]
    for at, length in [(size - 5, 10), (size + 10, 4)]:
        with pytest.raises(CorruptError, match=pack):
            remote.read(pack, [(at, length)])


def test_a_local_folder_can_be_a_remote(tmp_path: Path) -> None:
    with ParameterStore.open(tmp_path / "here", remote=str(tmp_path / "there")) as store:
        snapshot = store.put({"w": weights()}, reference="1")
        store.offload([snapshot], keep_planes=2)
        assert np.array_equal(store.get(snapshot)["w"], weights())
        assert [path.suffix for path in (tmp_path / "there" / "packs").iterdir()] == [".pack"]
