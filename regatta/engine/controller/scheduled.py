"""Trials that are trained together: what the scheduler takes for one model is a model of one trial or of many.

The members of a model are in step: each unit of the model is one unit of each of them. Who is left out of a unit,
because it is stopped or has trained enough, leaves the model, and joins another when it is to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from regatta.engine.controller.trials import Trial
from regatta.plan.schedule.units import Unit


@dataclass
class ScheduledModel:
    """Some trials under one name; a single trial has its own."""

    name: str
    trials: list[Trial]
    to_judge: dict[int, list[Trial]] = field(default_factory=dict)  # by epoch: who trained it
    is_pack: bool = False
    ended: bool = False  # its trials are in other scheduled, or wait for one

    def active(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.stopped and not trial.failed]

    def epochs(self) -> int:
        """So many epochs are wanted of the model."""
        return max(trial.epochs for trial in self.active())

    def takes(self, unit: Unit) -> list[Trial]:
        """Who takes part in a unit that begins; who does not is in step no longer."""
        if unit.kind == "eval":
            waits = self.to_judge.get(unit.epoch, [])
            left_out = [trial for trial in waits if trial.stopped or trial.failed]
            self.to_judge[unit.epoch] = [trial for trial in waits if trial not in left_out]
            self.trials = [trial for trial in self.trials if trial not in left_out]
            return list(self.to_judge[unit.epoch])
        self.trials = [trial for trial in self.active() if trial.epochs >= unit.epoch]
        return list(self.trials)

    def trained(self, epoch: int, trials: list[Trial]) -> None:
        """These have trained an epoch, and are to be judged here, if anywhere."""
        for trial in trials:
            trial.visits = 0
        if not self.ended:
            self.to_judge[epoch] = trials

    def holds(self, trial: Trial) -> bool:
        return trial in self.everyone()

    def everyone(self) -> list[Trial]:
        """Those in step, and those that only wait to be judged."""
        found = dict.fromkeys(self.trials)
        for trials in self.to_judge.values():
            found |= dict.fromkeys(trials)
        return list(found)


class ScheduledModels:
    """The scheduled of a run, which of them each trial is in, who waits for one, and who is under way where."""

    def __init__(self) -> None:
        self._by_name: dict[str, ScheduledModel] = {}
        self._of: dict[str, ScheduledModel] = {}
        self._waiting: list[Trial] = []
        self._packs = 0
        self.under_way: dict[str, list[Trial]] = {}  # by worker

    def __getitem__(self, name: str) -> ScheduledModel:
        return self._by_name[name]

    def __iter__(self) -> Iterator[ScheduledModel]:
        return iter(self._by_name.values())

    def of(self, trial: Trial) -> ScheduledModel | None:
        """The model in which a trial is in step with others, or by itself."""
        model = self._of.get(trial.id)
        return model if model is not None and trial in model.trials else None

    def wait(self, trial: Trial) -> None:
        """A trial is to be put into a model once nothing of it is under way."""
        if trial not in self._waiting:
            self._waiting.append(trial)

    def ready(self) -> list[Trial]:
        """Those of the waiting whose last unit counts and who are nowhere else; they wait no longer."""
        found = [trial for trial in self._waiting if self._is_free(trial)]
        self._waiting = [trial for trial in self._waiting if trial not in found]
        return found

    def add(self, trials: Sequence[Trial], epochs_to_judge: Iterable[int]) -> ScheduledModel:
        """A new model, of which these epochs are trained and not judged yet."""
        name = trials[0].id
        if len(trials) > 1:
            self._packs += 1
            name = f"pack-{self._packs}"
        while name in self._by_name:  # it was by itself before, and in a pack since
            name += "+"
        waits = {epoch: list(trials) for epoch in epochs_to_judge}
        model = ScheduledModel(name, list(trials), waits, is_pack=len(trials) > 1)
        self._by_name[name] = model
        self._of.update({trial.id: model for trial in trials})
        return model

    def disband(self, model: ScheduledModel, alone: bool = False) -> None:
        """Its trials go on in other scheduled, or one by one: something under them took a worker with it."""
        for trial in model.everyone():
            trial.alone |= alone
            if not trial.stopped and not trial.failed:
                self.wait(trial)
        model.trials, model.to_judge, model.ended = [], {}, True

    def restart(self, left_of: Callable[[str], int]) -> None:
        """All who have units left wait for a model, as at the beginning; nothing is under way."""
        for model in self:
            if model.everyone() and left_of(model.name):
                self.disband(model)
        self._by_name, self._of = {}, {}

    def count_from(self, names: Iterable[str]) -> None:
        """There were packs of these names before this controller."""
        self._packs = max((int(name.removeprefix("pack-")) for name in names), default=0)

    def _is_free(self, trial: Trial) -> bool:
        elsewhere = self._of.get(trial.id)
        running = any(trial in trials for trials in self.under_way.values())
        return not trial.entries and not running and (elsewhere is None or not elsewhere.holds(trial))
