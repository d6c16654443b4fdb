"""Where the states of a run's models are, and how far each model is by what counts."""

from __future__ import annotations

from pathlib import Path

from regatta.data import Dataset
from regatta.engine.controller.trials import (
    Progress,
    Trial,
    Trials,
    progress,
)
from regatta.engine.messages import Task
from regatta.errors import NotFoundError
from regatta.journal.record import RunRecord
from regatta.paths import STATES
from regatta.plan.schedule.units import Unit
from regatta.store.states.state_archive import RunStates
from regatta.store.states.state_files import StateFolder


class StateFiles:
    """The files of states: which one a unit begins with, which one it leaves, which ones nobody needs."""

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        self.folder = folder
        self.states = StateFolder(folder / STATES)
        self._dataset = dataset

    def task(self, unit: Unit, trial: Trial, trials: Trials) -> Task:
        """What a worker is to do for one configuration."""
        state = self.state_for(unit, trial)
        if unit.kind == "eval":
            return Task("eval", trial.id, trial.values, unit.epoch, unit.partition, state)
        begins = trial.state is None and trial.origin is not None
        parent = trials[trial.parent].values if trial.parent and begins else None
        return Task(
            "train", trial.id, trial.values, unit.epoch, unit.partition, state,
            self.states.path(trial.id, unit.epoch, trial.visits + 1),
            ends_epoch=trial.visits + 1 == len(self._dataset.train), parent=parent,
        )  # fmt: skip

    def state_for(self, unit: Unit, trial: Trial) -> Path | None:
        """The state that a unit begins with; None: the model is new."""
        if unit.kind == "eval":
            return self._of_epoch(trial.id, unit.epoch)
        return trial.state or trial.origin

    def spent(self, trial: Trial, task: Task) -> Path | None:
        """The state that nobody needs once this unit counts: not those at ends of epochs, its parent's among them."""
        if trial.state is None:
            own = self.states.path(trial.id, 0, 0)
            return own if trial.origin == own else None
        return task.state_in if trial.visits > 0 else None

    def take_up(self, trial: Trial, record: RunRecord) -> Progress:
        """Where the units that count have left a trial; its state is brought there."""
        far = progress(record.configs[trial.id], len(self._dataset.train), len(self._dataset.eval))
        trial.visits = len(far.visited)
        if far.visited:
            trial.state = self.states.path(trial.id, far.epochs + 1, trial.visits)
        elif far.epochs:
            trial.state = self._brought_back(trial.id, far.epochs)
        elif trial.parent is not None and trial.parent_epoch is not None:
            target = self.states.path(trial.id, 0, 0)
            trial.origin = self._brought_back(trial.parent, trial.parent_epoch, target)
        return far

    def clear_away(self, record: RunRecord) -> None:
        """States that were being written, or that were no longer needed, when the last controller died."""
        last = {unit.config: unit.state for unit in record.units if unit.state is not None}
        ends = {self._of_epoch(unit.config, unit.epoch) for unit in record.units if unit.kind == "train"}
        wanted = ends | {self.folder / state for state in last.values() if state is not None}
        for path in self.states.folder.glob("*/*"):
            if path not in wanted:
                path.unlink(missing_ok=True)

    def _of_epoch(self, config: str, epoch: int) -> Path:
        return self.states.path(config, epoch, len(self._dataset.train))

    def _brought_back(self, config: str, epoch: int, target: Path | None = None) -> Path:
        """The state at the end of an epoch, out of the parameter store if it is there; under another name, if given."""
        try:
            return RunStates(self.folder).materialize(config, epoch, target)
        except NotFoundError:
            return self._of_epoch(config, epoch)  # workers may find it where this process does not look
