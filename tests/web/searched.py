"""Journals of searches that were not trained: a real search decides, a formula stands in for the models.

One partition, one unit per epoch; workers take the configuration that has waited longest.
"""

from __future__ import annotations

import heapq
import json
import math
from pathlib import Path
from typing import Any

from regatta.configuration import config_id
from regatta.journal.run_record import RunRecord
from regatta.search.base import Action, Goal, Report, Search, Train

START = 1_760_000_000.0


class Searched:
    def __init__(self, search: Search, epochs: int, workers: int = 4, name: str = "searched", seed: int = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self.name = name
        self._values: dict[str, dict[str, Any]] = {}
        self._wanted: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._age: dict[str, int] = {}  # epochs of the lineage before its own
        self._ready: list[tuple[float, str]] = []
        self._idle = [(START, f"w{w}") for w in range(workers)]
        goal = Goal("loss", "min", epochs, seed)
        self._say(START, "run", version=1, name=name, **vars(goal), rule="auto", search=search.describe(),
                  dataset={"name": "made", "train": [{"rows": 9}], "eval": []}, cluster={}, versions={})  # fmt: skip
        for _, worker in self._idle:
            self._say(START, "worker", worker=worker, state="up")
        self._act(search.start(goal), START)
        while self._ready:
            self._epoch(search)
        self._say(max(r["time"] for r in self.records), "end", status="done")
        self.records.sort(key=lambda record: record["time"])

    def record(self) -> RunRecord:
        run = RunRecord()
        for line in self.records:
            run.apply(line)
        return run

    def write(self, runs: Path) -> Path:
        folder = runs / self.name
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in self.records))
        return folder

    def _say(self, time: float, event: str, **fields: Any) -> None:
        self.records.append({"event": event, "time": time, **fields})

    def _act(self, actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Train):
                self._train(action, now)
            else:
                self._say(now, "stop", config=action.config)
                self._wanted[action.config] = 0

    def _train(self, action: Train, now: float) -> None:
        config = config_id(action.config)
        waits = self._wanted.get(config, 0) > self._reached.get(config, 0)
        if config not in self._values:
            self._values[config], self._reached[config] = action.config, 0
            parent = action.parent
            self._age[config] = self._age[parent] + self._reached[parent] if parent else 0
        self._wanted[config] = action.epochs
        after = self._reached.get(action.parent or "")
        self._say(now, "config", config=config, values=action.config, epochs=action.epochs, parent=action.parent,
                  parent_epoch=after)  # fmt: skip
        if not waits:
            heapq.heappush(self._ready, (now, config))

    def _epoch(self, search: Search) -> None:
        since, config = heapq.heappop(self._ready)
        if self._wanted[config] <= self._reached[config]:
            return
        free, worker = heapq.heappop(self._idle)
        start = max(since, free)
        values, epoch = self._values[config], self._reached[config] + 1
        end = start + 0.01 * (1 + values.get("batch_size", 32) / 64)
        self._reached[config] = epoch
        metrics = {"loss": self._loss(values, self._age[config] + epoch), "accuracy": 0.5}
        place = {"config": config, "epoch": epoch, "partition": 0, "worker": worker}
        self._say(end, "unit", kind="train", **place, start=start, end=end, rows=9, metrics=metrics, hop_bytes=9,
                  hop_seconds=0.001, load_seconds=0.0, save_seconds=0.001, state="s", hash="0")  # fmt: skip
        self._say(end, "report", config=config, epoch=epoch, metrics=metrics)
        heapq.heappush(self._idle, (end, worker))
        self._act(search.hear(Report(config, values, epoch, metrics)), end)
        if self._wanted[config] > epoch and config not in [waiting for _, waiting in self._ready]:
            heapq.heappush(self._ready, (end, config))

    def _loss(self, values: dict[str, Any], age: int) -> float:
        rate = math.log10(values["lr"])
        return (0.1 + abs(rate + 2) / 3) * (0.3 + math.exp(-age / 8)) + 0.02 * values.get("dropout", 0.0)
