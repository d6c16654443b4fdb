"""The hop scheduler: events in, assignments out. The same object drives the engine and the simulator.

It upholds the four invariants of model hopper parallelism: each model is trained on every partition exactly once
per epoch; on one partition at a time; a worker runs one unit at a time; no unit is interrupted. Evaluation units
appear when an epoch is trained; they need only a snapshot, so they run beside each other and beside the model's
next epoch, and before training units, because searches wait for them. There is no barrier between epochs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from regatta.errors import UsageError, nearest
from regatta.plan.schedule.board import (
    Board,
    Choice,
    Model,
    Running,
)
from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.invariants import check_board, check_story
from regatta.plan.schedule.offline.follow import PATIENCE, Plan, Planned
from regatta.plan.schedule.portfolio import TOO_NOISY, too_large
from regatta.plan.schedule.rollout import Start, earliest_end, step
from regatta.plan.schedule.rule_names import planner
from regatta.plan.schedule.rules import Request, Rule, Verdict
from regatta.plan.schedule.timetable import Timetable
from regatta.plan.schedule.units import (
    Assignment,
    Event,
    Finished,
    Unit,
)

MOVED = 0.05  # an estimate that moved by more than this is taken over
FULL_EFFORT = 20_000  # simulated decisions: within a second
DECISION = 40e-6  # seconds that one takes, about, beside workers that keep all cores busy
SHARE = 0.0015  # of a run's time that looking ahead may take; deciding takes about as much again
STORY = 500_000  # events that are remembered


def check_rule(rule: str) -> None:
    """A UsageError unless there is a rule of that name, and what it needs is installed."""
    planner(rule)


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
        """`effort` is how many decisions each planning may simulate; by default all take a small share of the run."""
        if partitions < 1 or eval_partitions < 0:
            raise UsageError(f"{partitions} partitions and {eval_partitions} evaluation partitions cannot be planned.")
        self._planner = planner(rule)
        self._estimates = estimates
        self._request = Request(effort or 0, 0.0, seed, solver_seconds)
        self._scales_effort = effort is None
        self._spent = 0
        self._origin: float | None = None  # when the first decision was asked for
        self._verdict: Verdict | None = None
        self._outdated = True
        self._board = Board(partitions, eval_partitions)
        self._models: dict[str, int] = {}
        self._model_names: list[str] = []
        self._workers: dict[str, int] = {}  # those that are here
        self._worker_names: list[str] = []
        self._timetable = Timetable(self._board, estimates, self._model_names, self._worker_names)
        self._under_way: dict[str, Unit] = {}  # by worker
        self._left: list[int] = []  # units by model
        self._units_left = self._models_left = 0
        self._workers_changed = False
        self._before: dict[tuple[int, int], int] = {}  # (model, epoch): partitions visited before it was added
        self._story: deque[tuple[float, str, int, int, Running | None]] = deque(maxlen=STORY)

    # -- workers and models ------------------------------------------------------------------------

    def add_worker(self, worker: str, train: Iterable[int], evals: Iterable[int] = ()) -> None:
        """A worker that holds these partitions; several may hold the same one."""
        if worker in self._workers:
            raise UsageError(f"There is a worker {worker!r} already.")
        board = self._board
        train = _checked(train, board.partitions, f"partition held by {worker!r}")
        evals = _checked(evals, board.eval_partitions, f"evaluation partition held by {worker!r}")
        if worker in self._worker_names:  # it was here before
            index = self._worker_names.index(worker)
        else:
            index = board.add_worker()
            self._worker_names.append(worker)
        self._workers[worker] = index
        board.hold(index, train, evals)
        board.idle.add(index)
        self._workers_changed = self._outdated = True
        self._tell("worker came", worker=index)

    def remove_worker(self, worker: str) -> Unit | None:
        """The worker is gone; the unit that it ran, if any, goes back to the queue and is returned."""
        index = self._worker(worker)
        unit = self.give_back(worker) if index in self._board.running else None
        self._board.hold(index, (), ())
        self._board.idle.discard(index)
        del self._workers[worker]
        self._workers_changed = self._outdated = True
        self._tell("worker left", worker=index)
        return unit

    def hold(self, worker: str, train: Iterable[int], evals: Iterable[int] = ()) -> None:
        """From now on a worker that is here holds these partitions, those that it holds already among them."""
        board = self._board
        train = _checked(train, board.partitions, f"partition held by {worker!r}")
        evals = _checked(evals, board.eval_partitions, f"evaluation partition held by {worker!r}")
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
        """Train a model for so many epochs; a search may come to want up to `most`, and long ways are begun first.

        A resumed run says how many epochs are `done`, which partitions of the next were `visited`, and which
        `evals` (epoch, partition) of epochs up to `done` are still missing. `order` fixes, for the epochs in it,
        the order in which the partitions are visited.
        """
        if model in self._models:
            raise UsageError(f"There is a model {model!r} already.", hint="extend_model gives it more epochs.")
        if epochs < done or done < 0:
            raise UsageError(f"Model {model!r} cannot train {epochs} epochs of which {done} are done.")
        board = self._board
        visited = _checked(visited, board.partitions, f"visited partition of {model!r}")
        orders = {epoch: self._checked_order(model, epoch, seq) for epoch, seq in (order or {}).items()}
        rest = set(range(board.partitions)) - set(visited) if epochs > done else set()
        index = board.add_model(Model(epochs, done + 1, rest, orders, most))
        self._models[model] = index
        self._model_names.append(model)
        self._left.append(0)
        self._before[index, done + 1] = len(set(visited))
        for epoch, partition in evals:
            board.add_eval(index, epoch, _checked([partition], board.eval_partitions, "evaluation partition")[0])
        if epochs > done and not rest:
            board.complete_epoch(index)
        self._count(index)
        self._outdated = True
        self._tell("model added", model=index)
        self.refresh(model)

    def extend_model(self, model: str, epochs: int, order: Mapping[int, Sequence[int]] | None = None) -> None:
        """So many epochs in total are wanted now (at least the one begun). Wakes a model that was stopped."""
        index = self._model(model)
        known = self._board.models[index].orders
        orders = {epoch: self._checked_order(model, epoch, seq) for epoch, seq in (order or {}).items()}
        self._board.models[index].orders = {**orders, **known}
        self._board.extend(index, epochs)
        self._count(index)
        self._outdated = True
        self._tell(f"extended to {epochs} epochs", model=index)

    def stop_model(self, model: str) -> None:
        """No new units of this model; what runs may finish."""
        index = self._model(model)
        self._board.stop(index)
        self._count(index)
        self._tell("stopped", model=index)

    def refresh(self, model: str) -> None:
        """Take over the estimates of a model: call it when a pilot was set after the model was added."""
        if not self._workers_changed:  # otherwise all are taken over before the next decision
            drifted = self._timetable.refresh(self._model(model))
            self._outdated |= drifted and self._estimates.noise <= TOO_NOISY

    def follow(self, starts: Iterable[tuple[float, str, Unit]], patience: float = PATIENCE) -> None:
        """Keep to this schedule, as (planned start, worker, unit), as long as it has something to say."""
        planned = []
        for time, worker, unit in starts:
            running = Running(False, self._model(unit.model), unit.epoch, unit.partition)
            if unit.kind == "train":
                planned.append(Start(time, self._worker(worker), running))
        self._planner = planner("planned")
        self._verdict = Verdict(Planned(Plan(planned, patience)), "planned", "a schedule was given")

    # -- decisions ---------------------------------------------------------------------------------

    def assign(self, now: float = 0.0) -> list[Assignment]:
        """All that can start now; it counts as running from here on."""
        board = self._board
        board.now = now
        rule = self._settle()
        started = [self._started(worker, board.running[worker]) for worker in step(board, rule)]
        self._under_way.update((assignment.worker, assignment.unit) for assignment in started)
        return started

    def _started(self, worker: int, running: Running) -> Assignment:
        self._tell("started", worker, running.model, running)
        return Assignment(self._worker_names[worker], self._unit(running))

    def finish(self, worker: str, now: float = 0.0, seconds: float | None = None) -> Finished:
        """The worker's unit is done and counts; `seconds` correct the estimates."""
        index = self._worker(worker)
        self._must_run(worker, index)
        running, trained, evaluated = self._board.finish(index)
        self._set_left(running.model, self._left[running.model] - 1)
        self._board.now = now
        self._tell("finished", index, running.model, running)
        unit = self._under_way.pop(worker)
        if seconds is not None:
            self._estimates.observe(unit, worker, seconds)
            self._follow_estimate(unit, worker, index, running)
        return Finished(unit, trained, evaluated)

    def give_back(self, worker: str) -> Unit:
        """The worker's unit did not happen; it returns to the queue."""
        index = self._worker(worker)
        self._must_run(worker, index)
        running = self._board.give_back(index)
        if self._board.models[running.model].stopped:
            self._set_left(running.model, self._left[running.model] - 1)
        self._tell("given back", index, running.model, running)
        return self._under_way.pop(worker)

    def undo(self, model: str, epoch: int, partition: int) -> None:
        """The last training unit that a model finished did not happen after all: what it left is lost.

        Nothing of what followed from it may be running, or have finished.
        """
        index = self._model(model)
        self._must_be_last(index, epoch, partition)
        self._board.undo(index, epoch, partition)
        self._count(index)
        self._outdated = True
        self._tell("undone", -1, index, Running(False, index, epoch, partition))

    def likely_next(self, worker: str) -> Unit | None:
        """What this busy worker would take if it became idle now, of the models that are idle now."""
        index = self._worker(worker)
        board = self._board
        rule = self._settle()
        partition = board.oldest_eval(index)
        if partition is not None:
            _, model, epoch = board.waiting[partition][0]
            return self._unit(Running(True, model, epoch, partition))
        if not board.able([index]):
            return None
        choices = rule.choose(board, [index], peek=True)
        return self._unit(self._preview(choices[0])) if choices else None

    def _preview(self, choice: Choice) -> Running:
        return Running(False, choice.model, self._board.models[choice.model].epoch, choice.partition)

    # -- what others ask ----------------------------------------------------------------------------

    @property
    def choice(self) -> Verdict:
        """The rule that is gone by at present: its name, and why it was chosen."""
        self._settle()
        assert self._verdict is not None
        return self._verdict

    def workers(self) -> dict[str, tuple[list[int], list[int]]]:
        """The workers that are here, with the partitions and evaluation partitions that they hold."""
        board = self._board
        return {name: (list(board.held[i]), list(board.held_evals[i])) for name, i in self._workers.items()}

    def running(self) -> dict[str, Unit]:
        return dict(self._under_way)

    def units_left(self) -> int:
        """Units that are wanted and not finished, those that run among them."""
        return self._units_left

    def left_of(self, model: str) -> int:
        """The same, of one model."""
        return self._left[self._model(model)]

    def worker_count(self) -> int:
        return len(self._workers)

    def models_left(self) -> int:
        """Models of which units are left."""
        return self._models_left

    def done(self) -> bool:
        return self._units_left == 0

    def unheld(self) -> list[int]:
        """Partitions that still have to be trained on and that no worker holds."""
        held = {j for held in self._board.held for j in held}
        wanted = self._board.wanted.sum(axis=1)
        return [j for j in range(self._board.partitions) if wanted[j] and j not in held]

    def validate(self) -> None:
        """Assert every invariant; for tests, it looks at all that ever happened."""
        if not self._workers_changed:  # sums are due at the next decision
            check_board(self._board)
        if len(self._story) < STORY:  # otherwise its beginning is forgotten
            check_story(self._story, self._board.partitions, self._before)
        assert self._left == [self._left_of(index) for index in range(len(self._model_names))]
        assert self._units_left == sum(self._left)
        assert self._models_left == sum(map(bool, self._left))

    def story(self, model_or_worker: str) -> list[Event]:
        """The events that touched a model or a worker, oldest first."""
        worker = self._worker_names.index(model_or_worker) if model_or_worker in self._worker_names else -2
        model = self._models.get(model_or_worker, -2)
        if worker < 0 and model < 0:
            known = [*self._models, *self._worker_names]
            raise UsageError(
                f"There is no model or worker {model_or_worker!r}.", candidates=nearest(model_or_worker, known)
            )
        return [
            self._event(time, what, w, m, running)
            for time, what, w, m, running in self._story
            if w == worker or m == model or w == m == -1
        ]

    # -- inside -------------------------------------------------------------------------------------

    def _settle(self) -> Rule:
        """Take over what changed since the last decision, and plan anew where it matters; the rule to go by."""
        if self._workers_changed:
            self._workers_changed = False
            self._timetable.move()
        if self._outdated or self._verdict is None:
            self._outdated = False
            self._verdict = self._plan()
            self._timetable.planned()
        return self._verdict.rule

    def _plan(self) -> Verdict:
        present = self._verdict.rule if self._verdict else None
        noise = self._estimates.noise
        self._request = dataclasses.replace(self._request, noise=noise, present=present, effort=self._effort())
        verdict = self._planner(self._board, self._request)
        self._spent += verdict.decisions
        self._tell(f"goes by {verdict.name}: {verdict.why}")
        return verdict

    def _effort(self) -> int:
        """What was asked for, or else what takes a small share of the run so far and to come."""
        if not self._scales_effort:
            return self._request.effort
        if self._origin is None:
            self._origin = self._board.now
        if too_large(self._board, FULL_EFFORT):
            return 0
        allowed = SHARE / DECISION * (earliest_end(self._board) - self._origin)
        return max(0, min(FULL_EFFORT, (int(allowed) - self._spent) // 2))  # the other half is for later

    def _follow_estimate(self, unit: Unit, worker: str, index: int, running: Running) -> None:
        used = self._board.seconds(index, running)
        if abs(self._estimates.seconds(unit, worker) - used) > MOVED * used:
            self.refresh(unit.model)
        noise, expected = self._estimates.noise, self._request.noise
        self._outdated |= noise > 2 * expected or 2 * noise < expected

    def _count(self, index: int) -> None:
        """Something else is wanted of a model than before."""
        self._set_left(index, self._left_of(index))

    def _set_left(self, index: int, units: int) -> None:
        before, self._left[index] = self._left[index], units
        self._units_left += units - before
        self._models_left += bool(units) - bool(before)

    def _left_of(self, index: int) -> int:
        """Units of a model that are wanted and not finished."""
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

    def _tell(self, what: str, worker: int = -1, model: int = -1, running: Running | None = None) -> None:
        self._story.append((self._board.now, what, worker, model, running))

    def _event(self, time: float, what: str, worker: int, model: int, running: Running | None) -> Event:
        return Event(
            time,
            what,
            self._worker_names[worker] if worker >= 0 else None,
            self._model_names[model] if model >= 0 else None,
            self._unit(running) if running else None,
        )

    def _worker(self, worker: str) -> int:
        if worker not in self._workers:
            raise UsageError(f"There is no worker {worker!r}.", candidates=nearest(worker, self._workers))
        return self._workers[worker]

    def _model(self, model: str) -> int:
        if model not in self._models:
            raise UsageError(f"There is no model {model!r}.", candidates=nearest(model, self._models))
        return self._models[model]

    def _must_run(self, worker: str, index: int) -> None:
        if index not in self._board.running:
            raise UsageError(f"Worker {worker!r} runs no unit that could end.")

    def _must_be_last(self, index: int, epoch: int, partition: int) -> None:
        board, model = self._board, self._board.models[index]
        unit = f"Unit {self._model_names[index]}, epoch {epoch}, partition {partition}, cannot be undone"
        if any(not r.evaluates or r.epoch == epoch for r in board.running.values() if r.model == index):
            raise UsageError(f"{unit}: what followed from it is running.")
        begun = len(model.rest) < board.partitions and model.epoch <= model.epochs
        last = model.epoch if begun else model.epoch - 1
        trained = set(range(board.partitions)) - (model.rest if begun else set())
        if epoch < 1 or epoch != last or partition not in trained:
            raise UsageError(f"{unit}: it is none of the units that finished in the last epoch, {last}.")
        if not begun and model.evals.get(epoch, 0) < board.eval_partitions:
            raise UsageError(f"{unit}: its epoch was evaluated, at least in part.")

    def _checked_order(self, model: str, epoch: int, order: Sequence[int]) -> tuple[int, ...]:
        if sorted(order) != list(range(self._board.partitions)):
            raise UsageError(
                f"The order of {model!r} in epoch {epoch} is {list(order)}; it must name each of the "
                f"{self._board.partitions} partitions once."
            )
        return tuple(order)


def _checked(partitions: Iterable[int], count: int, what: str) -> list[int]:
    found = list(partitions)
    for partition in found:
        if not 0 <= partition < count:
            raise UsageError(f"The {what} is {partition}; there are {count}, counted from 0.")
    return found
