"""Which trials are trained side by side, as the plan says of their builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from regatta.engine.controller.scheduled import ScheduledModel
from regatta.engine.controller.trials import Progress, Trial
from regatta.plan.strategy.form_packs import (
    Builds,
    PackCandidate,
    PackRate,
    form_packs,
)

Orders: TypeAlias = Callable[
    [str, int], Mapping[int, Sequence[int]] | None
]  # of a configuration, up to an epoch: epoch -> partitions in order


class Packer:
    """Forms packs of at most as many members as the plan says."""

    def __init__(self, orders: Orders) -> None:
        self.sizes: Mapping[str, int] = {}  # by the build of members
        self.rates: Mapping[str, PackRate] = {}
        self.builds = Builds()
        self._orders = orders

    def form(self, places: Mapping[Trial, Progress], idle: int) -> list[list[Trial]]:
        """The trials in scheduled, at least as many as there are idle workers."""
        trials = {trial.id: trial for trial in places}
        candidates = [self._candidate(trial, far) for trial, far in places.items()]
        groups = form_packs(candidates, self.sizes, idle)
        return [[trials[name] for name in names] for names in groups]

    def fits(self, model: ScheduledModel) -> bool:
        """Whether a model is not larger than the plan has it; models on different ways cannot be put together."""
        first = model.trials[0]
        return len(model.trials) <= max(1, self.sizes.get(self.builds.of(first.id, first.values), 1))

    def gain(self, model: ScheduledModel) -> float:
        """So many times as fast as one after another its trials are expected to be."""
        rate = self._rate(model)
        return 1.0 if rate is None else rate.gain_of(len(model.trials))

    def fixed(self, model: ScheduledModel) -> float:
        """Seconds of a unit that each trial takes to be put among the others."""
        rate = self._rate(model)
        return 0.0 if rate is None or not model.is_pack else rate.fixed

    def describe(self, model: ScheduledModel) -> str:
        text, rate = f"{model.name}: {len(model.trials)} configurations are trained side by side", self._rate(model)
        if rate is not None:
            gain = f"their steps about {self.gain(model):.1f}x as fast as one after another"
            text += f", {gain} ({rate.gain:.1f}x measured with {rate.members})"
        return f"{text}."

    def _candidate(self, trial: Trial, far: Progress) -> PackCandidate:
        """What goes together is of one build, at one place, and has the same way before it."""
        fit = not trial.alone and not trial.stopped
        alike = (far, trial.epochs, trial.most, repr(self._orders(trial.id, trial.epochs)))
        return PackCandidate(trial.id, self.builds.of(trial.id, trial.values) if fit else "", alike)

    def _rate(self, model: ScheduledModel) -> PackRate | None:
        first = model.trials[0]
        return self.rates.get(self.builds.of(first.id, first.values))
