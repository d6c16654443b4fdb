"""Invariants that hold after every event, checked from scratch: the sums of a board, and a scheduler's story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from regatta.plan.schedule.board import Board, Running
from regatta.plan.schedule.hopper import MAX_STORY_EVENTS, Hopper


def check_hopper(hopper: Hopper) -> None:
    """Assert every invariant, over all events so far."""
    board = hopper._board
    if not hopper._workers_changed:  # otherwise the next decision updates the sums
        check_board(board)
    if len(hopper._story) < MAX_STORY_EVENTS:  # otherwise the oldest events are missing
        check_story(hopper._story, board.partitions, hopper._visited_before)
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


def check_story(
    story: Iterable[tuple[float, str, int, int, Running | None]],
    partitions: int,
    before: Mapping[tuple[int, int], int],
) -> None:
    """Completeness, isolation, exclusive access and no preemption, from the events alone.

    `before`: by (model, epoch), the number of partitions trained on before the story begins.
    """
    busy: dict[int, Running] = {}
    done = Counter(before)
    units: set[Running] = set()
    for _, what, worker, _, running in story:
        if running is None:
            continue
        if what == "undone":
            units.discard(running)
            done[running.model, running.epoch] -= 1
            continue
        if what == "started":
            assert worker not in busy, "a worker started a unit while it ran another"
            assert running not in units, f"{running} was done already"
            assert running not in busy.values(), f"{running} runs twice"
            if not running.evaluates:
                same = [r for r in busy.values() if not r.evaluates and r.model == running.model]
                assert not same, "two training units of a model at the same time"
            busy[worker] = running
            continue
        assert busy.pop(worker) == running, "a unit ended that was not started"
        if what == "finished":
            units.add(running)
            if not running.evaluates:
                done[running.model, running.epoch] += 1
    for model, epoch in done:
        later = any(m == model and e > epoch and visits for (m, e), visits in done.items())  # 0 visits: all undone
        assert not later or done[model, epoch] == partitions, "an epoch began before the previous one was complete"
    evaluated = {(r.model, r.epoch) for r in units if r.evaluates}
    assert all(done[key] == partitions for key in evaluated if key in done), "an epoch was evaluated too early"
