"""Where the states of a run's models are, and how far each model is by what counts."""

from __future__ import annotations

from pathlib import Path

from regatta.data import Dataset
from regatta.engine.controller.trials import (
    Course,
    Courses,
    Progress,
    progress,
)
from regatta.engine.messages import Task
from regatta.errors import NotFoundError
from regatta.journal.record import RunRecord
from regatta.plan.schedule.units import Unit
from regatta.store.states.state_archive import RunStates
from regatta.store.states.state_files import StateFolder


class Whereabouts:
    """The files of states: which one a unit begins with, which one it leaves, which ones nobody needs."""

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        self.folder = folder
        self.states = StateFolder(folder / "states")
        self._dataset = dataset

    def task(self, unit: Unit, course: Course, courses: Courses) -> Task:
        """What a worker is to do for one configuration."""
        state = self.state_for(unit, course)
        if unit.kind == "eval":
            return Task("eval", course.id, course.values, unit.epoch, unit.partition, state)
        begins = course.state is None and course.origin is not None
        parent = courses[course.parent].values if course.parent and begins else None
        return Task(
            "train", course.id, course.values, unit.epoch, unit.partition, state,
            self.states.path(course.id, unit.epoch, course.visits + 1),
            ends_epoch=course.visits + 1 == len(self._dataset.train), parent=parent,
        )  # fmt: skip

    def state_for(self, unit: Unit, course: Course) -> Path | None:
        """The state that a unit begins with; None: the model is new."""
        if unit.kind == "eval":
            return self._of_epoch(course.id, unit.epoch)
        return course.state or course.origin

    def spent(self, course: Course, task: Task) -> Path | None:
        """The state that nobody needs once this unit counts: not those at ends of epochs, its parent's among them."""
        if course.state is None:
            own = self.states.path(course.id, 0, 0)
            return own if course.origin == own else None
        return task.state_in if course.visits > 0 else None

    def take_up(self, course: Course, record: RunRecord) -> Progress:
        """Where the units that count have left a course; its state is brought there."""
        far = progress(record.configs[course.id], len(self._dataset.train), len(self._dataset.eval))
        course.visits = len(far.visited)
        if far.visited:
            course.state = self.states.path(course.id, far.epochs + 1, course.visits)
        elif far.epochs:
            course.state = self._brought_back(course.id, far.epochs)
        elif course.parent is not None and course.parent_epoch is not None:
            target = self.states.path(course.id, 0, 0)
            course.origin = self._brought_back(course.parent, course.parent_epoch, target)
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
