"""Puts trials of one build into packs, as large as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from regatta.configuration import Scalar
from regatta.engine.controller.scheduled_models import ScheduledModel
from regatta.engine.controller.trials import Progress, Trial
from regatta.plan.schedule.model_kinds import LabelsByValues
from regatta.plan.strategy.form_packs import PackCandidate, PackRate, form_packs

# The partitions by epoch that a configuration visits in order, up to an epoch; None where the scheduler decides.
Orders: TypeAlias = Callable[[str, int], Mapping[int, Sequence[int]] | None]


class Packer:
    def __init__(self, orders: Orders, data_of: Callable[[Mapping[str, Scalar]], str] = lambda values: "") -> None:
        """`data_of(values)` names the data set of a configuration, where there are several."""
        self.sizes: Mapping[str, int] = {}  # of the largest pack, by the build of its members
        self.rates: Mapping[str, PackRate] = {}
        self.builds = LabelsByValues()
        self._orders, self._data_of = orders, data_of

    def form(self, progress: Mapping[Trial, Progress], idle: int) -> list[list[Trial]]:
        """The trials in packs or singly: at least as many models as there are idle workers."""
        trials = {trial.id: trial for trial in progress}
        candidates = [self._candidate(trial, done) for trial, done in progress.items()]
        return [[trials[name] for name in names] for names in form_packs(candidates, self.sizes, idle)]

    def _candidate(self, trial: Trial, done: Progress) -> PackCandidate:
        """Members of a pack are of one build and data set, have made equal progress and have the same units left."""
        packable = not trial.alone and not trial.stopped
        orders = repr(self._orders(trial.id, trial.epochs))
        alike = (done, trial.epochs, trial.most, orders, self._data_of(trial.values))
        return PackCandidate(trial.id, self.builds.label_of(trial.id, trial.values) if packable else "", alike)

    def fits(self, model: ScheduledModel) -> bool:
        """Whether a scheduled model has no more members than the plan says."""
        return len(model.trials) <= max(1, self.sizes.get(self._build(model), 1))

    def gain(self, model: ScheduledModel) -> float:
        """How many times as fast as one after another the members are expected to train."""
        rate = self.rates.get(self._build(model))
        return 1.0 if rate is None else rate.gain_of(len(model.trials))

    def fixed(self, model: ScheduledModel) -> float:
        """Seconds of a unit that each member takes to be put into the pack."""
        rate = self.rates.get(self._build(model))
        return 0.0 if rate is None or not model.is_pack else rate.fixed

    def describe(self, model: ScheduledModel) -> str:
        text = f"{model.name}: {len(model.trials)} configurations are trained side by side"
        rate = self.rates.get(self._build(model))
        if rate is not None:
            gain = f"their steps about {self.gain(model):.1f}x as fast as one after another"
            text += f", {gain} ({rate.gain:.1f}x measured with {rate.members})"
        return f"{text}."

    def _build(self, model: ScheduledModel) -> str:
        first = model.trials[0]
        return self.builds.label_of(first.id, first.values)
