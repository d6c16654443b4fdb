"""The controller under losses at every moment, injected around the inline pool."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from recipes import plain_fn, plain_loss, small_data

from regatta import Cluster, Dataset, Sweep, search
from regatta.engine import workers
from regatta.engine.messages import Event, TaskBegun, TaskDone, WorkerLost, WorkerReady, WorkerSetup
from regatta.engine.workers.inline import InlinePool
from regatta.journal.journal_file import read_journal
from regatta.journal.run_record import RunRecord

EPOCHS = 2
FATES = ("before", "unheard", "after", "late")


class LosingPool(InlinePool):
    """Loses workers at random, at one of four moments of a unit.

    before: the unit left nothing. unheard: its state is published, but the controller does not know. after: the
    controller knows, but the state is not durable. late: the state is durable too.
    """

    def __init__(self, cluster: Cluster, setup: WorkerSetup, luck: random.Random, share: float, fair: bool) -> None:
        super().__init__(cluster, setup)
        self.luck = luck
        self.chance = share
        self.fair = fair  # strikes a model again only after it has got on
        self.got_on: set[str] = set()
        self.lost: Counter[str] = Counter()
        self.back: list[Event] = []

    def events(self) -> list[Event]:
        if self.back and (self._tasks.empty() or self.luck.random() < 0.5):
            back, self.back = self.back, []
            return back
        found = super().events()
        done = next((event for event in found if isinstance(event, TaskDone)), None)
        if done is None or done.task.kind == "pilot":
            return found
        if self.luck.random() < self.chance and (done.task.config in self.got_on or not self.fair):
            self.got_on.discard(done.task.config)
            return self._strike(done, found)
        if done.task.kind == "train":
            self.got_on.add(done.task.config)
        return found

    def _strike(self, done: TaskDone, found: list[Event]) -> list[Event]:
        fate = self.luck.choice(FATES)
        self.lost[fate] += 1
        self.back.append(WorkerReady(done.worker, {"pid": 1, "device": "cpu", "threads": 1}))
        if fate == "before" and done.task.state_out is not None:
            done.task.state_out.unlink()
        heard = {"before": [], "unheard": [], "after": [done], "late": found}[fate]
        return [TaskBegun(done.worker), *heard, WorkerLost(done.worker, "was struck")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def sweep_on(data: Dataset, rule: str = "auto", epochs: int = EPOCHS) -> Sweep:
    space = search.grid(lr=[0.1, 0.05, 0.02], batch_size=[9])
    return Sweep(data, space, plain_fn, loss_fn=plain_loss, epochs=epochs, cluster=Cluster.inline(3), rule=rule)


def executed(data: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int, **how: Any) -> RunRecord:
    """A run on unlucky workers; they share the partitions, so that a unit can go elsewhere."""
    pools: list[LosingPool] = []

    def open_pool(cluster: Cluster, setup: WorkerSetup) -> LosingPool:
        pools.append(LosingPool(cluster, setup, random.Random(seed), how["share"], how.get("fair", False)))
        return pools[0]

    monkeypatch.setattr(workers, "open_pool", open_pool)
    rule = "randomized" if seed % 2 else "auto"
    record = sweep_on(data, rule, how.get("epochs", EPOCHS)).execute(folder)
    monkeypatch.undo()
    downs = [line for line in read_journal(folder / "journal.jsonl") if line.get("state") == "down"]
    assert len(downs) == sum(pools[0].lost.values()) > 0
    return record


def check(record: RunRecord, folder: Path) -> None:
    for config in record.configs.values():
        counted = Counter((unit.kind, unit.epoch, unit.partition) for unit in config.units)
        assert set(counted.values()) <= {1}, "a unit that was done again counts once"
        if config.status == "failed":
            assert "took 3 workers with it" in str(config.error)
        else:
            assert config.status == "done"
            assert len(counted) == EPOCHS * (4 + 3)
        for epoch in config.reports:
            last = [unit for unit in config.units if unit.kind == "train" and unit.epoch == epoch][-1]
            assert blake3((folder / str(last.state)).read_bytes()).hexdigest() == last.hash


@pytest.mark.parametrize("seed", range(12))
def test_lost_workers_change_no_weights(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    record = executed(data, tmp_path, monkeypatch, seed, share=0.25)
    check(record, tmp_path)
    done = [config for config in record.configs.values() if config.status == "done"]
    assert done
    orders = {c.id: {epoch: c.visits(epoch) for epoch in range(1, EPOCHS + 1)} for c in done}
    (tmp_path / "calm").mkdir()
    calm = sweep_on(data).execute(tmp_path / "calm", orders=orders)
    for config in done:
        again = calm.configs[config.id]
        hashes = [{(u.epoch, u.partition): u.hash for u in c.units if u.kind == "train"} for c in (config, again)]
        assert hashes[0] == hashes[1]
        assert config.reports == again.reports


def test_losses_between_finished_units_fail_no_trial(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that gets on between the losses is not to blame, however many they are."""
    record = executed(data, tmp_path, monkeypatch, seed=3, share=0.6, epochs=4, fair=True)
    assert max(_units_lost(tmp_path).values()) >= 3
    assert {config.status for config in record.configs.values()} == {"done"}


def _units_lost(folder: Path) -> Counter[str]:
    """How often a worker was lost with a unit of each configuration."""
    running: dict[str, str] = {}
    lost: Counter[str] = Counter()
    for line in read_journal(folder / "journal.jsonl"):
        if line["event"] == "start":
            running[line["worker"]] = line["config"]
        elif line["event"] == "unit":
            running.pop(line["worker"], None)
        elif line.get("state") == "down" and line["worker"] in running:
            lost[running.pop(line["worker"])] += 1
    return lost
