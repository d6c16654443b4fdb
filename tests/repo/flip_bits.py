"""Flips a random bit of a repository, and compares what it answers before and after a repair.

    python flip_bits.py FOLDER TARGET FIRST COUNT     prints {"flips", "found", "harmless", "lost", "wrong"} as JSON

TARGET is a file or a group of files: catalog, catalog-wal, index, index-wal, versions.log, files, packs. A flip is
harmless if a deep check finds nothing and all answers are the same. Everything else that is not found is wrong, and so
is any exception that is not Regatta's, and a repair that neither restores all answers nor says what is lost.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from regatta.errors import RegattaError
from regatta.repo import Repo
from regatta.repo.fsck import check_folder

TARGETS = {
    "catalog": "catalog.sqlite", "catalog-wal": "catalog.sqlite-wal", "index": "store/index.sqlite",
    "index-wal": "store/index.sqlite-wal", "versions.log": "versions.log", "files": "files/??/*",
    "packs": "store/packs/*",
}  # fmt: skip
NETWORK = {"nodes": [{"id": "a", "kind": "INPUT"}, {"id": "b", "kind": "ADD"}], "edges": [["a", "b"], ["a", "b"]]}


def fill(repo: Repo, first: int) -> None:
    rng = np.random.default_rng(first)
    for number in range(first, first + 3):
        weights = {
            "w": rng.normal(size=300).astype("f4"),
            "zeros": np.zeros((4, 6), "f4"),
            "scalar": np.float64(number),
        }
        repo.commit(
            f"net-{number % 2}", {1: weights, 2: {**weights, "w": weights["w"] + 1}}, message=f"the message {number}",
            hyperparameters={"lr": 0.1 * number, "kind": "adam", "layers": [number, 2]},
            metrics={"loss": [2.0, 1.0 / number, float("nan")], "high": {3: float("inf")}},
            files={"shared.txt": b"in all of them", f"own/{number}.txt": f"only in {number}".encode() * 9},
            parents=[f"net-{(number - 1) % 2}"] if number > 1 else [], network=NETWORK, metadata={"note": f"n{number}"},
            git=False,
        )  # fmt: skip
    repo.tag(f"net-{first % 2}", f"tag-{first}")


def make(folder: Path) -> None:
    """A repository with part of its content in the main files of its databases, and part in their logs."""
    with Repo.at(folder / "made") as repo:
        fill(repo, 1)
        repo.delete(repo.commit("gone", {"w": np.ones(5)}, git=False))
    repo = Repo.at(folder / "made")
    fill(repo, 4)
    shutil.copytree(folder / "made", folder / "with-logs", ignore=shutil.ignore_patterns("*-shm"))
    repo.close()


def answers(repo: Repo) -> Any:
    """All that the repository can be asked, as text that is equal only for equal answers."""
    found: dict[str, Any] = {"tags": repo.tags(), "links": repo.catalog.links(), "best": repo.best("loss")}
    for name in ("net-0", "net-1"):
        found[name] = [each.id for each in repo.versions(name, order="oldest")], repo.versions(search=name)
    found["where"] = repo.versions(where={"kind": "adam"}), repo.versions(where={"lr": 0.1})
    for version in repo.versions(order="oldest"):
        files = [(file, repo.read_file(version, file.path)) for file in repo.catalog.files(version)]
        weights = [bits_of_all(repo.load(version, snapshot.epoch)) for snapshot in repo.snapshots(version)]
        known = version.hyperparameters, version.metadata, version.metrics, version.message, version.when
        found[version.reference] = repo.describe(version), known, repo.metrics(version), files, weights
    return repr(found)


def bits_of_all(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: (value.dtype, value.shape, value.tobytes()) for name, value in weights.items()}


def flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {path.name}"


def try_flip(start: Path, here: Path, target: str, seed: int, right: str) -> tuple[str, str]:
    """What became of a flip: "found", "harmless", "lost" or "wrong", with an explanation."""
    rng = random.Random(f"{target} {seed}")
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(start, here)
    what = f"{target} {seed}: {flip(rng.choice(sorted(here.glob(TARGETS[target]))), rng)}"
    outcome = "found"
    try:
        with Repo.open(here) as repo:
            if repo.fsck("deep").clean:
                if answers(repo) != right:
                    return "wrong", f"{what}: passed the check with other answers"
                outcome = "harmless"
        said = check_folder(here, "deep", repair=True)
        with Repo.open(here) as repo:
            again = repo.fsck("deep")
            if again.clean and answers(repo) == right:
                return outcome, what
            if said.lost and not again.clean:
                return "lost", f"{what}: {said.lost}"
            return "wrong", f"{what}: after repair {again.problems}, lost {said.lost}, repaired {said.repaired}"
    except RegattaError:
        try:
            said = check_folder(here, "deep", repair=True)
            with Repo.open(here) as repo:
                again = repo.fsck("deep")
                if again.clean and answers(repo) == right:
                    return outcome, what
                return ("lost" if said.lost and not again.clean else "wrong"), f"{what}: {again.problems}, {said.lost}"
        except RegattaError as error:
            return "wrong", f"{what}: not repaired: {error!s:.300}"
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            return "wrong", f"{what}: {error!r:.300}"
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        return "wrong", f"{what}: {error!r:.300}"


def main(folder: Path, target: str, first: int, count: int) -> dict[str, Any]:
    if not (folder / "made").exists():
        make(folder)
    with Repo.open(folder / "made") as repo:
        right = answers(repo)
    start = folder / ("with-logs" if target.endswith("-wal") else "made")
    found: dict[str, list[str]] = {"found": [], "harmless": [], "lost": [], "wrong": []}
    for seed in range(first, first + count):
        outcome, text = try_flip(start, folder / "work", target, seed, right)
        found[outcome].append(text)
    counts = {outcome: len(texts) for outcome, texts in found.items()}
    return {"flips": count, **counts, "wrong": found["wrong"], "examples": found["lost"][:3]}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), indent=1))
