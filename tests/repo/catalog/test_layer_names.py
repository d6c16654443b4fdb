"""Other names of layers in the catalog: derived from networks, and made for catalogs of earlier versions."""

from __future__ import annotations

from pathlib import Path

from regatta.repo import Repo
from regatta.repo.catalog.check import catalog_problems
from regatta.store.sqlite import sqlite3

NETWORK = {
    "nodes": [
        {"id": "x", "kind": "INPUT"},
        {"id": "/conv1/Conv", "kind": "CONV"},
        {"id": "0", "kind": "CONV", "name": "0"},
        {"id": "/features/features.3/Relu", "kind": "RELU"},
    ],
    "edges": [["x", "/conv1/Conv"], ["/conv1/Conv", "0"], ["0", "/features/features.3/Relu"]],
}
NAMES = [("/conv1/Conv", "conv1"), ("/features/features.3/Relu", "features.3"),
         ("/features/features.3/Relu", "relu1"), ("0", "conv2")]  # fmt: skip


def names(repo: Repo) -> list[tuple[str, str]]:
    return repo.catalog._all("SELECT node, name FROM layer_name ORDER BY node, name")  # type: ignore[return-value]


def test_a_committed_network_has_other_names(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        repo.commit("net", network=NETWORK, git=False)
        assert names(repo) == NAMES
        assert catalog_problems(repo.catalog, whole=True) == []
        repo.catalog._run("DELETE FROM layer_name WHERE name = 'conv2'")
        assert any("layer_name" in problem for problem in catalog_problems(repo.catalog, whole=True))


def test_an_earlier_catalog_gets_them(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        repo.commit("net", network=NETWORK, git=False)
        path = repo.catalog.path
    with sqlite3.connect(path) as db:
        db.executescript("DROP TABLE layer_name; DROP INDEX edge_by_source; PRAGMA user_version = 2")
    db.close()
    with Repo.open(tmp_path, read_only=True) as repo:
        assert repo.versions()[0].name == "net"
    with Repo.open(tmp_path) as repo:
        assert names(repo) == NAMES
        assert catalog_problems(repo.catalog, whole=True) == []


def test_they_go_with_the_network(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        repo.commit("net", network=NETWORK, git=False)
        repo.delete("net")
        assert names(repo) == []
