"""The hop scheduler: events in, assignments out. The same object drives the engine and the simulator.

It keeps the four invariants of model hopper parallelism: each model is trained on every partition exactly once per
epoch; on one partition at a time; a worker runs one unit at a time; no unit is interrupted. Evaluation units appear
when an epoch is trained. They need only a snapshot, so they run concurrently with each other and with the model's next
epoch. They start before training units because searches wait for them. There is no barrier between epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from regatta.errors import UsageError, nearest
from regatta.plan.schedule.board import Board, ModelProgress, Running
from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.offline.follow import DEFAULT_PATIENCE, FollowPlan, PlannedStarts
from regatta.plan.schedule.portfolio import MAX_NOISE_FOR_PLANS, too_large
from regatta.plan.schedule.rollout import Start, earliest_end, start_units
from regatta.plan.schedule.rule_names import planner_for
from regatta.plan.schedule.rules import ChosenRule, PlanningRequest, Rule
from regatta.plan.schedule.timetable import Timetable
from regatta.plan.schedule.units import Assignment, Finished, Unit

ESTIMATE_TOLERANCE = 0.05  # the board takes over an estimate that changed by more than this
MAX_EFFORT_DECISIONS = 20_000  # simulated decisions, which take less than a second
DECISION_S = 40e-6  # of one simulated decision, while workers keep all cores busy
PLANNING_SHARE = 0.0015  # of a run's time that planning may take; making decisions takes about as much again


def check_rule(rule: str) -> None:
    """Raise a UsageError unless there is a rule of that name and its dependencies are installed."""
    planner_for(rule)


class Hopper:
    def __init__(
        self,
        partitions: int,
        eval_partitions: int = 0,
        *,
        estimates: Times,
        rule: str = "auto",
        seed: int = 0,
        effort: int | None = None,
        solver_seconds: float = 10.0,
    ) -> None:
        """`effort` limits the decisions that one planning may simulate. By default it is a small share of the run."""
        if partitions < 1 or eval_partitions < 0:
            raise UsageError(f"{partitions} partitions and {eval_partitions} evaluation partitions cannot be planned.")
        self._planner = planner_for(rule)
        self._estimates = estimates
        self._request = PlanningRequest(effort or 0, 0.0, seed, solver_seconds)
        self._scales_effort = effort is None
        self._spent = 0
        self._origin: float | None = None  # time of the first decision
        self._chosen: ChosenRule | None = None
        self._outdated = True
        self._board = Board(partitions, eval_partitions)
        self._models: dict[str, int] = {}
        self._model_names: list[str] = []
        self._workers: dict[str, int] = {}  # those that are present
        self._worker_names: list[str] = []
        self._timetable = Timetable(self._board, estimates, self._model_names, self._worker_names)
        self._running: dict[str, Unit] = {}  # by worker
        self._left: list[int] = []  # units by model
        self._units_left = self._models_left = 0
        self._workers_changed = False

    # -- workers and models ------------------------------------------------------------------------

    def add_worker(self, worker: str, train: Iterable[int], evals: Iterable[int] = ()) -> None:
        """Add a worker that holds these partitions. Several workers may hold the same one."""
        if worker in self._workers:
            raise UsageError(f"There is a worker {worker!r} already.")
        board = self._board
        train = _check_partitions(train, board.partitions, f"partition held by {worker!r}")
        evals = _check_partitions(evals, board.eval_partitions, f"evaluation partition held by {worker!r}")
        if worker in self._worker_names:  # it has come back
            index = self._worker_names.index(worker)
        else:
            index = board.add_worker()
            self._worker_names.append(worker)
        self._workers[worker] = index
        board.hold(index, train, evals)
        board.idle.add(index)
        self._workers_changed = self._outdated = True

    def remove_worker(self, worker: str) -> Unit | None:
        """Remove a worker. The unit that it ran, if any, goes back to the queue and is returned."""
        index = self._worker(worker)
        unit = self.give_back(worker) if index in self._board.running else None
        self._board.hold(index, (), ())
        self._board.idle.discard(index)
        del self._workers[worker]
        self._workers_changed = self._outdated = True
        return unit

    def set_partitions(self, worker: str, train: Iterable[int], evals: Iterable[int] = ()) -> None:
        """Replace the partitions of a worker that is present."""
        board = self._board
        train = _check_partitions(train, board.partitions, f"partition held by {worker!r}")
        evals = _check_partitions(evals, board.eval_partitions, f"evaluation partition held by {worker!r}")
        board.hold(self._worker(worker), train, evals)
        self._workers_changed = self._outdated = True

    def add_model(
        self,
        model: str,
        epochs: int,
        *,
        done: int = 0,
        visited: Iterable[int] = (),
        order: Mapping[int, Sequence[int]] | None = None,
        evals: Iterable[tuple[int, int]] = (),
        most: int = 0,
    ) -> None:
        """Train a model for `epochs`. A search may later ask for up to `most`; longer models start first.

        A resumed run says how many epochs are `done`, which partitions of the next epoch were `visited`, and which
        `evals` (epoch, partition) of epochs up to `done` are still missing. `order` fixes the order of the partitions
        for the epochs in it.
        """
        if model in self._models:
            raise UsageError(f"There is a model {model!r} already.", hint="extend_model gives it more epochs.")
        if epochs < done or done < 0:
            raise UsageError(f"Model {model!r} cannot train {epochs} epochs when {done} are done.")
        board = self._board
        visited = _check_partitions(visited, board.partitions, f"visited partition of {model!r}")
        orders = self._check_orders(model, order)
        rest = set(range(board.partitions)) - set(visited) if epochs > done else set()
        index = board.add_model(ModelProgress(epochs, done + 1, rest, orders, most))
        self._models[model] = index
        self._model_names.append(model)
        self._left.append(0)
        for epoch, partition in evals:
            _check_partitions([partition], board.eval_partitions, "evaluation partition")
            board.add_eval(index, epoch, partition)
        if epochs > done and not rest:
            board.complete_epoch(index)
        self._update_units_left(index)
        self._outdated = True
        self.refresh(model)

    def extend_model(self, model: str, epochs: int, order: Mapping[int, Sequence[int]] | None = None) -> None:
        """Set the total number of epochs, at least as many as have begun. This also resumes a stopped model."""
        index = self._model(model)
        known = self._board.models[index].orders
        self._board.models[index].orders = {**self._check_orders(model, order), **known}
        self._board.extend(index, epochs)
        self._update_units_left(index)
        self._outdated = True

    def stop_model(self, model: str) -> None:
        """Start no new units of this model; running units may finish."""
        index = self._model(model)
        self._board.stop(index)
        self._update_units_left(index)

    def refresh(self, model: str) -> None:
        """Take over the estimates of a model. Call it when a profile is set after the model was added."""
        if not self._workers_changed:  # otherwise the next decision takes over all estimates
            drifted = self._timetable.refresh(self._model(model))
            self._outdated |= drifted and self._estimates.noise <= MAX_NOISE_FOR_PLANS

    def follow(self, starts: Iterable[tuple[float, str, Unit]], patience: float = DEFAULT_PATIENCE) -> None:
        """Follow this schedule, given as (planned start, worker, unit), as long as it covers the units left."""
        planned = []
        for time, worker, unit in starts:
            running = Running(False, self._model(unit.model), unit.epoch, unit.partition)
            if unit.kind == "train":
                planned.append(Start(time, self._worker(worker), running))
        self._planner = planner_for("planned")
        self._chosen = ChosenRule(FollowPlan(PlannedStarts(planned, patience)), "planned", "a schedule was given")

    # -- decisions ---------------------------------------------------------------------------------

    def assign(self, now: float = 0.0) -> list[Assignment]:
        """Start every unit that can start now. The units count as running from here on."""
        board = self._board
        board.now = now
        rule = self._current_rule()
        assignments = []
        for index in start_units(board, rule):
            worker, unit = self._worker_names[index], self._unit(board.running[index])
            self._running[worker] = unit
            assignments.append(Assignment(worker, unit))
        return assignments

    def finish(self, worker: str, now: float = 0.0, seconds: float | None = None) -> Finished:
        """The worker's unit is done. `seconds` correct the estimates."""
        index = self._busy_worker(worker)
        running, trained, evaluated = self._board.finish(index)
        self._set_left(running.model, self._left[running.model] - 1)
        self._board.now = now
        unit = self._running.pop(worker)
        if seconds is not None:
            self._estimates.observe(unit, worker, seconds)
            used = self._board.seconds(index, running)
            if abs(self._estimates.seconds(unit, worker) - used) > ESTIMATE_TOLERANCE * used:
                self.refresh(unit.model)
            noise, expected = self._estimates.noise, self._request.noise
            self._outdated |= noise > 2 * expected or 2 * noise < expected
        return Finished(unit, trained, evaluated)

    def give_back(self, worker: str) -> Unit:
        """The worker's unit did not happen; it returns to the queue."""
        index = self._busy_worker(worker)
        running = self._board.give_back(index)
        if self._board.models[running.model].stopped:
            self._set_left(running.model, self._left[running.model] - 1)
        return self._running.pop(worker)

    def undo(self, model: str, epoch: int, partition: int) -> None:
        """Undo the last training unit that a model finished, because its state is lost.

        No unit that depends on it may be running or have finished.
        """
        index = self._model(model)
        self._check_last_unit(index, epoch, partition)
        self._board.undo(index, epoch, partition)
        self._update_units_left(index)
        self._outdated = True

    def likely_next(self, worker: str) -> Unit | None:
        """The unit that this busy worker would take if it became idle now, among the models that are idle."""
        index = self._worker(worker)
        board = self._board
        rule = self._current_rule()
        partition = board.oldest_eval(index)
        if partition is not None:
            _, model, epoch = board.waiting[partition][0]
            return self._unit(Running(True, model, epoch, partition))
        if not board.workers_with_work([index]):
            return None
        choices = rule.choose(board, [index], peek=True)
        if not choices:
            return None
        _, model, partition = choices[0]
        return self._unit(Running(False, model, board.models[model].epoch, partition))

    # -- queries ------------------------------------------------------------------------------------

    @property
    def chosen_rule(self) -> ChosenRule:
        """The current rule, its name, and why it was chosen."""
        self._current_rule()
        assert self._chosen is not None
        return self._chosen

    def workers(self) -> dict[str, tuple[list[int], list[int]]]:
        """The workers that are present, with the partitions and evaluation partitions that they hold."""
        board = self._board
        return {name: (list(board.held[i]), list(board.held_evals[i])) for name, i in self._workers.items()}

    def running(self) -> dict[str, Unit]:
        return dict(self._running)

    def units_left(self) -> int:
        """The number of units that are not finished, including the running ones."""
        return self._units_left

    def model_units_left(self, model: str) -> int:
        """The same for one model."""
        return self._left[self._model(model)]

    def worker_count(self) -> int:
        return len(self._workers)

    def models_left(self) -> int:
        """The number of models that have units left."""
        return self._models_left

    def done(self) -> bool:
        return self._units_left == 0

    def unheld_partitions(self) -> list[int]:
        """Partitions that still have to be trained on and that no worker holds."""
        held = {j for held in self._board.held for j in held}
        wanted = self._board.wanted.sum(axis=1)
        return [j for j in range(self._board.partitions) if wanted[j] and j not in held]

    # -- internals ----------------------------------------------------------------------------------

    def _current_rule(self) -> Rule:
        """Take over the changes since the last decision, plan again where they matter, and return the rule."""
        if self._workers_changed:
            self._workers_changed = False
            self._timetable.on_partitions_moved()
        if self._outdated or self._chosen is None:
            self._outdated = False
            self._chosen = self._plan()
            self._timetable.on_planned()
        return self._chosen.rule

    def _plan(self) -> ChosenRule:
        present = self._chosen.rule if self._chosen else None
        noise = self._estimates.noise
        self._request = dataclasses.replace(self._request, noise=noise, present=present, effort=self._effort())
        chosen = self._planner(self._board, self._request)
        self._spent += chosen.decisions
        return chosen

    def _effort(self) -> int:
        """The effort that was asked for, or an effort that takes a small share of the run's expected time."""
        if not self._scales_effort:
            return self._request.effort
        if self._origin is None:
            self._origin = self._board.now
        if too_large(self._board, MAX_EFFORT_DECISIONS):
            return 0
        allowed = PLANNING_SHARE / DECISION_S * (earliest_end(self._board) - self._origin)
        return max(0, min(MAX_EFFORT_DECISIONS, (int(allowed) - self._spent) // 2))  # the other half is for later

    def _update_units_left(self, index: int) -> None:
        """Recompute the units left of a model whose epochs changed."""
        self._set_left(index, self._count_units_left(index))

    def _set_left(self, index: int, units: int) -> None:
        before, self._left[index] = self._left[index], units
        self._units_left += units - before
        self._models_left += bool(units) - bool(before)

    def _count_units_left(self, index: int) -> int:
        board = self._board
        model = board.models[index]
        active = sum(running.model == index for running in board.running.values())
        if model.stopped:
            return active
        epochs_to_come = max(0, model.epochs - model.epoch)
        training = len(model.rest) + (model.worker >= 0) + epochs_to_come * board.partitions
        epochs_to_evaluate = max(0, model.epochs - model.epoch + 1)
        return training + sum(model.evals.values()) + epochs_to_evaluate * board.eval_partitions

    def _unit(self, running: Running) -> Unit:
        kind, name = "eval" if running.evaluates else "train", self._model_names[running.model]
        return Unit(kind, name, running.epoch, running.partition)  # type: ignore[arg-type]

    def _worker(self, worker: str) -> int:
        if worker not in self._workers:
            raise UsageError(f"There is no worker {worker!r}.", candidates=nearest(worker, self._workers))
        return self._workers[worker]

    def _model(self, model: str) -> int:
        if model not in self._models:
            raise UsageError(f"There is no model {model!r}.", candidates=nearest(model, self._models))
        return self._models[model]

    def _busy_worker(self, worker: str) -> int:
        index = self._worker(worker)
        if index not in self._board.running:
            raise UsageError(f"Worker {worker!r} does not run a unit.")
        return index

    def _check_last_unit(self, index: int, epoch: int, partition: int) -> None:
        board, model = self._board, self._board.models[index]
        unit = f"Unit {self._model_names[index]}, epoch {epoch}, partition {partition}, cannot be undone"
        if any(not r.evaluates or r.epoch == epoch for r in board.running.values() if r.model == index):
            raise UsageError(f"{unit}: a unit that depends on it is running.")
        begun = len(model.rest) < board.partitions and model.epoch <= model.epochs
        last = model.epoch if begun else model.epoch - 1
        trained = set(range(board.partitions)) - (model.rest if begun else set())
        if epoch < 1 or epoch != last or partition not in trained:
            raise UsageError(f"{unit}: it is not among the units that finished in the last epoch, {last}.")
        if not begun and model.evals.get(epoch, 0) < board.eval_partitions:
            raise UsageError(f"{unit}: its epoch was evaluated, at least in part.")

    def _check_orders(self, model: str, orders: Mapping[int, Sequence[int]] | None) -> dict[int, tuple[int, ...]]:
        count = self._board.partitions
        for epoch, order in (orders or {}).items():
            if sorted(order) != list(range(count)):
                raise UsageError(
                    f"The order of {model!r} in epoch {epoch} is {list(order)}; "
                    f"it must name each of the {count} partitions once."
                )
        return {epoch: tuple(order) for epoch, order in (orders or {}).items()}


def _check_partitions(partitions: Iterable[int], count: int, what: str) -> list[int]:
    found = list(partitions)
    for partition in found:
        if not 0 <= partition < count:
            raise UsageError(f"The {what} is {partition}; there are {count}, counted from 0.")
    return found
