"""What the hop scheduler treats as one model: a single trial, or a pack of trials.

The trials of a scheduled model are in step: each unit of the model is one unit of each trial. A trial that takes no
part in a unit, because it is stopped or has trained enough, leaves the model. It joins another one when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from regatta.engine.controller.trials import Trial
from regatta.plan.schedule.units import Unit


@dataclass
class ScheduledModel:
    """One or more trials under one name."""

    name: str  # the scheduler's name for it: no other model has it
    plan_name: str  # the plan's name for it: the id of its trial, or the name of its pack
    trials: list[Trial]
    to_evaluate: dict[int, list[Trial]] = field(default_factory=dict)  # by epoch: the trials that have trained it
    is_pack: bool = False
    ended: bool = False  # its trials are in other models, or wait for one

    def active(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.active]

    def start_unit(self, unit: Unit) -> list[Trial]:
        """The trials that take part in a unit. The others are no longer in step and leave the model."""
        if unit.kind == "eval":
            waiting = self.to_evaluate.get(unit.epoch, [])
            left_out = [trial for trial in waiting if not trial.active]
            self.to_evaluate[unit.epoch] = [trial for trial in waiting if trial not in left_out]
            self.trials = [trial for trial in self.trials if trial not in left_out]
            return list(self.to_evaluate[unit.epoch])
        self.trials = [trial for trial in self.active() if trial.epochs >= unit.epoch]
        return list(self.trials)

    def end_epoch(self, epoch: int, trials: list[Trial]) -> None:
        """These trials have trained an epoch; unless the model has ended, they are evaluated as part of it."""
        for trial in trials:
            trial.visits = 0
        if not self.ended:
            self.to_evaluate[epoch] = trials

    def all_trials(self) -> list[Trial]:
        """The trials in step, and those that only wait to be evaluated."""
        found = dict.fromkeys(self.trials)
        for trials in self.to_evaluate.values():
            found |= dict.fromkeys(trials)
        return list(found)


class ScheduledModels:
    """The scheduled models of a run, the trials that wait for one, and the trials that each worker trains."""

    def __init__(self) -> None:
        self.running: dict[str, list[Trial]] = {}  # by worker
        self._by_name: dict[str, ScheduledModel] = {}
        self._by_trial: dict[str, ScheduledModel] = {}
        self._plan_names: dict[str, str] = {}  # by name, for every model there ever was
        self._waiting: list[Trial] = []
        self._packs = 0

    def __getitem__(self, name: str) -> ScheduledModel:
        return self._by_name[name]

    def __iter__(self) -> Iterator[ScheduledModel]:
        return iter(self._by_name.values())

    def model_of(self, trial: Trial) -> ScheduledModel | None:
        """The model in which a trial is in step, alone or with others."""
        model = self._by_trial.get(trial.id)
        return model if model is not None and trial in model.trials else None

    def plan_name(self, name: str) -> str:
        """The plan's name for a model that the scheduler knows by `name`."""
        return self._plan_names.get(name, name)

    def wait(self, trial: Trial) -> None:
        """Put a trial into a model as soon as no unit of it is running or uncounted."""
        if trial not in self._waiting:
            self._waiting.append(trial)

    def take_ready(self, all_units_count: Callable[[Trial], bool]) -> list[Trial]:
        """The waiting trials that can be put into a model now; they wait no longer."""
        found = [trial for trial in self._waiting if all_units_count(trial) and self._is_free(trial)]
        self._waiting = [trial for trial in self._waiting if trial not in found]
        return found

    def add(self, trials: Sequence[Trial], epochs_to_evaluate: Iterable[int]) -> ScheduledModel:
        """A new model of these trials, which have trained these epochs without being evaluated yet."""
        if len(trials) > 1:
            self._packs += 1
            name = plan_name = f"pack-{self._packs}"
        else:
            name = plan_name = trials[0].id
            times = 1
            while name in self._by_name:  # it was scheduled alone before, and in a pack since
                times += 1
                name = f"{plan_name}.{times}"
        to_evaluate = {epoch: list(trials) for epoch in epochs_to_evaluate}
        model = ScheduledModel(name, plan_name, list(trials), to_evaluate, is_pack=len(trials) > 1)
        self._by_name[name] = model
        self._plan_names[name] = plan_name
        self._by_trial.update({trial.id: model for trial in trials})
        return model

    def disband(self, model: ScheduledModel, alone: bool = False) -> None:
        """Let its trials go on in other models; each `alone` if a worker was lost while it trained them."""
        for trial in model.all_trials():
            trial.alone |= alone
            if trial.active:
                self.wait(trial)
        model.trials, model.to_evaluate, model.ended = [], {}, True

    def leave(self, trial: Trial) -> None:
        """Take a trial out of its model: it is no longer in step with the others."""
        model = self._by_trial.get(trial.id)
        if model is not None:
            model.trials = [other for other in model.trials if other is not trial]
            for epoch, waiting in model.to_evaluate.items():
                model.to_evaluate[epoch] = [other for other in waiting if other is not trial]

    def restart(self, units_left: Callable[[str], int]) -> None:
        """Let all trials that have units left wait for a model, as at the start of a run; no unit is running."""
        for model in self:
            if model.all_trials() and units_left(model.name):
                self.disband(model)
        self._by_name, self._by_trial = {}, {}

    def count_packs_from(self, names: Iterable[str]) -> None:
        """Give no pack a name that an earlier controller of the run has used."""
        self._packs = max((int(name.removeprefix("pack-")) for name in names), default=0)

    def _is_free(self, trial: Trial) -> bool:
        model = self._by_trial.get(trial.id)
        running = any(trial in trials for trials in self.running.values())
        return not running and (model is None or trial not in model.all_trials())
