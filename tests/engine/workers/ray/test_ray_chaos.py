"""Twenty kills at random moments of one run on Ray, one of them of a whole node; the weights do not show it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RayNodes
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Sweep, search
from regatta.journal.journal_file import Record, read_journal
from regatta.journal.run_record import RunRecord

pytest.importorskip("ray")
KILLS, EPOCHS, EVERY = 20, 16, 6


def hasty_loss(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    """The same without the sleeping."""
    return loss_fn(model, batch, {**config, "sleeps": 0.0})


class Killer:
    """Kills a random worker, a random moment after a number of starts; once, its whole node."""

    def __init__(self, nodes: RayNodes, seed: int) -> None:
        self.nodes = nodes
        self.luck = random.Random(seed)
        self.starts = self.struck = 0
        self.node_at = self.luck.randrange(5, 15)
        self.threads: list[threading.Timer] = []

    def __call__(self, record: RunRecord, line: Record) -> None:
        if line["event"] != "start" or line["kind"] != "train":
            return
        self.starts += 1
        up = [worker for worker in record.workers.values() if worker.up]
        if self.starts < EVERY * (self.struck + 1) or self.struck == KILLS or not up:
            return
        self.struck += 1
        strike = self.remove_node if self.struck == self.node_at else self.kill
        self.threads.append(threading.Timer(self.luck.random() * 0.4, strike, [self.luck.choice(up).info]))
        self.threads[-1].start()

    def kill(self, info: dict[str, Any]) -> None:
        with contextlib.suppress(ProcessLookupError):  # its node went meanwhile
            os.kill(info["pid"], signal.SIGKILL)

    def remove_node(self, info: dict[str, Any]) -> None:
        self.nodes.remove(info["node"])


@pytest.mark.slow
def test_twenty_kills_do_not_change_the_weights(nodes: RayNodes, tmp_path: Path, one_thread: None) -> None:
    data = small_data(tmp_path / "data")
    space = search.grid(kind=["adam", "dropout", "momentum"], lr=0.01, batch_size=9, sleeps=0.05)

    def executed(folder: Path, cluster: Cluster, loss: Any, *listeners: Any) -> RunRecord:
        folder.mkdir()
        sweep = Sweep(
            data, space, model_fn, loss_fn=loss, epochs=EPOCHS, cluster=cluster, visits="seeded", framework="torch"
        )
        return sweep.execute(folder, listeners=listeners)

    calm = executed(tmp_path / "calm", Cluster.inline(1, "cpu"), hasty_loss)
    nodes.resize(3)
    killer = Killer(nodes, seed=7)
    record = executed(tmp_path / "run", Cluster.ray(3), loss_fn, killer)
    for thread in killer.threads:
        thread.join()
    assert killer.struck == KILLS
    lines = list(read_journal(tmp_path / "run" / "journal.jsonl"))
    downs = [line["reason"] for line in lines if line.get("state") == "down"]
    assert downs.count("was lost with its node") == 1
    assert len(downs) >= KILLS - 2, "some strike a worker that was dead or down already"
    for config in record.configs.values():
        counted = Counter((unit.kind, unit.epoch, unit.partition) for unit in config.units)
        assert set(counted.values()) == {1}
        assert len(counted) == EPOCHS * (4 + 3)
        assert [u.hash for u in config.units if u.kind == "train"] == [
            u.hash for u in calm.configs[config.id].units if u.kind == "train"
        ]
        assert config.reports == calm.configs[config.id].reports
    starts = sum(line["event"] == "start" for line in lines)
    assert starts <= sum(len(config.units) for config in record.configs.values()) + 2 * len(downs)
