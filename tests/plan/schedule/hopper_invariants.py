"""Invariants that hold after every event, checked from scratch: the sums of a board, and the events of a scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from regatta.plan.schedule.board import Board
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.rules import ChosenRule
from regatta.plan.schedule.units import Assignment, Finished, Unit


class RecordedHopper(Hopper):
    """A scheduler that records the events of its units, for `check_hopper`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.events: list[tuple[str, str, Unit]] = []  # what happened, the worker, the unit
        self.visited_before: dict[tuple[str, int], int] = {}  # (model, epoch): partitions visited before it was added
        self.plans = 0

    def add_model(self, model: str, epochs: int, *, done: int = 0, visited: Iterable[int] = (), **options: Any) -> None:
        before = list(visited)
        super().add_model(model, epochs, done=done, visited=before, **options)
        self.visited_before[model, done + 1] = len(set(before))

    def assign(self, now: float = 0.0) -> list[Assignment]:
        assignments = super().assign(now)
        self.events += [("started", assignment.worker, assignment.unit) for assignment in assignments]
        return assignments

    def finish(self, worker: str, now: float = 0.0, seconds: float | None = None) -> Finished:
        finished = super().finish(worker, now, seconds)
        self.events.append(("finished", worker, finished.unit))
        return finished

    def give_back(self, worker: str) -> Unit:
        unit = super().give_back(worker)
        self.events.append(("given back", worker, unit))
        return unit

    def undo(self, model: str, epoch: int, partition: int) -> None:
        super().undo(model, epoch, partition)
        self.events.append(("undone", "", Unit("train", model, epoch, partition)))

    def _plan(self) -> ChosenRule:
        self.plans += 1
        return super()._plan()


def check_hopper(hopper: Hopper) -> None:
    """Assert every invariant, over all events so far."""
    assert isinstance(hopper, RecordedHopper)
    if not hopper._workers_changed:  # otherwise the next decision updates the sums
        check_board(hopper._board)
    check_events(hopper.events, hopper._board.partitions, hopper.visited_before)
    assert hopper._left == [hopper._count_units_left(index) for index in range(len(hopper._model_names))]
    assert hopper._units_left == sum(hopper._left)
    assert hopper._models_left == sum(map(bool, hopper._left))


def check_board(board: Board) -> None:
    """The sums equal those computed from scratch, and no worker or model is in two places."""
    _check_places(board)
    _check_openings(board)
    holds = np.array([[j in held for j in range(board.partitions)] for held in board.held], bool)
    holds = holds.reshape(len(board.held), board.partitions)
    assert [tuple(np.flatnonzero(column)) for column in holds.T] == board.holders
    assert np.array_equal(holds.astype(int) @ board.open.astype(int), board.count), "open units per worker"
    work = board.wanted * board.time
    here = holds / np.maximum(holds.sum(axis=0), 1) @ work
    for name, fresh in (("left", work.sum(axis=0)), ("here", here), ("load", here.sum(axis=1))):
        assert abs(fresh - getattr(board, name)).max(initial=0.0) < 1e-6, name


def _check_places(board: Board) -> None:
    assert not board.idle & board.running.keys(), "a worker is idle and busy"
    training = [running.model for running in board.running.values() if not running.evaluates]
    assert len(training) == len(set(training)), "a model is trained in two places"
    for worker, running in board.running.items():
        held = board.held_evals[worker] if running.evaluates else board.held[worker]
        assert running.partition in held, "a worker runs a unit on a partition that it does not hold"
        if not running.evaluates:
            assert board.models[running.model].worker == worker
            assert running.partition not in board.models[running.model].rest, "a unit runs and waits"
    for index, model in enumerate(board.models):
        assert (model.worker >= 0) == (index in training)
    assert board.evals_waiting == sum(len(queue) for queue in board.waiting)


def _check_openings(board: Board) -> None:
    for index, model in enumerate(board.models):
        is_open = set(np.flatnonzero(board.open[:, index]).tolist())
        assert is_open <= model.rest
        if board.ready[index]:
            assert is_open, "a model is ready and has nothing to do"
            assert not model.stopped
            assert model.worker < 0, "a model in training is taken for idle"
        elif model.worker < 0 and not model.stopped:
            assert model.epoch > model.epochs or not model.rest, "an idle model with work is not ready"
        if not model.stopped:
            to_come = max(0, model.epochs - model.epoch) if model.epoch <= model.epochs else 0
            assert board.wanted[:, index].sum() == len(model.rest) + to_come * board.partitions
    assert not board.ready[len(board.models) :].any()


def check_events(
    events: Iterable[tuple[str, str, Unit]], partitions: int, before: Mapping[tuple[str, int], int]
) -> None:
    """Completeness, isolation, exclusive access and no preemption, from the events alone.

    `before`: by (model, epoch), the number of partitions trained on before the first event.
    """
    busy: dict[str, Unit] = {}
    done = Counter(before)
    units: set[Unit] = set()
    for what, worker, unit in events:
        if what == "undone":
            units.discard(unit)
            done[unit.model, unit.epoch] -= 1
            continue
        if what == "started":
            assert worker not in busy, "a worker started a unit while it ran another"
            assert unit not in units, f"{unit} was done already"
            assert unit not in busy.values(), f"{unit} runs twice"
            if unit.kind == "train":
                same = [other for other in busy.values() if other.kind == "train" and other.model == unit.model]
                assert not same, "two training units of a model at the same time"
            busy[worker] = unit
            continue
        assert busy.pop(worker) == unit, "a unit ended that was not started"
        if what == "finished":
            units.add(unit)
            if unit.kind == "train":
                done[unit.model, unit.epoch] += 1
    for model, epoch in done:
        later = any(m == model and e > epoch and visits for (m, e), visits in done.items())  # 0 visits: all undone
        assert not later or done[model, epoch] == partitions, "an epoch began before the previous one was complete"
    evaluated = {(unit.model, unit.epoch) for unit in units if unit.kind == "eval"}
    assert all(done[key] == partitions for key in evaluated if key in done), "an epoch was evaluated too early"
