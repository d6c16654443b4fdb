"""How much training a run has left, by the same estimates as its plan and its scheduler."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice

from regatta.journal.run_record import RunRecord
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.schedule.units import Unit


@dataclass(frozen=True)
class TrainingLeft:
    """Seconds of the training units that are left: of all of them, and of those that must run one after another."""

    total: float
    longest: float


class TrainingEstimates:
    """Follows the record of a run: each call takes what is new in it, and returns what is left."""

    def __init__(self) -> None:
        self._estimates: Estimates | None = None
        self._configs = self._profiles = self._units = 0  # how many were taken from the record
        self._trained: Counter[str] = Counter()
        self._packs: dict[str, str] = {}  # in which each configuration was trained last

    def left(self, record: RunRecord) -> TrainingLeft | None:
        """What is left to train; None as long as nothing was measured."""
        estimates = self._follow(record)
        if not self._profiles and not self._trained:
            return None
        partitions, pace = len(record.header["dataset"]["train"]), estimates.mean_pace()
        chains: defaultdict[str, float] = defaultdict(float)
        for config in record.configs.values():
            units = config.epochs * partitions - self._trained[config.id]
            if units > 0 and config.status in ("training", "waiting"):
                seconds = units * estimates.mean_seconds("train", config.id) * pace
                # Members of a pack have their shares of its time, so the units of the pack take the sum.
                chains[self._packs.get(config.id, config.id)] += seconds
        return TrainingLeft(sum(chains.values()), max(chains.values(), default=0.0))

    def _follow(self, record: RunRecord) -> Estimates:
        if self._estimates is None:
            dataset = record.header["dataset"]
            train, evals = ([part.get("rows") for part in dataset[kind]] for kind in ("train", "eval"))
            self._estimates = Estimates.for_partitions(train, evals)
        for config in islice(record.configs.values(), self._configs, None):
            self._estimates.add_model(config.id, config.values)
        for profile in record.profiles[self._profiles :]:
            self._estimates.set_measured_profile(profile["config"], profile)
        for unit in record.units[self._units :]:
            if unit.kind == "train":
                place = Unit("train", unit.config, unit.epoch, unit.partition)
                self._estimates.observe(place, unit.worker, unit.seconds)
                self._trained[unit.config] += 1
                self._packs.pop(unit.config, None)
                if unit.pack is not None:
                    self._packs[unit.config] = unit.pack
        self._configs, self._profiles, self._units = len(record.configs), len(record.profiles), len(record.units)
        return self._estimates
