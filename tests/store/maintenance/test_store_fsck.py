"""fsck: it finds what is wrong at the depth where it can, moves it aside, and mends what it can."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from regatta.errors import ConflictError, CorruptError, NotFoundError, UsageError
from regatta.store.format.encodings import encoding_named
from regatta.store.format.tensor_id import as_tensor
from regatta.store.index import LOCAL
from regatta.store.maintenance import rebuild_index
from regatta.store.maintenance.fsck import DEPTHS
from regatta.store.maintenance.repair import Repair
from regatta.store.store import ParameterStore
from regatta.store.writer import TensorEncoder


def weights(seed: int) -> NDArray[np.float32]:
    start = np.random.default_rng(0).normal(size=4000)
    return (start + np.random.default_rng(seed).normal(0, 1e-3, 4000)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParameterStore]:
    """Three snapshots, each a delta to the one before; the remote is there and empty."""
    with ParameterStore.open(tmp_path / "here", remote=str(tmp_path / "there"), threads=1) as opened:
        ids = [opened.put({"w": weights(seed), "n": np.arange(seed + 3)}, reference=str(seed)) for seed in range(3)]
        tensors = [opened.manifest(snapshot).tensors["w"].id for snapshot in ids]
        opened.reencode({child: (encoding_named("subtract").id, base) for base, child in itertools.pairwise(tensors)})
        yield opened


def tensor(store: ParameterStore, name: str) -> str:
    return store.manifest(store.references()[name]).tensors["w"].id


def pack_of(store: ParameterStore, what: str) -> Path:
    return store.folder.path(store.index.stored(what).segments[0].pack)


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def flip_at(offset: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + bytes([data[offset] ^ 16]) + data[offset + 1 :]


def stream_offset(store: ParameterStore, what: str) -> int:
    return store.index.stored(what).segments[0].segment.offset


def all_there(store: ParameterStore, *names: str) -> bool:
    found = {name: store.get(store.references()[name])["w"] for name in names}
    return all(np.array_equal(found[name], weights(int(name))) for name in names)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_sound_store(store: ParameterStore, depth: str) -> None:
    findings = store.fsck(depth)  # type: ignore[arg-type]
    assert findings.clean
    assert (findings.tensors, findings.snapshots) == (6, 3)
    assert findings.packs >= 2


def test_depths(store: ParameterStore) -> None:
    """A flipped bit in a stream is found by checksums, a missing file by a look at the folder."""
    what = tensor(store, "2")
    change(pack_of(store, what), flip_at(stream_offset(store, what)))
    assert store.fsck("structure").clean
    found = store.fsck("checksums").problems
    assert any(what in problem for problem in found)
    assert any(pack_of(store, what).stem in problem for problem in found)
    with pytest.raises(UsageError, match="deep"):
        store.fsck("deeper")  # type: ignore[arg-type]


def damage(kind: str, store: ParameterStore, what: str) -> None:
    path = pack_of(store, what)
    if kind == "gone":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        change(path, lambda data: data[:-7])
    elif kind == "header":
        change(path, flip_at(2))
    elif kind == "footer":
        change(path, flip_at(path.stat().st_size - 60))
    elif kind == "stream":
        change(path, flip_at(stream_offset(store, what)))
    store.folder.forget(path.stem)


KINDS = ["gone", "empty", "cut", "header", "footer", "stream"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_pack_is_replaced_from_the_remote(store: ParameterStore, kind: str) -> None:
    store.push()
    what = tensor(store, "1")
    damage(kind, store, what)
    findings = store.fsck("checksums", repair=True)
    assert not findings.clean
    assert findings.lost == ()
    assert any("replaced" in line for line in findings.repaired)
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")
    assert len(list(store.folder.quarantine.glob("*"))) == (kind != "gone")


@pytest.mark.parametrize("kind", ["cut", "header", "footer"])
def test_content_is_copied_out_of_a_pack_with_a_damaged_footer(store: ParameterStore, kind: str) -> None:
    """The index knows where everything was."""
    store.gc(grace=0.0)
    path = pack_of(store, tensor(store, "0"))
    damage(kind, store, tensor(store, "0"))
    findings = store.fsck("structure", repair=True)
    assert findings.lost == ()
    assert not path.exists()
    assert len(list(store.folder.quarantine.glob("*"))) == 1
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


@pytest.mark.parametrize("kind", ["gone", "empty", "stream"])
def test_without_a_remote_intact_tensors_are_saved(store: ParameterStore, kind: str) -> None:
    """The base of all is damaged: the deltas to it go with it, what else is in its pack does not."""
    store.gc(grace=0.0)
    base, path = tensor(store, "0"), pack_of(store, tensor(store, "0"))
    small, deltas = store.manifest(store.references()["0"]).tensors["n"].id, {tensor(store, "1"), tensor(store, "2")}
    assert pack_of(store, small) == path
    damage(kind, store, base)
    findings = store.fsck("checksums", repair=True)
    assert not path.exists()
    lost = {line.split()[1].rstrip(":") for line in findings.lost if line.startswith("Tensor")}
    assert lost == deltas | ({base} if kind == "stream" else {base, small})
    for name in "12":
        with pytest.raises(CorruptError, match="lost"):
            store.get(store.references()[name])
        assert np.array_equal(store.get(store.references()[name], ["n"])["n"], np.arange(int(name) + 3))
    assert not store.fsck("structure").clean  # it goes on saying so
    # Storing the lost one again brings back all that hangs on it.
    store.put({"w": weights(0), "n": np.arange(3)})
    store.fsck("structure", repair=True)
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


def test_an_old_pack_used_by_a_repair_is_needed_again(store: ParameterStore) -> None:
    damage("gone", store, tensor(store, "2"))
    store.fsck("structure", repair=True)
    store.gc(grace=0.0)
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


def test_a_tensor_is_found_in_another_pack_of_the_remote(store: ParameterStore) -> None:
    """The remote never had this pack, but an earlier one with the same tensor."""
    store.push()
    store.reencode({tensor(store, "1"): (encoding_named("pcodec").id, None)})
    damage("gone", store, tensor(store, "1"))
    findings = store.fsck("structure", repair=True)
    assert findings.lost == ()
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


def test_a_tensor_is_found_in_an_older_pack_here(store: ParameterStore) -> None:
    """Before gc, the pack that a tensor was moved out of is there still."""
    damage("gone", store, tensor(store, "2"))
    findings = store.fsck("structure", repair=True)
    assert findings.lost == ()
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


def store_wrong_content(store: ParameterStore, name: str) -> Path:
    """A pack whose checksums are right and whose content is another tensor's."""
    what = tensor(store, name)
    encoded = TensorEncoder(None).encode(as_tensor("w", weights(77)), what, encoding_named("zstd-planes"))
    with store.folder.packing() as packing:
        encoded.write(packing)
        (sealed,) = packing.seal()
        with store.index.transaction():
            store.folder.place([sealed])
            store.index.add_pack(sealed.id, sealed.bytes, LOCAL, 0.0)
            store.index.store_tensor(packing.segments()[what])
            store.index.retire_packs(0.0)
    return store.folder.path(sealed.id)


def test_only_recreating_finds_wrong_content(store: ParameterStore) -> None:
    path = store_wrong_content(store, "2")
    assert store.fsck("checksums").clean
    findings = store.fsck("deep", repair=True)
    assert any(tensor(store, "2") in problem for problem in findings.problems)
    assert not path.exists()
    assert [aside.name.split(".")[0] for aside in store.folder.quarantine.glob("*")] == [path.stem]
    assert store.fsck("deep").clean  # the pack that it was in before is there still
    assert all_there(store, "0", "1", "2")


def test_wrong_content_that_is_nowhere_else_is_lost(store: ParameterStore) -> None:
    path, what = store_wrong_content(store, "2"), tensor(store, "2")
    store.gc(grace=0.0)
    findings = store.fsck("deep", repair=True)
    assert [line for line in findings.lost if what in line]
    assert not path.exists()
    with pytest.raises(CorruptError, match="lost"):
        store.get(what)
    assert all_there(store, "0", "1")
    store.put({"w": weights(2)})
    assert np.array_equal(store.get(what), weights(2))
    assert store.fsck("deep").clean


def test_a_tensor_stored_again_during_a_repair_is_not_lost(
    store: ParameterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.gc(grace=0.0)
    base = tensor(store, "0")
    damage("gone", store, base)
    assert store.fsck("structure", repair=True).lost
    publish = Repair._publish

    def publish_late(repair: Repair, *args: Any) -> None:
        store.put({"w": weights(0), "n": np.arange(3)})
        publish(repair, *args)

    monkeypatch.setattr(Repair, "_publish", publish_late)
    store.fsck("structure", repair=True)
    monkeypatch.undo()
    assert np.array_equal(store.get(base), weights(0))
    store.fsck("structure", repair=True)  # the deltas to it had nothing to hold on to just then
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


def test_storing_a_snapshot_again_restores_its_lost_manifest(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights(9)}, reference="9")
    damage("gone", store, tensor(store, "9"))
    findings = store.fsck("structure", repair=True)
    assert any(snapshot in line for line in findings.lost)
    with pytest.raises(CorruptError, match=snapshot):
        store.manifest(snapshot)
    assert store.put({"w": weights(9)}) == snapshot
    assert all_there(store, "9")
    assert store.fsck("deep").clean


def execute(store: ParameterStore, statement: str) -> None:
    with sqlite3.connect(store.index.path) as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE tensors SET base = tensor WHERE base IS NOT NULL", "do not belong together|cycle"),
        ("DELETE FROM tensors WHERE tensor IN (SELECT base FROM tensors)", "is not there"),
        ("UPDATE tensors SET encoding = 999", "999"),
        ("DELETE FROM members", "other tensors"),
        ("DELETE FROM snapshots", "refers to"),
        ("UPDATE packs SET bytes = bytes + 1", "bytes, not"),
        ("DELETE FROM segments", "no pack holds it"),
        ("UPDATE segments SET record = zeroblob(20)", "kind 0"),
    ],
)
def test_a_wrong_index_is_detected(store: ParameterStore, statement: str, message: str) -> None:
    execute(store, statement)
    findings = store.fsck("structure")
    assert not findings.clean
    assert any(re.search(message, problem) for problem in findings.problems), findings.problems


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tensors SET encoding = 999",
        "DELETE FROM segments",
        "UPDATE segments SET record = zeroblob(20)",
        "DELETE FROM members",
    ],
)
def test_a_wrong_index_is_corrected_from_the_packs(store: ParameterStore, statement: str) -> None:
    execute(store, statement)
    assert store.fsck("structure", repair=True).lost == ()
    assert store.fsck("deep").clean
    assert all_there(store, "0", "1", "2")


@pytest.mark.parametrize("how", ["gone", "garbage", "cut"])
def test_an_index_is_rebuilt_from_the_packs(store: ParameterStore, how: str) -> None:
    names, path = store.references(), store.path
    store.close()
    index = path / "index.sqlite"
    index.unlink() if how == "gone" else change(index, lambda data: b"x" * 5000 if how == "garbage" else data[:5000])
    for leftover in ("-wal", "-shm"):
        index.with_name(index.name + leftover).unlink(missing_ok=True)
    with pytest.raises(CorruptError, match="rebuild"), ParameterStore.open(path) as broken:
        broken.fsck()
    rebuilt = ParameterStore.rebuild(path)
    assert (rebuilt.tensors, rebuilt.snapshots) == (6, 3)
    with ParameterStore.open(path) as opened:
        assert opened.fsck("deep").clean
        assert sorted(opened.references().values()) == sorted(names.values())
        for name, snapshot in names.items():
            assert np.array_equal(opened.get(snapshot)["w"], weights(int(name)))
        opened.gc(grace=0.0)
        assert opened.fsck("deep").clean


def test_a_rebuild_keeps_names_that_can_be_read_and_the_remote(store: ParameterStore, tmp_path: Path) -> None:
    names, path = store.references(), store.path
    store.set_remote(str(tmp_path / "there"))
    store.close()
    ParameterStore.rebuild(path)
    with ParameterStore.open(path) as opened:
        assert opened.references() == names
        assert opened.index.setting("remote") == str(tmp_path / "there")


def test_a_rebuild_that_was_interrupted_has_to_be_repeated(
    store: ParameterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.path
    store.close()
    monkeypatch.setattr(rebuild_index, "_fill", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ParameterStore.rebuild(path)
    monkeypatch.undo()
    for read_only in (False, True):
        with pytest.raises(CorruptError, match="rebuild"):
            ParameterStore.open(path, read_only=read_only)
    assert ParameterStore.rebuild(path).snapshots == 3
    with ParameterStore.open(path) as opened:
        assert opened.fsck("deep").clean


def test_another_shape_in_the_index_is_compared_with_the_manifest(tmp_path: Path) -> None:
    """The bytes of a constant tensor do not tell its shape."""
    with ParameterStore.open(tmp_path) as store:
        snapshot = store.put({"zeros": np.zeros((4, 6), "f4")})
        (tensor,) = store.index.tensors()
        record = bytearray(store.index.stored(tensor).segments[0].segment.pack())
        at = record.index((6).to_bytes(8, "little"))
        record[at] = 7
        with store.index.transaction():
            store.index._run("UPDATE segments SET record = ?", bytes(record))
        with pytest.raises(CorruptError, match=r"as F32 \[4, 7\].*F32 \[4, 6\]"):
            store.get(snapshot)
        assert not store.fsck().clean
        assert store.fsck(repair=True).repaired and store.get(snapshot)["zeros"].shape == (4, 6)


def test_text_of_the_index_that_is_not_text_is_an_error_of_the_store(tmp_path: Path) -> None:
    with ParameterStore.open(tmp_path) as store:
        store.put({"w": np.zeros(3)}, reference="reference/1")
    path = tmp_path / "index.sqlite"
    for found, damage in ((b"reference/1", b"refe\xffence/1"), (b"CREATE TABLE packs", b"CREATE TABLE \xffacks")):
        content = path.read_bytes()
        assert found in content
        path.write_bytes(content.replace(found, damage))
        with pytest.raises(CorruptError), ParameterStore.open(tmp_path) as store:
            store.fsck()
        path.write_bytes(content)


def test_a_table_whose_name_is_no_text_by_now_is_an_error_of_the_store(store: ParameterStore) -> None:
    """SQLite names the table in its message, as bytes that Python cannot decode."""
    db = sqlite3.connect(store.path / "index.sqlite")
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET name = CAST(x'70ff' AS TEXT), sql = 'no table' WHERE name = 'packs'")
    db.execute("PRAGMA schema_version = 999")
    db.commit()
    db.close()
    with pytest.raises(CorruptError, match="cannot be read"):
        store.index._all("SELECT 1 FROM packs")


def test_no_rebuild_while_another_process_has_the_store_open(store: ParameterStore, tmp_path: Path) -> None:
    with pytest.raises(ConflictError):
        ParameterStore.rebuild(store.path)
    with pytest.raises(NotFoundError):
        ParameterStore.rebuild(tmp_path / "nowhere")


def test_unlisted_packs_are_not_a_problem(store: ParameterStore) -> None:
    store.folder.path("ab" * 32).write_bytes(b"left by a killed process")
    (store.folder.tmp / "1-left.pack").write_bytes(b"also")
    assert store.fsck("deep").clean


def test_a_repair_of_a_sound_store_changes_nothing(store: ParameterStore) -> None:
    before = set(store.folder.packs.iterdir()), list(store.entries())
    findings = store.fsck("deep", repair=True)
    assert (findings.clean, findings.repaired, findings.lost) == (True, (), ())
    assert (set(store.folder.packs.iterdir()), list(store.entries())) == before


@pytest.mark.parametrize("damage", ["index", "pack"])
def test_a_copy_with_the_name_of_a_bad_pack_stays(store: ParameterStore, damage: str) -> None:
    """The name is the hash of the content, so a copy of all that is in a bad pack has the same."""
    store.put({"w": weights(9)}, reference="9")
    path = pack_of(store, tensor(store, "9"))
    if damage == "index":
        store.index._run("UPDATE packs SET bytes = bytes + 8 WHERE pack = ?", bytes.fromhex(path.stem))
    else:
        change(path, lambda data: data + b"more")
    findings = store.fsck("deep", repair=True)
    assert findings.problems and findings.lost == ()
    assert store.fsck("deep").clean and all_there(store, "0", "1", "2")
    assert np.array_equal(store.get(store.references()["9"])["w"], weights(9))
