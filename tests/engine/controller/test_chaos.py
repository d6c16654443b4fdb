"""A run that is extended and resumed again and again, while its workers are killed: it trains what a calm run trains.

The benchmark `bench_chaos` does the same with hundreds of kills, frozen workers, full disks and torn journals.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from locations import HELPERS, ROOT

from regatta import Run, open_run

ROUNDS = 5
FUNCTIONS = """
import torch
from torch import nn

def model_fn(config):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])

def loss_fn(model, batch, config):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
LAUNCH = f"""
import sys
from pathlib import Path
import functions
from recipes import small_data
from regatta import Cluster, Sweep, search

folder = Path(sys.argv[1])
for name, epochs in (("calm", 1 + {ROUNDS}), ("rounds", 1)):
    Sweep(small_data(folder / "data"), search.grid(lr=[0.1, 0.05, 0.02, 0.01], batch_size=[5]), functions.model_fn,
          loss_fn=functions.loss_fn, epochs=epochs, visits="seeded", pack=False, repo=folder, name=name,
          cluster=Cluster.local(2, threads=1)).launch(progress=False)
"""
EXTEND = f"""
import os
import signal
import sys
import time
import regatta

assert "torch" not in sys.modules, "or workers would be forked from a process that has imported it"
for number in range({ROUNDS}):
    run = regatta.open_run("rounds", sys.argv[1])
    for config in run.record.configs:
        run.extend(config, 1)
    run = regatta.open_run("rounds", sys.argv[1]).go_on(wait=False, progress=False)
    while not run.done() and not any(worker.up for worker in list(run.record.workers.values())):
        time.sleep(0.01)
    for worker in list(run.record.workers.values())[number % 2 :][:1]:
        if worker.up and not run.done():
            try:
                os.kill(worker.info["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass
    run.result()
"""


def run_program(folder: Path, program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(HELPERS), *sys.path])}
    command = [sys.executable, "-c", program, str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


def test_a_run_that_is_extended_and_resumed_trains_what_a_calm_run_trains(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    run_program(tmp_path, LAUNCH)
    run_program(tmp_path, EXTEND)
    calm, run = (open_run(name, tmp_path) for name in ("calm", "rounds"))
    assert {config.status for config in run.record.configs.values()} == {"done"}
    assert len(run.record.sessions) == 1 + ROUNDS
    assert hashes(run) == hashes(calm)


@pytest.mark.slow
def test_chaos_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import bench_chaos

    tolls = bench_chaos.run_chaos(kills=10, seed=7)
    assert [problem for toll in tolls for problem in toll.problems] == []
    rows, problems = bench_chaos.run_rounds(rounds=2)
    assert ([code for _, code, _ in rows], problems) == ([0, 0], [])
    assert sum(toll.workers + toll.controllers for toll in tolls) >= 10
