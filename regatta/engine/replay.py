"""Train a run again in the order of its journal, and compare every state, bit for bit."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.cluster import Cluster
from regatta.engine.messages import Task
from regatta.engine.module_code import RunCode, code_changes
from regatta.errors import UsageError
from regatta.journal.run_record import ConfigRecord, RunRecord, UnitRecord
from regatta.search.base import Action, Goal, Report, Train

if TYPE_CHECKING:
    from regatta.sweep import Sweep


@dataclass(frozen=True)
class ReplayReport:
    """How many states were compared, how many are equal, and which differ."""

    units: int
    equal: int
    left_out: int = 0  # units of unfinished epochs
    differing: list[dict[str, Any]] = field(default_factory=list)
    changed_code: list[str] = field(default_factory=list)  # modules that are not those that the run was trained with

    @property
    def ok(self) -> bool:
        return self.units == self.equal


@dataclass
class _ReplaySearch:
    """A search that asks for exactly what was trained; for children when their parent reaches the same epoch."""

    configs: list[tuple[ConfigRecord, int]]  # with the number of whole epochs

    def describe(self) -> dict[str, Any]:
        return {"kind": "replay"}

    def start(self, goal: Goal) -> list[Action]:
        return [Train(dict(config.values), epochs) for config, epochs in self.configs if config.parent_epoch is None]

    def hear(self, report: Report) -> list[Action]:
        parent = (report.config, report.epoch)
        return [
            Train(dict(config.values), epochs, config.parent)
            for config, epochs in self.configs
            if (config.parent, config.parent_epoch) == parent
        ]


def replay(sweep: Sweep, record: RunRecord, code: RunCode | None = None) -> ReplayReport:
    """Execute the sweep again; each model visits the partitions in the recorded order. `code` is that of the run."""
    sweep.dataset.check(input_fn=sweep.recipe.input_fn is not None)
    then, now = record.header["dataset"]["fingerprint"], sweep.dataset.describe()["fingerprint"]
    if then != now:
        raise UsageError(f"The data set is not the one of the run: its fingerprint was {then} and is {now}.")
    partitions = len(sweep.dataset.train)
    whole = {config.id: _whole_epochs(config, partitions) for config in record.configs.values()}
    wanted = [unit for unit in record.units if unit.kind == "train"]
    compared = {_key(unit): unit for unit in wanted if unit.epoch <= whole[unit.config]}
    again = copy.copy(sweep)
    again.search = _ReplaySearch([(c, whole[c.id]) for c in record.configs.values() if whole[c.id]])
    again.pack = False  # packs give the same bits
    again.cluster = _wide_enough(Cluster(**record.header["cluster"]), compared.values())
    orders = {c.id: {e: c.visits(e) for e in range(1, whole[c.id] + 1)} for c in record.configs.values()}
    if not compared:
        return ReplayReport(0, 0, len(wanted))
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        result = again.execute(Path(folder), orders=orders, widths=_widths(again.cluster, compared))
    found = {_key(unit): unit.hash for unit in result.units if unit.kind == "train"}
    differing = []
    for key, unit in compared.items():
        if key not in found or found[key] != unit.hash:
            place = {"config": unit.config, "epoch": unit.epoch, "partition": unit.partition}
            differing.append({**place, "recorded": unit.hash, "replayed": found.get(key)})
    changes = [*(code or {}).get("changed", ()), *map(str, code_changes(code))]
    return ReplayReport(len(compared), len(compared) - len(differing), len(wanted) - len(compared), differing, changes)


def _wide_enough(cluster: Cluster, units: Iterable[UnitRecord]) -> Cluster:
    """The cluster of the run, or one with larger groups if a resumed session of the run had those."""
    widest = max((unit.width for unit in units), default=1)
    if widest <= (cluster.group or 1):
        return replace(cluster, group=cluster.group or 1)
    groups = max(1, (cluster.workers or 1) // widest)
    return Cluster.local(groups * widest, cluster.threads, cluster.device, group=widest)


def _widths(cluster: Cluster, units: Mapping[tuple[str, int, int], UnitRecord]) -> Callable[[Task], int] | None:
    """How many workers ran each unit; None: always the whole group. Evaluations do not depend on it."""
    if all(unit.width == (cluster.group or 1) for unit in units.values()):
        return None
    known = {key: unit.width for key, unit in units.items()}
    return lambda task: known.get((task.config, task.epoch, task.partition), 1)


def _whole_epochs(config: ConfigRecord, partitions: int) -> int:
    epoch = 0
    while len(config.visits(epoch + 1)) == partitions:
        epoch += 1
    return epoch


def _key(unit: UnitRecord) -> tuple[str, int, int]:
    return unit.config, unit.epoch, unit.partition
