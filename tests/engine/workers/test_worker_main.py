"""What a worker does before its first unit: it imports all that its functions need, in one thread."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pools import next_event

from regatta.cluster import Cluster
from regatta.engine.messages import Recipe, Task, TaskDone, WorkerReady
from regatta.engine.workers import open_pool
from regatta.engine.workers.worker_main import readable_partitions
from regatta.testing.workers import write_setup

BEGIN = """
import sys
import time
from pathlib import Path
from regatta.engine.messages import Recipe, Task
from regatta.engine.workers.training.trainer import Trainer
from regatta.testing.workers import input_fn, write_setup
from dataclasses import replace

def model_fn(config):
    import torch  # as late as possible
    net = torch.nn.Linear(3, 1).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1)

def loss_fn(model, batch, config):
    return ((model(batch[0])[:, 0] - batch[1]) ** 2).mean()

folder = Path(sys.argv[1])
setup = replace(write_setup(folder), recipe_or_pickle=Recipe(model_fn, loss_fn, input_fn=input_fn))
task = Task("train", "c", {"batch_size": 4}, 1, 0, None, folder / "states" / "c" / "0001-001.safetensors")
trainer = Trainer("w0", setup)
"""


def run_program(folder: Path, program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    text = BEGIN + textwrap.dedent(program)
    ended = subprocess.run([sys.executable, "-c", text, str(folder)], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_reading_a_state_ahead_imports_no_framework(tmp_path: Path) -> None:
    """Another thread would import it at the same time as the unit, and one of them would get half of it."""
    run_program(
        tmp_path,
        """
        trainer.run(task)
        assert task.state_out.exists()
        """,
    )
    run_program(
        tmp_path,
        """
        trainer.prefetch(task.state_out)
        assert "torch" not in sys.modules
        trainer.run(replace(task, state_in=task.state_out))
        trainer.prefetch(task.state_out)
        assert trainer._prefetched[0] == task.state_out
        """,
    )


def test_importing_a_framework_is_no_part_of_a_unit(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        """
        begin = time.time()
        done = trainer.run(task)
        elapsed = time.time() - begin
        assert done.end - done.start < elapsed / 2, (done, elapsed)
        """,
    )


def test_a_worker_is_ready_once_its_functions_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a resumed run, whose functions the controller passes on without loading them."""
    (tmp_path / "slow_import.py").write_text(
        "import time\nfrom regatta.testing.workers import model_fn, loss_fn as plain_loss\ntime.sleep(2.0)\n"
        "def loss_fn(*arguments):\n    return plain_loss(*arguments)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    functions: Any = importlib.import_module("slow_import")
    setup = write_setup(tmp_path)
    pickled = cloudpickle.dumps(Recipe(functions.model_fn, functions.loss_fn, framework="numpy"))
    pool = open_pool(Cluster.local(1, threads=1), replace(setup, recipe_or_pickle=pickled))
    try:
        pool.start()
        next_event(pool, WorkerReady)
        values = {"batch_size": 4, "lr": 0.1}
        pool.submit("w0", Task("train", "c", values, 1, 0, None, tmp_path / "states" / "c" / "0001-001.safetensors"))
        done = next_event(pool, TaskDone)
    finally:
        pool.close()
    assert done.end - done.start < 1.0


def test_a_worker_says_which_partitions_it_can_open(tmp_path: Path) -> None:
    setup = write_setup(tmp_path)
    assert readable_partitions(setup) == {"train": [0, 1, 2], "eval": [0, 1]}
    setup.train[1].unlink()
    setup.train[2].unlink()
    setup.train[2].mkdir()
    assert readable_partitions(setup) == {"train": [0, 2], "eval": [0, 1]}
