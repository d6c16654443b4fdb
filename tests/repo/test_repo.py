"""Versions are committed and loaded: the same bits and the same fields, by every way of asking."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from regatta.errors import ConflictError, CorruptError, DataError, NotFoundError, UsageError
from regatta.repo import Repo, Version

WEIGHTS = {"layer.weight": np.arange(12, dtype="f4").reshape(3, 4), "layer.bias": np.zeros(3, "f8"), "n": np.array(7)}
NETWORK = {
    "nodes": [{"id": "in", "kind": "INPUT"}, {"id": "fc", "kind": "FULL", "attributes": {"width": 3}}],
    "edges": [["in", "fc"]],
}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    with Repo.init(tmp_path) as opened:
        yield opened


def commit(repo: Repo, name: str = "net", **more: object) -> Version:
    return repo.commit(name, WEIGHTS, git=False, **more)  # type: ignore[arg-type]


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and np.array_equal(found[name], expected[name]) for name in expected
    )


def test_a_version_comes_back_as_it_was(repo: Repo, tmp_path: Path) -> None:
    made = repo.commit(
        "net",
        WEIGHTS,
        network=NETWORK,
        metadata={"dataset": "digits", "tries": [1, 2]},
        hyperparameters={"lr": np.float32(0.5), "optimizer": "adam", "nesterov": True, "decay": None},
        metrics={"loss": [3.0, 1.0, 2.0], "accuracy": {10: 0.5}},
        files={"src/train.py": b"print()"},
        message="first",
    )
    with Repo.open(tmp_path) as again:
        found = again.version("net@1")
        assert found == made
        assert found.hyperparameters == {"lr": 0.5, "optimizer": "adam", "nesterov": True, "decay": None}
        assert found.metadata == {"dataset": "digits", "tries": [1, 2]}
        assert (found.parameters, found.bytes, found.snapshots) == (16, 12 * 4 + 3 * 8 + 8, 1)
        loss = found.metrics["loss"]
        assert (loss.lowest, loss.lowest_step, loss.highest, loss.last) == (1.0, 2, 3.0, 2.0)
        assert next((p.name, p.step, p.value) for p in again.metrics(found)) == ("accuracy", 10, 0.5)
        assert same(again.load(found), WEIGHTS)
        assert again.read_file(found, "src/train.py") == b"print()"
        assert again.network(found) == NETWORK
        describe_layer = again.describe(found.id[:8])
        assert describe_layer.files[0].path == "src/train.py"
        assert again.catalog._all("SELECT node, kind, attributes FROM node ORDER BY position") == [
            ("in", "INPUT", "{}"),
            ("fc", "FULL", '{"width":3}'),
        ]
        assert again.catalog._all("SELECT source, target, operand FROM edge") == [("in", "fc", 0)]


def test_versions_of_a_name_are_numbered_and_numbers_are_not_reused(repo: Repo) -> None:
    first, second = commit(repo), commit(repo)
    assert (first.reference, second.reference) == ("net@1", "net@2")
    assert repo.version("net") == second
    repo.delete("net@2")
    assert repo.version("net") == first
    assert commit(repo).reference == "net@3"


def test_references_are_resolved(repo: Repo) -> None:
    version = commit(repo)
    repo.tag(version, "prod")
    for reference in ("net", "net@1", "prod", version.id, version.id[:6], version.id[:6].upper()):
        assert repo.version(reference) == version
    with pytest.raises(NotFoundError, match="no version 'nett'") as error:
        repo.version("nett")
    assert error.value.candidates == ("net",)
    for wrong in ("net@2", "", "@1", "zzzz", "ffffffff"):
        with pytest.raises(NotFoundError):
            repo.version(wrong)


def test_an_ambiguous_id_is_refused(repo: Repo) -> None:
    commit(repo)
    commit(repo, "other")
    repo.catalog._run("UPDATE model_version SET id = 'abcd' || substr(id, 5)")
    with pytest.raises(UsageError, match="Several versions"):
        repo.version("abcd")


NAMES = ["лодка 🚣", "帆船/レガッタ", "a b@c", "👩\u200d👧 family", "نموذج", "*?[x]", "'; DROP TABLE tag; --", "%_\\"]


@pytest.mark.parametrize("name", NAMES)
def test_any_text_can_be_a_name(repo: Repo, name: str) -> None:
    made = commit(repo, name)
    assert repo.version(name) == repo.version(f"{name}@1") == made
    assert name in unescape(repo.versions()._repr_html_())
    assert repo.versions(name) == [made]


def test_names_are_equal_in_any_unicode_normalisation(repo: Repo) -> None:
    made = commit(repo, "cafe\u0301")
    assert made.name == "caf\u00e9"
    assert repo.version("cafe\u0301") == repo.version("caf\u00e9") == made


@pytest.mark.parametrize("name", ["", "  ", " a", "a\n", "a\0b", "a@12", "\ud800", "x" * 2000, 7, None])
def test_invalid_names_are_refused(repo: Repo, name: object) -> None:
    with pytest.raises(UsageError, match="name"):
        commit(repo, name)  # type: ignore[arg-type]
    assert repo.versions() == []


def test_a_commit_needs_no_current_folder(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    made = repo.commit("net", WEIGHTS)
    assert made.git is None and repo.copy(made, "other").git is None


def test_tags_move_only_on_request(repo: Repo) -> None:
    first, second = commit(repo), commit(repo)
    repo.tag(first, "best")
    repo.tag(first, "best")
    with pytest.raises(ConflictError, match="net@1"):
        repo.tag(second, "best")
    repo.tag(second, "best", move=True)
    assert repo.version("best") == second
    assert repo.describe(second).tags == ("best",)
    with pytest.raises(ConflictError, match="versions with the name"):
        repo.tag(first, "net")
    with pytest.raises(ConflictError, match="a tag 'best'"):
        commit(repo, "best")
    repo.untag("best")
    with pytest.raises(NotFoundError, match="no tag"):
        repo.untag("best")


def test_a_version_may_have_several_snapshots(repo: Repo, tmp_path: Path) -> None:
    series = {epoch: {"w": np.full(5, epoch, "f4")} for epoch in (1, 3, 2)}
    made = repo.commit("net", series, git=False)
    assert [(s.position, s.epoch) for s in repo.snapshots(made)] == [(0, 1), (1, 2), (2, 3)]
    assert repo.load(made)["w"][0] == 3
    assert repo.load(made, 2)["w"][0] == 2
    assert repo.load(made, repo.snapshots(made)[0].id[:12])["w"][0] == 1  # type: ignore[index]
    with pytest.raises(NotFoundError, match="no snapshot 9") as error:
        repo.load(made, 9)
    assert "1, 2, 3" in str(error.value)
    listed = repo.commit("list", [{"w": np.zeros(1)}, {"w": np.ones(1)}], git=False)
    assert (repo.load(listed, 0)["w"][0], repo.load(listed, -1)["w"][0]) == (0, 1)


def test_weights_from_files(repo: Repo, tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "w.safetensors", {"format": "np"})
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    for name in ("w.safetensors", "w.npz"):
        assert same(repo.load(repo.commit(name, tmp_path / name, git=False)), WEIGHTS)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 40)
    (tmp_path / "bad.npz").write_bytes(b"PK junk")
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], dtype=object))
    for bad in ("bad.safetensors", "bad.npz", "pickle.npz"):
        with pytest.raises(DataError):
            repo.commit("bad", tmp_path / bad, git=False)
    with pytest.raises(NotFoundError):
        repo.commit("bad", tmp_path / "no.npz", git=False)
    with pytest.raises(UsageError, match=r"not from '\.pt'"):
        repo.commit("bad", tmp_path / "x.pt", git=False)
    with pytest.raises(UsageError, match="state_dict"):
        repo.commit("bad", 5, git=False)  # type: ignore[arg-type]
    assert len(repo.versions()) == 2


def test_leading_planes_and_single_tensors_can_be_loaded(repo: Repo) -> None:
    large = {"w": np.random.default_rng(0).normal(size=(40, 50)).astype("f4")}  # small ones are kept in one piece
    partial = repo.load(repo.commit("large", large, git=False), names=["w"], planes=2)["w"]
    lower, upper = partial.bounds
    assert (lower <= large["w"]).all() and (large["w"] <= upper).all()
    assert not partial.exact
    made = commit(repo)
    weights = repo.weights(made)
    assert sorted(weights) == sorted(WEIGHTS) and len(weights) == 3 and "nothing" not in weights
    assert weights.members["layer.weight"].shape == (3, 4)
    with pytest.raises(KeyError):
        weights["nothing"]
    with pytest.raises(NotFoundError, match=r"no tensor 'layer\.weigh'"):
        repo.load(made, names=["layer.weigh"])


def test_a_version_need_not_have_weights(repo: Repo, tmp_path: Path) -> None:
    made = repo.commit("plan", network=NETWORK, git=False)
    assert (made.snapshots, made.parameters) == (0, None)
    with pytest.raises(NotFoundError, match="no weights"):
        repo.load(made)
    assert not (repo.checkout(made, tmp_path / "out") / "weights.safetensors").exists()


def test_lineage_follows_parents(repo: Repo) -> None:
    root = commit(repo, "root")
    left, right = commit(repo, "left", parents=["root"], message="to the left"), commit(repo, "right", parents=[root])
    merged = commit(repo, "merged", parents=["left", "right"])
    commit(repo, "unrelated")
    assert [v.name for v in repo.log("merged")] == ["merged", "right", "left", "root"]
    links = {(link.base, link.derived, link.commit) for link in repo.log("merged").links}
    assert (root.id, left.id, "to the left") in links and len(links) == 4
    assert {v.name for v in repo.parents(merged)} == {"left", "right"}
    assert repo.children("root") == [left, right]
    assert repo.children(merged) == []
    with pytest.raises(NotFoundError):
        commit(repo, "orphan", parents=["nobody"])


def test_a_copy_begins_with_the_content_of_its_source(repo: Repo) -> None:
    base = repo.commit(
        "base", {1: WEIGHTS, 2: {"w": np.ones(2)}}, network=NETWORK, hyperparameters={"lr": 1}, metrics={"loss": 1.0},
        files={"a.txt": b"a"}, git=False,
    )  # fmt: skip
    made = repo.copy("base", "fresh", snapshot=1)
    assert same(repo.load(made), WEIGHTS)
    assert made.hyperparameters == {"lr": 1} and made.metrics == {} and made.network == base.network
    assert repo.read_file(made, "a.txt") == b"a"
    assert [(link.kind, link.epoch) for link in repo.log(made).links] == [("copy", 1)]
    repo.delete(base, force=True)
    repo.gc(grace=0)
    assert same(repo.load(made), WEIGHTS) and repo.read_file(made, "a.txt") == b"a"
    assert repo.fsck("deep").clean


def test_delete_keeps_children_and_frees_files_after_the_grace_period(repo: Repo) -> None:
    base = commit(repo, "base", files={"only": b"mine"})
    commit(repo, "child", parents=[base])
    with pytest.raises(ConflictError, match="the child child@1"):
        repo.delete("base")
    repo.delete("base", force=True)
    assert [v.name for v in repo.versions()] == ["child"]
    assert repo.parents("child") == [] and repo.versions(search="base") == []
    assert repo.gc().files == 0  # it may have been a mistake
    assert repo.gc(grace=0).files == 1
    assert same(repo.load("child"), WEIGHTS)


def test_versions_can_be_filtered_and_ordered(repo: Repo) -> None:
    for number, (name, lr, optimizer) in enumerate([("a/1", 0.1, "adam"), ("a/2", 0.01, "sgd"), ("b/[1]", 1, "adam")]):
        loss = [[3.0, 1.0], [2.0, float("nan")], [float("inf"), 0.5]][number]
        commit(
            repo, name, hyperparameters={"lr": lr, "optimizer": optimizer, "on": number == 0, "rare": number},
            metrics={"loss": loss}, message=f"Größe {['null', 'eins', 'zwei'][number]}",
            files={f"configs/run-{number}.yaml": b""},
        )  # fmt: skip
    names = lambda **filters: [version.name for version in repo.versions(**filters)]  # noqa: E731
    assert names() == ["b/[1]", "a/2", "a/1"]
    assert names(order="oldest", limit=2) == ["a/1", "a/2"]
    assert names(name="a/*", order="name") == ["a/1", "a/2"]
    assert names(name="b/[1]") == names(name="b/[*") == ["b/[1]"]
    assert names(where={"optimizer": "adam", "lr": 0.1}) == ["a/1"]
    assert names(where={"lr": [1.0, 0.01]}, order="oldest") == ["a/2", "b/[1]"]
    assert names(where={"on": True}) == ["a/1"] and names(where={"rare": True}) == []
    assert names(search="adam") == ["b/[1]", "a/1"]
    assert names(search="grosse null") == [] and names(search="größe null") == names(search="gro nu") == ["a/1"]
    assert names(search="run-1.yaml") == ["a/2"]
    assert names(search='" OR name:* -') == []
    assert names(metric="loss", order="best") == ["b/[1]", "a/1", "a/2"]
    assert names(metric="loss", mode="max", order="best", limit=1) == ["b/[1]"]
    assert names(metric="accuracy") == []
    best = repo.best("loss", name="a/*")
    assert best is not None and best.name == "a/1" and repo.best("accuracy") is None
    assert math.isnan(repo.version("a/2").metrics["loss"].last)
    middle = repo.version("a/2").created
    assert names(since=middle) == ["b/[1]", "a/2"] and names(until=middle) == ["a/1"]
    wrong: list[dict[str, Any]] = [
        {"order": "size"},
        {"mode": "most"},
        {"order": "best"},
        {"limit": -1},
        {"search": " "},
    ]
    for filters in (*wrong, {"where": {"a": []}}):
        with pytest.raises(UsageError):
            repo.versions(**filters)


def test_versions_as_data_frames_and_in_notebooks(repo: Repo) -> None:
    commit(repo, "<b>one</b>", hyperparameters={"lr": 0.1, "same": 1}, metrics={"loss": [2.0, 1.0]})
    commit(repo, "two", hyperparameters={"lr": 0.2, "same": 1})
    frame = repo.versions(order="oldest").to_pandas()
    assert list(frame["lr"]) == [0.1, 0.2] and frame["metric.loss"][0] == 1.0
    html = repo.versions()._repr_html_()
    assert "&lt;b&gt;one&lt;/b&gt;@1" in html and "<b>" not in html
    assert "<th>lr</th>" in html and "<th>same</th>" not in html
    assert "two@1" in repo.describe("two")._repr_html_()
    assert list(repo.metrics("<b>one</b>").to_pandas()["value"]) == [2.0, 1.0]
    assert "2 versions" in repr(repo) and "1 snapshots" not in repr(repo)


def test_checkout_writes_a_version_to_a_folder(repo: Repo, tmp_path: Path) -> None:
    made = commit(repo, files={"bin/go.sh": b"#!/bin/sh\n", "notes": b"not a path"}, metrics={"loss": [float("inf")]})
    out = repo.checkout("net", tmp_path / "out")
    assert same(load_file(out / "weights.safetensors"), WEIGHTS)
    assert (out / "files" / "bin" / "go.sh").read_bytes() == b"#!/bin/sh\n"
    about = json.loads((out / "version.json").read_text())
    assert about["id"] == made.id and about["metrics"] == [["loss", 1, "inf"]]
    with pytest.raises(ConflictError, match="exists already"):
        repo.checkout("net", out)
    repo.checkout("net", out, overwrite=True)
    (tmp_path / "a file").write_text("mine")
    with pytest.raises(ConflictError, match="exists already"):
        repo.checkout("net", tmp_path / "a file")
    alone = repo.checkout("net", tmp_path / "deep" / "w.safetensors")
    assert same(load_file(alone), WEIGHTS)


def test_checkout_keeps_files_executable(repo: Repo, tmp_path: Path) -> None:
    script = tmp_path / "go.sh"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    commit(repo, files=[script])
    out = repo.checkout("net", tmp_path / "out")
    assert subprocess.run([out / "files" / "go.sh"]).returncode == 0


def test_a_failed_commit_writes_nothing(repo: Repo) -> None:
    wrong: list[dict[str, object]] = [
        {"hyperparameters": {"lr": float("nan")}},
        {"hyperparameters": {1: 2}},
        {"metadata": {"x": object()}},
        {"metrics": {"loss": "low"}},
        {"metrics": 3},
        {"network": {"nodes": [{"id": "a"}]}},
        {"network": "{"},
        {"message": 3},
        {"files": {"../x": b""}},
        {"files": "train.py"},
    ]
    for more in wrong:
        with pytest.raises(UsageError):
            commit(repo, **more)
    assert repo.versions() == [] and repo.fsck().leftovers == 0


def test_the_git_commit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Repo.init() as repo:
        assert repo.commit("net").git is None

        def git(*words: str) -> str:
            who = ["-c", "user.name=a", "-c", "user.email=a@b"]
            done = subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True)
            return done.stdout.strip()

        git("init", "-q", "-b", "trunk")
        assert repo.commit("net").git is None
        Path("train.py").write_text("1")
        git("add", "train.py")
        git("commit", "-q", "-m", "one")
        head = git("rev-parse", "HEAD")
        assert repo.commit("net").git == {"commit": head, "branch": "trunk", "dirty": False}
        Path("train.py").write_text("2")
        git("checkout", "-q", "--detach")
        assert repo.commit("net").git == {"commit": head, "branch": None, "dirty": True}


def test_a_repository_is_found_from_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no repository"):
        Repo.open(tmp_path)
    with Repo.init(tmp_path) as made:
        commit(made)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for path in (tmp_path, tmp_path / ".regatta", tmp_path / "deep" / "er"):
        with Repo.open(path) as found:
            assert found.folder == tmp_path / ".regatta" and len(found.versions()) == 1
    with Repo.at(tmp_path / "any name") as other:
        assert other.versions() == []
    with Repo.open(tmp_path / "any name") as again, Repo.init(tmp_path):
        assert again.folder == tmp_path / "any name"


def committed_with_file(folder: Path) -> Version:
    with Repo.init(folder) as repo:
        return repo.commit("net", {"w": np.ones((3, 4), np.float32)}, files={"notes.txt": b"as it was"})


def test_checkout_refuses_a_damaged_file(tmp_path: Path) -> None:
    committed_with_file(tmp_path)
    (kept,) = (path for path in (tmp_path / ".regatta" / "files").rglob("*") if path.is_file())
    kept.chmod(0o644)
    kept.write_bytes(b"as it WAS")
    with Repo.open(tmp_path) as repo, pytest.raises(CorruptError, match="not as it was committed"):
        repo.checkout("net", tmp_path / "out")


def test_a_whole_number_beyond_floats_is_a_hyperparameter(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        repo.commit("net", hyperparameters={"seed": 10**400, "other": -(10**400)})
        assert repo.version("net").hyperparameters == {"seed": 10**400, "other": -(10**400)}
