"""DVC's part of bench_repo: keeps versions that lie in a folder ready, and says in JSON what it took.

    python benchmarks/dvc_versions.py GIVEN WORK

Executed by the interpreter that has DVC. GIVEN has a folder for each version with model.safetensors, params.json and
metrics.json; WORK is a new one. A version is `dvc add` of the weights and a commit with a tag; versions are listed by
their parameters and metrics over all tags; the best is looked for among these, as DVC has no other way. All in one
process, through DVC's own API: its command line would start Python again for each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(given: Path, work: Path) -> None:
    import dvc
    from dvc.repo import Repo
    from scmrepo.git import Git

    os.environ |= {
        f"GIT_{who}_{what}": "bench@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    os.environ["DVC_NO_ANALYTICS"] = "1"
    versions = [
        {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        for folder in sorted(given.iterdir(), key=lambda folder: int(folder.name))
    ]
    work.mkdir()
    os.chdir(work)
    Git.init(str(work)).close()
    repo = Repo.init(str(work))
    (work / "dvc.yaml").write_text("params:\n- params.json\nmetrics:\n- metrics.json\n")
    began = time.perf_counter()
    for number, files in enumerate(versions):
        keep(repo, work, number, files)
    logged = time.perf_counter() - began
    began = time.perf_counter()
    params, metrics = repo.params.show(all_tags=True), repo.metrics.show(all_tags=True)
    listed = time.perf_counter() - began
    began = time.perf_counter()
    found = repo.metrics.show(all_tags=True)
    losses = {tag: loss(entry) for tag, entry in found.items() if tag.startswith("v")}
    best = min(losses, key=lambda tag: losses[tag])
    sought = time.perf_counter() - began
    assert len(losses) == len(versions) and best == f"v{len(versions) - 1}", best
    assert set(losses) <= params.keys() and set(losses) <= metrics.keys()
    print(json.dumps({"logged": logged, "listed": listed, "best": sought, "version": dvc.__version__}))


def keep(repo, work: Path, number: int, files: dict[str, bytes]) -> None:  # type: ignore[no-untyped-def]
    """What a training script and its user do: write the files, `dvc add`, `git commit`, `git tag`."""
    for name, content in files.items():
        with (work / name).open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
    repo.add("model.safetensors")
    repo.scm.add(["model.safetensors.dvc", "params.json", "metrics.json", "dvc.yaml", ".gitignore", ".dvc"])
    repo.scm.commit(f"version {number}")
    repo.scm.tag(f"v{number}")


def loss(entry: dict) -> float:  # type: ignore[type-arg]
    return float(entry["data"]["metrics.json"]["data"]["loss"])


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
