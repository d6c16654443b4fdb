"""Journals of simulated runs, equal for equal arguments.

With them the display, the pages and the commands are tested on failures, NaN and thousands of units without training.
"""

from __future__ import annotations

import heapq
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta.configuration import config_id
from regatta.journal.run_record import RunRecord

START = 1_760_000_000.0


@dataclass
class FakeRun:
    """A run to simulate. `fails` and `nans` are the numbers of configurations that fail or diverge, from 0."""

    configs: int = 8
    partitions: int = 4
    epochs: int = 3
    workers: int = 2
    name: str = "made"
    fails: tuple[int, ...] = ()
    nans: tuple[int, ...] = ()
    pilots: bool = True
    status: str = "done"
    metric: str = "loss"
    mode: str = "min"
    seed: int = 0
    records: list[dict[str, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._values = [self._config(number) for number in range(self.configs)]
        self._ids = [config_id(values) for values in self._values]
        self._header()
        self._train()
        self._write(self._time, "end", status=self.status)
        self.records.sort(key=lambda record: record["time"])

    def record(self) -> RunRecord:
        run = RunRecord()
        for line in self.records:
            run.apply(line)
        return run

    def write(self, runs: Path) -> Path:
        folder = runs / self.name
        folder.mkdir(parents=True)
        path = folder / "journal.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        return path

    def _config(self, number: int) -> dict[str, Any]:
        return {"hidden": [32, 128][number % 2], "lr": 10.0 ** -(1 + number % 4), "batch_size": 32, "id": number}

    def _write(self, time: float, event: str, **fields: Any) -> None:
        self.records.append({"event": event, "time": time, **fields})

    def _header(self) -> None:
        train = [{"path": f"train-{p}.npz", "rows": 100} for p in range(self.partitions)]
        self._write(
            START, "run", version=1, name=self.name, seed=self.seed, epochs=self.epochs, metric=self.metric,
            mode=self.mode, rule="auto", search="grid", dataset={"name": "made", "train": train, "eval": train[:1]},
            cluster={"kind": "local", "workers": self.workers}, versions={"regatta": "0.1.0"},
        )  # fmt: skip
        for w in range(self.workers):
            self._write(START, "worker", worker=f"w{w}", state="up", pid=100 + w, device="cpu", threads=1)
        for ident, values in zip(self._ids, self._values, strict=True):
            self._write(START, "config", config=ident, values=values, epochs=self.epochs, parent=None)

    def _train(self) -> None:
        self._time = START + 0.1
        if self.pilots:
            self._profile()
        todo = [self._visits() for _ in range(self.configs)]
        idle = [(self._time, w) for w in range(self.workers)]
        ready = [self._time] * self.configs
        while idle:
            now, w = heapq.heappop(idle)
            choice = next((c for c, visits in enumerate(todo) if ready[c] <= now and self._here(visits, w)), None)
            if choice is not None:
                end = self._unit(choice, todo[choice], now, w)
                ready[choice] = end
                heapq.heappush(idle, (end, w))
            elif any(self._later(visits, w) for visits in todo):
                later = min(t for t in [*ready, *(t for t, _ in idle), now + 0.01] if t > now)
                heapq.heappush(idle, (later, w))
            self._time = max(self._time, now)

    def _profile(self) -> None:
        for c in range(min(self.configs, self.workers)):
            self._write(self._time + 0.05, "pilot", config=self._ids[c], worker=f"w{c}", start=self._time,
                      end=self._time + 0.05, seconds={"train": 1e-4, "eval": 1e-5}, state_bytes=20_000)  # fmt: skip
        self._time += 0.05

    def _visits(self) -> list[list[tuple[str, int, int]]]:
        """The open units of each epoch: training in any order, then the evaluation."""
        return [
            [*(("train", epoch, p) for p in range(self.partitions)), ("eval", epoch, 0)]
            for epoch in range(1, self.epochs + 1)
        ]

    def _open(self, visits: list[list[tuple[str, int, int]]]) -> list[tuple[str, int, int]]:
        units = visits[0] if visits else []
        training = [u for u in units if u[0] == "train"]
        return training or units

    def _here(self, visits: list[list[tuple[str, int, int]]], w: int) -> bool:
        return any(u[2] % self.workers == w for u in self._open(visits))

    def _later(self, visits: list[list[tuple[str, int, int]]], w: int) -> bool:
        return any(u[2] % self.workers == w for epoch in visits for u in epoch)

    def _unit(self, c: int, visits: list[list[tuple[str, int, int]]], now: float, w: int) -> float:
        unit = next(u for u in self._open(visits) if u[2] % self.workers == w)
        kind, epoch, partition = unit
        ident = self._ids[c]
        speed = 0.02 if kind == "train" else 0.004
        end = now + speed * (1 + c % 3) * self._random.uniform(0.9, 1.1)
        where = {"kind": kind, "config": ident, "epoch": epoch, "partition": partition, "worker": f"w{w}"}
        self._write(now, "start", **where)
        if c in self.fails and epoch == 2:
            self._write(end, "failed", **where, error="ValueError: bad luck",
                      traceback="Traceback (most recent call last):\n  ...\nValueError: bad luck\n")  # fmt: skip
            visits.clear()
            return end
        value = float("nan") if c in self.nans and epoch > 1 else (1 + c % 5) / (epoch + partition / 10)
        self._write(end, "unit", **where, start=now, end=end, rows=100, metrics={self.metric: value},
                  hop_bytes=20_000 * (kind == "train"), hop_seconds=0.0005, load_seconds=0.0, save_seconds=0.001,
                  state=f"{ident}-{epoch}", hash="00")  # fmt: skip
        visits[0].remove(unit)
        if not visits[0]:
            self._write(end, "report", config=ident, epoch=epoch, metrics={self.metric: value, "accuracy": 0.5})
            visits.pop(0)
        return end
