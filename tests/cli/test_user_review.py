"""What a first user stumbled over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regatta import Repo, open_run
from regatta.errors import NotFoundError
from regatta.store.store import ParameterStore

HELPER = """import torch
def model_fn(config):
    net = torch.nn.Linear(64, 10)
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"])
def loss_fn(model, batch, config):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
SWEEP = """import regatta
from neighbour import model_fn, loss_fn
data = regatta.Dataset.digits(partitions=1)
space = regatta.search.grid(lr=[0.1], batch_size=[64])
cluster = regatta.Cluster(workers=1, kind="inline")
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=1, cluster=cluster, name="near")
"""


def regatta(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "regatta", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def test_a_run_finds_the_neighbours_of_its_file_again(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(HELPER)
    (tmp_path / "near.py").write_text(SWEEP)
    done = regatta("run", "near.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = regatta("replay", "near", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = open_run("near", repo=tmp_path / ".regatta")
    with pytest.raises(NotFoundError, match="no configuration whose id starts with 'zzz'"):
        run.extend("zzz", 2)


def test_a_store_that_was_rebuilt_gets_its_names_again(tmp_path: Path) -> None:
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
