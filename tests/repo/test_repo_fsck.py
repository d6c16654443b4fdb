"""fsck finds damage, gc removes what is not needed, and old and new formats are distinguished."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from regatta.cli.main import main
from regatta.errors import CorruptError, UsageError
from regatta.repo import Repo
from regatta.repo.catalog.migrations import STEPS
from regatta.repo.catalog.records import Version
from regatta.repo.doctor import examine
from regatta.store.store import ParameterStore

WEIGHTS = {"w": np.random.default_rng(0).normal(size=1000).astype("f4")}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    with Repo.init(tmp_path) as opened:
        opened.commit("net", WEIGHTS, files={"a": b"aaaa"}, git=False)
        yield opened


def test_fsck_of_a_sound_repository_is_clean(repo: Repo) -> None:
    for depth in ("structure", "checksums", "deep"):
        found = repo.fsck(depth)  # type: ignore[arg-type]
        assert found.clean and (found.versions, found.files, found.leftovers) == (1, 1, 0)


def test_fsck_finds_changed_and_missing_files(repo: Repo) -> None:
    (entry,) = repo.catalog.files(repo.version("net"))
    path = repo.files.path(entry.hash)
    path.write_bytes(b"bbbb")
    assert repo.fsck().clean
    assert repo.fsck("checksums").problems == (f"File {entry.hash}: its content has changed.",)
    path.unlink()
    assert repo.fsck().problems == (f"File {entry.hash}: it is missing.",)
    with pytest.raises(CorruptError, match="is missing"):
        repo.read_file("net", "a")


def test_fsck_finds_missing_and_wrong_weights(repo: Repo) -> None:
    (snapshot,) = repo.snapshots("net")
    repo.store.release(snapshot.reference)
    assert any("the store has no name" in problem for problem in repo.fsck().problems)
    other = repo.store.put({"w": np.zeros(3)}, reference=snapshot.reference)
    assert any(other in problem for problem in repo.fsck().problems)


def test_fsck_reports_damage_of_the_store(repo: Repo) -> None:
    for pack in (repo.folder / "store" / "packs").iterdir():
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(data)
    assert not repo.fsck("deep").clean


def test_fsck_reports_damage_of_the_catalog(repo: Repo) -> None:
    repo.catalog._run("PRAGMA foreign_keys = OFF")
    repo.catalog._run("INSERT INTO tag VALUES ('lost', 999, 0)")
    repo.catalog._run("DELETE FROM words")
    problems = repo.fsck().problems
    assert "Catalog: a row of tag refers to a missing model_version." in problems
    assert "Catalog: 1 versions are missing from the search index." in problems


def test_leftovers_are_not_a_problem_and_gc_removes_them(repo: Repo) -> None:
    repo.files.put_all({"x": b"never committed"})
    repo.store.put({"w": np.ones(5)}, reference="versions/0123456789abcdef0123456789abcdef/000000")
    (repo.folder / "files" / "tmp" / "123-dead").write_bytes(b"half")
    found = repo.fsck("deep")
    assert found.clean and found.leftovers == 2
    assert repo.gc().files == 0, "a time of grace"
    assert repo.fsck().leftovers == 1
    collected = repo.gc(grace=0)
    assert collected.files == 1 and collected.store.snapshots == 1 and collected.bytes > 15
    assert repo.fsck("deep").leftovers == 0
    assert list((repo.folder / "files" / "tmp").iterdir()) == []
    assert np.array_equal(repo.load("net")["w"], WEIGHTS["w"]) and repo.read_file("net", "a") == b"aaaa"


def test_networks_are_stored_once_and_removed_with_their_last_version(repo: Repo) -> None:
    network = {"nodes": [{"id": "a", "kind": "INPUT"}, {"id": "b", "kind": "ADD"}], "edges": [["a", "b"], ["a", "b"]]}
    for _ in range(2):
        repo.commit("graph", network=network, git=False)
    count = lambda table: repo.catalog._all(f"SELECT COUNT(*) FROM {table}")[0][0]  # noqa: E731
    assert (count("network"), count("node"), count("edge")) == (1, 2, 2)
    repo.delete("graph")
    assert count("network") == 1
    repo.delete("graph")
    assert (count("network"), count("node"), count("edge")) == (0, 0, 0)


def test_a_catalog_of_a_later_version_is_refused_and_not_changed(repo: Repo, tmp_path: Path) -> None:
    repo.catalog._run(f"PRAGMA user_version = {len(STEPS) + 1}")
    with pytest.raises(UsageError, match="later version"):
        Repo.open(tmp_path)
    repo.catalog._run(f"PRAGMA user_version = {len(STEPS)}")


def test_a_partly_created_catalog_is_completed(tmp_path: Path) -> None:
    (tmp_path / ".regatta").mkdir()
    sqlite3.connect(tmp_path / ".regatta" / "catalog.sqlite").close()
    with Repo.open(tmp_path) as repo:
        assert repo.versions() == []


def test_a_file_that_is_not_a_catalog_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".regatta").mkdir()
    (tmp_path / ".regatta" / "catalog.sqlite").write_bytes(b"something else altogether" * 100)
    with pytest.raises(CorruptError, match="catalog cannot be read"):
        Repo.open(tmp_path)


def committed_version(folder: Path) -> Version:
    with Repo.init(folder) as repo:
        return repo.commit("net", {"w": np.ones((3, 4), np.float32)}, files={"notes.txt": b"as it was"})


def remove(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        path.unlink()


def test_gc_keeps_weights_if_the_catalog_and_its_log_are_lost(tmp_path: Path) -> None:
    first = committed_version(tmp_path)
    folder = tmp_path / ".regatta"
    remove(folder, "catalog.sqlite*")
    remove(folder, "versions.log")
    with Repo.open(folder) as repo:
        repo.commit("other", {"w": np.zeros(3)}, git=False)
        assert any("what named them may be lost" in problem for problem in repo.fsck().problems)
        with pytest.raises(CorruptError, match="what named them may be lost"):
            repo.gc(grace=0)
        repo.fsck(repair=True)
        assert repo.fsck("deep").clean
        assert repo.gc(grace=0).store.snapshots == 0
        assert repo.load(first.id)["w"].sum() == 12 and repo.version(first.id).name.startswith("recovered-")


@pytest.mark.parametrize("way", ["repair", "rebuild_index"])
def test_weights_are_kept_if_the_index_is_lost_with_the_catalog_and_its_log(tmp_path: Path, way: str) -> None:
    """Only pack files are left. They are older than the catalog that the next command makes."""
    first = committed_version(tmp_path)
    folder = tmp_path / ".regatta"
    for path in (folder / "store" / "packs").iterdir():
        os.utime(path, (path.stat().st_mtime - 60,) * 2)
    with Repo.open(folder) as repo:
        snapshot = repo.snapshots(first)[0].id
    for name in ("catalog.sqlite*", "versions.log", "store/index.sqlite*"):
        remove(folder, name)
    assert any(each.what == "store" and "missing" in each.says for each in examine(folder))
    with Repo.open(folder) as repo:
        assert not repo.fsck().clean
        with pytest.raises(CorruptError, match="index is missing"):
            repo.gc(grace=0)
        repo.close_store()
        ParameterStore.rebuild(folder / "store")
        with pytest.raises(CorruptError, match="what named them may be lost"):
            repo.gc(grace=0)
        repo.fsck(repair=way == "repair", rebuild_index=way != "repair")
        assert repo.fsck("deep").clean
        assert repo.gc(grace=0).store.snapshots == 0
        (version,) = repo.versions()
        assert version.name.startswith("recovered-") and repo.load(version)["w"].sum() == 12
        assert repo.store.references() == {repo.snapshots(version)[0].reference: snapshot}


def test_doctor_does_not_pass_over_a_lost_catalog(tmp_path: Path) -> None:
    committed_version(tmp_path)
    folder = tmp_path / ".regatta"
    remove(folder, "catalog.sqlite*")
    assert [each.state for each in examine(folder) if each.what in ("catalog", "store")] == ["ok", "ok"]
    remove(folder, "catalog.sqlite*")
    remove(folder, "versions.log")
    assert any(each.state == "error" and "what named them may be lost" in each.says for each in examine(folder))


def test_a_lost_catalog_comes_back_from_its_log(tmp_path: Path) -> None:
    first = committed_version(tmp_path)
    folder = tmp_path / ".regatta"
    with Repo.open(folder) as repo:
        repo.tag("net", "best")
        repo.commit("net", metrics={"loss": [2.0, float("nan"), float("inf")]}, parents=["net@1"], git=False)
        before = repo.catalog.read_entries()
    remove(folder, "catalog.sqlite*")
    with Repo.open(folder) as repo:
        assert repo.catalog.read_entries() == before
        repo.commit("other", {"w": np.zeros(3)}, git=False)
        assert repo.gc(grace=0).store.snapshots == 0
        assert repo.fsck("deep").clean
        assert repo.version("best") == first and repo.load("best")["w"].sum() == 12
        assert [version.reference for version in repo.versions(search="net")] == ["net@2", "net@1"]


def test_an_index_that_is_lost_is_never_replaced_by_an_empty_one(tmp_path: Path) -> None:
    """Neither a missing file, nor an empty one, nor one without tables passes for the index of existing pack files."""
    committed_version(tmp_path)
    store = tmp_path / ".regatta" / "store"
    for damage in (lambda: None, lambda: (store / "index.sqlite").touch(), lambda: _bare_database(store)):
        remove(store, "index.sqlite*")
        damage()
        assert any(each.what == "store" and each.state == "error" for each in examine(tmp_path / ".regatta"))
        with Repo.open(tmp_path) as repo:
            for use in (lambda repo: repo.gc(grace=0), lambda repo: repo.load("net"), lambda repo: commit_more(repo)):
                with pytest.raises(CorruptError, match="pack files"):
                    use(repo)
            assert any("pack files" in problem for problem in repo.fsck().problems)
        assert len(list((store / "packs").iterdir())) == 1


def _bare_database(store: Path) -> None:
    sqlite3.connect(store / "index.sqlite").execute("PRAGMA journal_mode = WAL").close()


def commit_more(repo: Repo) -> None:
    repo.commit("net", {"w": np.zeros(7)}, git=False)


@pytest.mark.parametrize("way", ["repair", "rebuild_index"])
def test_a_lost_index_is_made_again(tmp_path: Path, way: str) -> None:
    committed_version(tmp_path)
    remove(tmp_path / ".regatta" / "store", "index.sqlite*")
    with Repo.open(tmp_path) as repo:
        repo.fsck(repair=way == "repair", rebuild_index=way != "repair")
        assert repo.fsck("deep").clean
        assert set(repo.store.references()) == {repo.snapshots("net")[0].reference}
        assert repo.gc(grace=0).store.snapshots == 0 and repo.load("net")["w"].sum() == 12


def test_gc_refuses_while_the_index_lacks_what_versions_name(tmp_path: Path) -> None:
    """An index that is older than its pack files, as a damaged log of SQLite leaves it."""
    committed_version(tmp_path)
    store = tmp_path / ".regatta" / "store"
    kept = (store / "index.sqlite").read_bytes()
    with Repo.open(tmp_path) as repo:
        commit_more(repo)
    remove(store, "index.sqlite*")
    (store / "index.sqlite").write_bytes(kept)
    with Repo.open(tmp_path) as repo:
        with pytest.raises(CorruptError, match="does not list it"):
            repo.gc(grace=0)
        assert any(each.what == "store" and each.state == "error" for each in examine(repo.folder))
        repo.fsck(repair=True)
        assert repo.fsck("deep").clean and repo.load("net")["w"].size == 7
        assert repo.gc(grace=0).store.snapshots == 0


def test_gc_refuses_while_a_pack_file_is_missing(tmp_path: Path) -> None:
    committed_version(tmp_path)
    remove(tmp_path / ".regatta" / "store" / "packs", "*")
    with Repo.open(tmp_path) as repo, pytest.raises(CorruptError, match="the file is missing"):
        repo.gc(grace=0)


def test_a_damaged_file_is_refused_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed_version(tmp_path)
    with Repo.open(tmp_path) as repo:
        (entry,) = repo.catalog.files(repo.version("net"))
        path = repo.files.path(entry.hash)
        for damage in (b"As it was", b"as it w", b""):
            path.write_bytes(damage)
            with pytest.raises(CorruptError, match="not as it was committed"):
                repo.read_file("net", "notes.txt")
            with pytest.raises(CorruptError, match="not as it was committed"):
                repo.checkout("net", tmp_path / "out", overwrite=True)
            assert main(["desc", "net", "--repo", str(repo.folder)]) == 0
            assert "notes.txt is damaged" in capsys.readouterr().err
            assert any("notes.txt of net@1" in each for each in repo.fsck("checksums", repair=True).lost)
            repo.commit("again", files={"same": b"as it was"}, git=False)
            assert repo.read_file("net", "notes.txt") == b"as it was"
        path.unlink()
        (tmp_path / "copy.txt").write_bytes(b"as it was")
        assert any("copy.txt" in each for each in repo.fsck(repair=True).repaired)
        assert repo.fsck("deep").clean and repo.read_file("net", "notes.txt") == b"as it was"


def test_gc_deletes_everything_after_the_last_version(tmp_path: Path) -> None:
    committed_version(tmp_path)
    with Repo.open(tmp_path) as repo:
        repo.delete("net")
        assert repo.gc(grace=0).files == 1


def test_doctor_reports_a_damaged_index_of_the_store(tmp_path: Path) -> None:
    committed_version(tmp_path)
    index = tmp_path / ".regatta" / "store" / "index.sqlite"
    for path in index.parent.glob("index.sqlite-*"):
        path.unlink()
    assert any(finding.what == "store" and finding.state == "ok" for finding in examine(tmp_path / ".regatta"))
    for path in index.parent.glob("index.sqlite*"):
        path.unlink()
    index.write_bytes(b"no database")
    assert any(finding.what == "store" and finding.state == "error" for finding in examine(tmp_path / ".regatta"))


def test_repair_restores_names_in_a_rebuilt_store(tmp_path: Path) -> None:
    import numpy as np

    with Repo.init(tmp_path) as repo:
        version = repo.commit("model", {"w": np.arange(5.0)}, git=False)
        folder = repo.folder
    for path in (folder / "store").glob("index.sqlite*"):
        path.unlink()
    ParameterStore.rebuild(folder / "store")
    with Repo.at(folder) as repo:
        assert not repo.fsck().clean
        assert repo.fsck(repair=True).clean
        assert repo.fsck().clean
        assert repo.load(version)["w"].tolist() == [0, 1, 2, 3, 4]
