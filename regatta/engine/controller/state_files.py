"""The state files of a run: which one a unit starts from, which one it writes, and which ones can be deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regatta.data import Dataset
from regatta.engine.controller.trials import Progress, Trial, Trials, progress
from regatta.engine.messages import Task
from regatta.errors import NotFoundError
from regatta.journal.run_record import RunRecord
from regatta.paths import STATES
from regatta.plan.schedule.units import Unit
from regatta.store.states.state_archive import RunStates
from regatta.store.states.state_files import StateFolder


class StateFiles:
    """Chooses state files for units, and brings archived states back."""

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        self.folder = folder
        self.states = StateFolder(folder / STATES)
        self._dataset = dataset

    def task(self, unit: Unit, trial: Trial, trials: Trials) -> Task:
        state = self.state_for(unit, trial)
        task = Task(unit.kind, trial.id, trial.values, unit.epoch, unit.partition, state)
        if unit.kind == "eval":
            return task
        starts_warm = trial.state is None and trial.initial_state is not None
        return replace(
            task,
            state_out=self.states.path(trial.id, unit.epoch, trial.visits + 1),
            ends_epoch=trial.visits + 1 == len(self._dataset.train),
            parent=trials[trial.parent].values if trial.parent and starts_warm else None,
        )

    def state_for(self, unit: Unit, trial: Trial) -> Path | None:
        """The state that a unit starts from; None for a new model."""
        if unit.kind == "eval":
            return self._end_of_epoch(trial.id, unit.epoch)
        return trial.state or trial.initial_state

    def obsolete_after(self, trial: Trial, task: Task) -> Path | None:
        """The state that no unit needs once this unit counts: never that of the end of an epoch."""
        if trial.state is None:
            copy = self.states.path(trial.id, 0, 0)  # of the parent's state, made for this trial alone
            return copy if trial.initial_state == copy else None
        return task.state_in if trial.visits > 0 else None

    def restore(self, trial: Trial, record: RunRecord) -> Progress:
        """Set a trial to the state after the units that count, which is brought back from the store if needed."""
        found = progress(record.configs[trial.id], len(self._dataset.train), len(self._dataset.eval))
        trial.visits = len(found.visited)
        if found.visited:
            trial.state = self.states.path(trial.id, found.epochs + 1, trial.visits)
        elif found.epochs:
            trial.state = self._bring_back(trial.id, found.epochs)
        elif trial.parent is not None and trial.parent_epoch is not None:
            copy = self.states.path(trial.id, 0, 0)
            trial.initial_state = self._bring_back(trial.parent, trial.parent_epoch, copy)
        return found

    def delete_leftovers(self, record: RunRecord) -> None:
        """Delete states that were being written, or were not needed any more, when the last controller died."""
        last = {unit.config: unit.state for unit in record.units if unit.state is not None}
        ends = {self._end_of_epoch(unit.config, unit.epoch) for unit in record.units if unit.kind == "train"}
        wanted = ends | {self.folder / state for state in last.values() if state is not None}
        for path in self.states.folder.glob("*/*"):
            if path not in wanted:
                path.unlink(missing_ok=True)

    def _end_of_epoch(self, config: str, epoch: int) -> Path:
        return self.states.path(config, epoch, len(self._dataset.train))

    def _bring_back(self, config: str, epoch: int, target: Path | None = None) -> Path:
        """The state at the end of an epoch, at `target` if one is given; from the store if it was archived."""
        try:
            return RunStates(self.folder).materialize(config, epoch, target)
        except NotFoundError:
            return self._end_of_epoch(config, epoch)  # workers may find it where this process does not look
