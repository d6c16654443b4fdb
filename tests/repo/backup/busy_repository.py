"""Commits, copies, deletes, archives and collects garbage in a repository without pause, until it is killed."""

from __future__ import annotations

import sys

import numpy as np

from regatta.errors import RegattaError
from regatta.repo import Repo


def main(folder: str) -> None:
    random = np.random.default_rng(0)
    with Repo.open(folder) as repo:
        number = 0
        while True:
            number += 1
            base = random.standard_normal(4_000).astype("f4")
            weights = {epoch: {"w": base + epoch / 1000, "b": np.float32([number])} for epoch in range(3)}
            made = repo.commit("net", weights, files={"log.txt": b"%d" % number, "same.txt": b"same"}, git=False)
            repo.tag(made, "newest", move=True)
            if number % 3 == 0:
                for old in repo.versions("net", order="oldest", limit=2):
                    repo.delete(old, force=True)
            try:
                if number % 4 == 0:
                    repo.archive()
                if number % 5 == 0:
                    repo.gc(grace=0)
            except RegattaError as error:
                sys.exit(f"the writer failed: {error}")
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
