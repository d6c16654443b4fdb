"""A user's file: found, executed, its sweep picked out, its functions sent by value."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from regatta import open_run
from regatta.cli.load_sweep import load_file, load_sweep, looks_like_file, split_target
from regatta.errors import NotFoundError, RegattaError, UsageError

SWEEP = """
import regatta
from regatta.data import Dataset
import numpy as np
from neighbour import WIDTH

def model_fn(config):
    return {"weights": np.zeros(WIDTH)}

def loss_fn(model, batch, config):
    return 0.0

data = Dataset.from_arrays(np.zeros((40, WIDTH), np.float32), np.zeros(40, np.int64), partitions=2, seed=0)
space = regatta.search.grid(batch_size=[4, 8])
NAME = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, framework="numpy")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    (tmp_path / "neighbour.py").write_text("WIDTH = 3\n")
    return tmp_path


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


def test_a_sweep_is_found_by_its_default_or_given_name(folder: Path) -> None:
    write(folder, "one.py", SWEEP.replace("NAME", "sweep"))
    write(folder, "two.py", SWEEP.replace("NAME", "mine"))
    assert len(load_sweep("one.py").configs()) == 2
    assert len(load_sweep("two.py:mine").configs()) == 2


def test_the_error_for_a_file_without_a_sweep_lists_its_names(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"empty\.py: There is no sweep named 'sweep'") as caught:
        load_sweep(write(folder, "empty.py", "import os\nalpha = 1\ndef beta(): ...\n"))
    assert "The file defines alpha, beta." in str(caught.value)
    assert "sweep = regatta.Sweep(" in str(caught.value)


def test_the_error_names_a_sweep_under_another_name(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"two\.py:mine"):
        load_sweep(write(folder, "two.py", SWEEP.replace("NAME", "mine")))


def test_something_else_named_sweep_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"'sweep' is an int, not a regatta\.Sweep\.\nAdd a line"):
        load_sweep(write(folder, "odd.py", "sweep = 3\n"))


def test_the_error_for_a_missing_file_names_the_nearest(folder: Path) -> None:
    write(folder, "digits.py", "")
    with pytest.raises(UsageError, match=r"Did you mean digits\.py") as caught:
        load_file(Path("digit.py"))
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="is a folder"):
        load_file(folder)


def test_a_file_that_raises_shows_its_own_lines_only(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_file(Path(write(folder, "broken.py", "x = 1\ndef f():\n    return x / 0\nf()\n")))
    assert caught.value.place == "broken.py:3"
    assert "ZeroDivisionError" in str(caught.value)
    assert "in f" in str(caught.value)
    assert "loading.py" not in str(caught.value)
    assert "importlib" not in str(caught.value)


def test_a_syntax_error_has_its_line(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_file(Path(write(folder, "bad.py", "x = 1\ny = (\n")))
    assert (caught.value.place or "").endswith("bad.py:2")
    assert "SyntaxError" in str(caught.value)


def test_a_regatta_error_names_the_line_of_the_file(folder: Path) -> None:
    text = SWEEP.replace("NAME", "sweep").replace("batch_size=[4, 8]", "batch_size=[]")
    with pytest.raises(RegattaError) as caught:
        load_sweep(write(folder, "none.py", text))
    line = text.splitlines().index("space = regatta.search.grid(batch_size=[])") + 1
    assert caught.value.place == f"none.py:{line}"


def test_functions_are_pickled_by_value(folder: Path) -> None:
    """Another process, which cannot import the file, can call what it defined."""
    module = load_file(Path(write(folder, "far.py", "def f(x):\n    return g(x) + 1\ndef g(x):\n    return 2 * x\n")))
    (folder / "sent.pkl").write_bytes(cloudpickle.dumps(module.f))
    (folder / "far.py").unlink()
    code = "import pickle; print(pickle.load(open('sent.pkl', 'rb'))(20))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "41\n"
    assert pickle.loads(cloudpickle.dumps(module.f))(1) == 3


def test_the_file_is_not_run_as_main(folder: Path) -> None:
    module = load_file(Path(write(folder, "my-sweep.py", "if __name__ == '__main__':\n    raise SystemExit(9)\n")))
    assert module.__name__ == "regatta_file_my_sweep"


def test_files_and_runs_are_distinguished(folder: Path) -> None:
    assert looks_like_file("a.py")
    assert looks_like_file("a.py:mine")
    assert looks_like_file(write(folder, "noextension", ""))
    assert not looks_like_file("digits-1")
    assert split_target("a.py:mine") == (Path("a.py"), "mine")
    assert split_target(write(folder, "odd:name", "")) == (Path("odd:name"), "sweep")


def test_a_file_that_launches_by_itself_is_stopped_before_it_trains(folder: Path) -> None:
    file = write(folder, "eager.py", SWEEP.replace("NAME", "sweep") + "\nsweep.launch()\n")
    with pytest.raises(UsageError, match="launches its sweep while it is read"):
        load_sweep(file)
    assert not (folder / ".regatta" / "runs").exists()


NEIGHBOUR_FILE = """import torch
def model_fn(config):
    net = torch.nn.Linear(64, 10)
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"])
def loss_fn(model, batch, config):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


SWEEP_FILE = """import regatta
from neighbour import model_fn, loss_fn
data = regatta.Dataset.digits(partitions=1)
space = regatta.search.grid(lr=[0.1], batch_size=[64])
cluster = regatta.Cluster(workers=1, kind="inline")
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=1, cluster=cluster, name="near")
"""


def run_regatta(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "regatta", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_run_imports_modules_beside_its_file_again(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR_FILE)
    (tmp_path / "near.py").write_text(SWEEP_FILE)
    done = run_regatta("run", "near.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_regatta("replay", "near", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = open_run("near", repo=tmp_path / ".regatta")
    with pytest.raises(NotFoundError, match="no configuration whose id starts with 'zzz'"):
        run.extend("zzz", 2)
