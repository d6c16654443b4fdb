"""The state that hop rules read: idle workers, open units, and the work left per model and per worker.

Models and workers are indices here. Every sum is kept up to date instead of being computed, so a decision costs
microseconds, and a copy of the board can be simulated to the end of a rule. `Hopper` adds names, events and estimates.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.plan.schedule.partition_places import Floats as Floats
from regatta.plan.schedule.partition_places import Places, round_to_quantum

MAX_UNITS_UNFILTERED = 4_096  # up to this many, scanning all units is faster than filtering the ready models first


class UnitChoice(NamedTuple):
    """A rule's answer: this worker trains this model on this partition now."""

    worker: int
    model: int
    partition: int


class Running(NamedTuple):
    """A unit by the indices of its model and partition."""

    evaluates: bool
    model: int
    epoch: int
    partition: int


class ModelProgress:
    """How far one model is. `rest` holds the partitions of its current epoch that neither ran nor run now."""

    __slots__ = ("epoch", "epochs", "evals", "most", "orders", "rest", "shelved", "stopped", "worker")

    def __init__(
        self, epochs: int, epoch: int, rest: Iterable[int], orders: Mapping[int, Sequence[int]], most: int = 0
    ) -> None:
        self.epochs = epochs  # wanted in total
        self.most = most  # epochs that a search may ask for later, if more
        self.epoch = epoch  # the one in training, from 1; epochs + 1 when all are trained
        self.rest = set(rest)
        self.orders = orders
        self.worker = -1  # the worker that trains it now
        self.evals: dict[int, int] = {}  # epoch: number of evaluation units that wait or run
        self.shelved: list[tuple[int, int]] = []  # evaluations of a stopped model; they wait until it is extended
        self.stopped = False

    def copy(self) -> ModelProgress:
        other = ModelProgress(self.epochs, self.epoch, self.rest, self.orders, self.most)
        other.worker = self.worker
        other.evals = dict(self.evals)
        other.shelved = list(self.shelved)
        other.stopped = self.stopped
        return other


class Board:
    """Open units and remaining work, by partition, model and worker.

    Arrays are (partition, model) or (worker, model). They have more columns than there are models; `ready` is false
    in the spare columns.
    """

    def __init__(self, partitions: int, eval_partitions: int = 0) -> None:
        self.partitions = partitions
        self.eval_partitions = eval_partitions
        self.now = 0.0
        self.models: list[ModelProgress] = []
        self.held: list[tuple[int, ...]] = []  # partitions by worker
        self.held_evals: list[tuple[int, ...]] = []
        self.holders: list[tuple[int, ...]] = [()] * partitions  # workers by partition
        self.running: dict[int, Running] = {}
        self.until: dict[int, float] = {}  # when a worker's unit is expected to end
        self.idle: set[int] = set()
        self.waiting: list[deque[tuple[int, int, int]]] = [deque() for _ in range(eval_partitions)]
        self.evals_waiting = 0
        self.disruptions = 0  # how often a unit was given back or the set of workers changed
        self._ticket = 0  # evaluation units are served in the order in which they appeared
        self.open = np.zeros((partitions, 0), bool)
        self.wanted = np.zeros((partitions, 0), np.int32)  # visits left, over all epochs
        self.time: Floats = np.zeros((partitions, 0))  # mean over the holders
        self.eval_time: Floats = np.zeros((eval_partitions, 0))
        self.cost: dict[tuple[int, int], Floats] = {}  # by (worker, partition), where a partition has several holders
        self.ready = np.zeros(0, bool)
        self.left: Floats = np.zeros(0)  # seconds left
        self.ahead: Floats = np.zeros(0)  # seconds of the epochs that a search may ask for later
        self.count = np.zeros((0, 0), np.int32)  # open units of a model on a worker
        self.here: Floats = np.zeros((0, 0))  # seconds of `left` that fall to a worker
        self.load: Floats = np.zeros(0)
        self.places = Places.from_holders((), ())
        self._share: Floats = np.zeros(partitions)  # the share of a partition's work that falls to each holder
        self._moved: set[int] = set()  # partitions whose holders changed
        self._changed: set[int] = set()  # workers whose partitions changed

    def copy(self) -> Board:
        """A board to simulate on. Times are shared with the copy because a simulation does not change them."""
        other = copy.copy(self)
        other.models = [model.copy() for model in self.models]
        other.running = dict(self.running)
        other.until = dict(self.until)
        other.idle = set(self.idle)
        other.waiting = [deque(queue) for queue in self.waiting]
        for name in ("open", "wanted", "ready", "left", "ahead", "count", "here", "load"):
            setattr(other, name, getattr(self, name).copy())
        return other

    # -- workers ----------------------------------------------------------------------------------

    def add_worker(self) -> int:
        self.held.append(())
        self.held_evals.append(())
        return len(self.held) - 1

    def hold(self, worker: int, train: Iterable[int], evals: Iterable[int]) -> None:
        """Set the partitions of a worker; a lost worker has none. `begin_partition_moves` must follow."""
        before, self.held[worker] = self.held[worker], tuple(sorted(set(train)))
        self.held_evals[worker] = tuple(sorted(set(evals)))
        self._moved.update(set(before).symmetric_difference(self.held[worker]))
        self._changed.add(worker)

    def begin_partition_moves(self, whole: bool) -> Places:
        """Return the places whose times must be set again: all, or those of partitions that moved.

        The units on these partitions are in no sum until `end_partition_moves`.
        """
        self.disruptions += 1
        if whole:
            self._moved = set(range(self.partitions))
        holders: dict[int, list[int]] = {j: [] for j in self._moved}
        for worker, held in enumerate(self.held):
            for j in self._moved.intersection(held):
                holders[j].append(worker)
        for j, found in holders.items():
            self.left -= self.wanted[j] * self.time[j]
            for worker in self.holders[j]:
                if len(found) < 2 or worker not in found:  # a sole holder needs no cost of its own
                    self.cost.pop((worker, j), None)
            self.holders[j] = tuple(found)
            self._share[j] = 1.0 / max(1, len(found))
            if not found:
                self.time[j] = 0.0
        self.places = Places.from_holders(range(self.partitions), self.holders)
        return Places.from_holders(sorted(self._moved), self.holders)

    def end_partition_moves(self) -> None:
        """Add the partitions that moved to the sums again."""
        count, size = len(self.held), len(self.ready)
        self.here, self.count = _with_rows(self.here, count, size), _with_rows(self.count, count, size)
        self.load = np.concatenate([self.load, np.zeros(count - len(self.load))])
        for j in self._moved:
            self.left += self.wanted[j] * self.time[j]
        for worker in self._changed.union(*(self.holders[j] for j in self._moved)):
            held = list(self.held[worker])
            self.here[worker] = self._share[held] @ (self.wanted[held] * self.time[held])
            self.load[worker] = self.here[worker].sum()
            self.count[worker] = self.open[held].sum(axis=0)
        self._moved.clear()
        self._changed.clear()

    # -- models -----------------------------------------------------------------------------------

    def add_model(self, model: ModelProgress) -> int:
        index = len(self.models)
        self.models.append(model)
        if index >= len(self.ready):
            self._grow(max(16, 2 * index))
        self._update_wanted(index)
        self.update_open(index)
        return index

    def _grow(self, size: int) -> None:
        for name in ("open", "wanted", "time", "eval_time", "count", "here"):
            old = getattr(self, name)
            new = np.zeros((old.shape[0], size), old.dtype)
            new[:, : old.shape[1]] = old
            setattr(self, name, new)
        for name in ("ready", "left", "ahead"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(size - len(old), old.dtype)]))
        self.cost = {key: np.concatenate([old, np.zeros(size - len(old))]) for key, old in self.cost.items()}

    def set_times(self, index: int, places: Places, train: Floats) -> None:
        """Set the seconds of a model's units at these places. `update_sums` or `end_partition_moves` must follow."""
        seconds = round_to_quantum(train)
        if len(places):
            held = places.partitions[places.first]
            self.time[held, index] = round_to_quantum(np.add.reduceat(seconds, places.first) / places.counts)
        if len(places) > len(places.counts):
            for number in np.flatnonzero(np.repeat(places.counts, places.counts) > 1).tolist():
                key = int(places.workers[number]), int(places.partitions[number])
                if key not in self.cost:
                    self.cost[key] = np.zeros(len(self.ready))
                self.cost[key][index] = seconds[number]

    def set_eval_times(self, index: int, partitions: Sequence[int], seconds: Floats) -> None:
        """Set the seconds of a model's evaluation units, which take equally long on every worker."""
        self.eval_time[partitions, index] = round_to_quantum(seconds)

    def update_sums(self, index: int) -> None:
        """Compute the sums of one model from `wanted`, `open` and `time`."""
        work = self.wanted[:, index] * self.time[:, index]
        here = self._sum_by_worker(self._share * work)
        self.load += here - self.here[:, index]
        self.here[:, index] = here
        self.left[index] = work.sum()
        self.update_ahead(index)
        self.count[:, index] = self._sum_by_worker(self.open[:, index])

    def update_ahead(self, index: int) -> None:
        more = self.models[index].most - self.models[index].epochs
        self.ahead[index] = more * self.time[:, index].sum() if more > 0 else 0.0

    def _sum_by_worker(self, values: NDArray[np.generic]) -> Floats:
        """Sum values by partition over the partitions that each worker holds."""
        sums = np.bincount(self.places.workers, values[self.places.partitions], len(self.load))
        return np.asarray(sums, np.float64)

    def update_open(self, index: int) -> None:
        """Open the partitions that the model may train on next: all of `rest`, or the next one of its fixed order."""
        model = self.models[index]
        self.open[:, index] = False
        if model.stopped or model.epoch > model.epochs:
            self.ready[index] = False
            return
        order = model.orders.get(model.epoch)
        if order is None:
            self.open[list(model.rest), index] = True
        elif model.rest:
            self.open[next(j for j in order if j in model.rest), index] = True
        self.ready[index] = model.worker < 0 and bool(model.rest)

    # -- units ------------------------------------------------------------------------------------

    def seconds(self, worker: int, running: Running) -> float:
        """How long a unit is estimated to take on a worker."""
        if running.evaluates:
            return float(self.eval_time[running.partition, running.model])
        row = self.cost.get((worker, running.partition))
        return float((self.time[running.partition] if row is None else row)[running.model])

    def start(self, choice: UnitChoice) -> Running:
        worker, index, partition = choice
        model = self.models[index]
        assert self.ready[index] and self.open[partition, index], "a rule chose a unit that cannot start"
        model.worker = worker
        model.rest.remove(partition)
        self.ready[index] = False
        self.open[partition, index] = False
        self.wanted[partition, index] -= 1
        self._add_to_sums(index, partition, -1)
        return self._run(worker, Running(False, index, model.epoch, partition))

    def _add_to_sums(self, index: int, partition: int, sign: int) -> None:
        """Remove a unit from the sums (sign -1), or add it again."""
        seconds = sign * self.time[partition, index]
        self.left[index] += seconds
        holders = self.holders[partition]
        for worker in holders:
            self.count[worker, index] += sign
            self.here[worker, index] += seconds / len(holders)
            self.load[worker] += seconds / len(holders)

    def _run(self, worker: int, running: Running) -> Running:
        self.idle.discard(worker)
        self.running[worker] = running
        self.until[worker] = self.now + self.seconds(worker, running)
        return running

    def finish(self, worker: int) -> tuple[Running, bool, bool]:
        """Return the unit that ended, and whether it completed its epoch's training and its evaluation."""
        running = self._release(worker)
        model = self.models[running.model]
        if running.evaluates:
            model.evals[running.epoch] -= 1
            evaluated = model.evals[running.epoch] == 0
            if evaluated:
                del model.evals[running.epoch]
            return running, False, evaluated
        model.worker = -1
        if model.rest:
            if model.epoch in model.orders:
                self.update_open(running.model)
                self.update_sums(running.model)
            else:
                self.ready[running.model] = not model.stopped
            return running, False, False
        return running, True, self.complete_epoch(running.model)

    def complete_epoch(self, index: int) -> bool:
        """Continue with the next epoch, if one is left. Returns whether there is nothing to evaluate."""
        model = self.models[index]
        for partition in range(self.eval_partitions):
            self.add_eval(index, model.epoch, partition)
        model.epoch += 1
        model.rest = set(range(self.partitions)) if model.epoch <= model.epochs else set()
        self.update_open(index)
        self.count[:, index] = self._sum_by_worker(self.open[:, index])
        return self.eval_partitions == 0

    def add_eval(self, index: int, epoch: int, partition: int) -> None:
        model = self.models[index]
        model.evals[epoch] = model.evals.get(epoch, 0) + 1
        if model.stopped:
            model.shelved.append((epoch, partition))
            return
        self._ticket += 1
        self.evals_waiting += 1
        self.waiting[partition].append((self._ticket, index, epoch))

    def oldest_eval(self, worker: int) -> int | None:
        """The evaluation partition of this worker whose first unit has waited longest."""
        heads = [(self.waiting[j][0][0], j) for j in self.held_evals[worker] if self.waiting[j]]
        return min(heads)[1] if heads else None

    def start_eval(self, worker: int, partition: int) -> Running:
        _, index, epoch = self.waiting[partition].popleft()
        self.evals_waiting -= 1
        return self._run(worker, Running(True, index, epoch, partition))

    def give_back(self, worker: int) -> Running:
        """Return the worker's unit to the queue: it did not happen."""
        self.disruptions += 1
        running = self._release(worker)
        model = self.models[running.model]
        if running.evaluates and model.stopped:
            model.shelved.append((running.epoch, running.partition))
            return running
        if running.evaluates:
            self.evals_waiting += 1
            self.waiting[running.partition].appendleft((0, running.model, running.epoch))  # before all others
            return running
        model.worker = -1
        model.rest.add(running.partition)
        self.update_open(running.model)
        if not model.stopped:
            self.wanted[running.partition, running.model] += 1
        self.update_sums(running.model)
        return running

    def undo(self, index: int, epoch: int, partition: int) -> None:
        """Undo the last training unit of an idle model, whether or not it ended its epoch."""
        self.disruptions += 1
        model = self.models[index]
        if epoch == model.epoch:
            model.rest.add(partition)
        else:
            model.evals.pop(epoch, None)
            model.shelved = [entry for entry in model.shelved if entry[0] != epoch]
            self.waiting = [deque(entry for entry in queue if entry[1:] != (index, epoch)) for queue in self.waiting]
            self.evals_waiting = sum(map(len, self.waiting))
            model.epoch, model.rest = epoch, {partition}
        if not model.stopped:
            self._update_wanted(index)
        self.update_open(index)
        self.update_sums(index)

    def _update_wanted(self, index: int) -> None:
        """Recompute the visits left, in the current epoch and in later ones."""
        model = self.models[index]
        self.wanted[:, index] = max(0, model.epochs - model.epoch)
        if model.epoch <= model.epochs:
            self.wanted[list(model.rest), index] += 1

    def _release(self, worker: int) -> Running:
        self.idle.add(worker)
        del self.until[worker]
        return self.running.pop(worker)

    # -- more or fewer epochs ------------------------------------------------------------------------

    def extend(self, index: int, epochs: int) -> None:
        """Set the total number of epochs, at least as many as have begun. This also resumes a stopped model."""
        model = self.models[index]
        was_stopped, model.stopped = model.stopped, False
        begun = model.epoch if model.worker >= 0 or self._has_begun(model) else model.epoch - 1
        model.epochs = max(epochs, begun)
        if model.worker < 0 and not self._has_begun(model):  # the next epoch is wanted completely or not at all
            model.rest = set(range(self.partitions)) if model.epoch <= model.epochs else set()
        self._update_wanted(index)
        self.update_open(index)
        self.update_sums(index)
        if was_stopped:
            shelved, model.shelved = model.shelved, []
            for epoch, partition in shelved:
                model.evals[epoch] -= 1
                self.add_eval(index, epoch, partition)

    def _has_begun(self, model: ModelProgress) -> bool:
        return 0 < len(model.rest) < self.partitions

    def stop(self, index: int) -> None:
        """Start no new units of this model; running units may finish."""
        model = self.models[index]
        model.stopped = True
        for partition, queue in enumerate(self.waiting):
            mine = [epoch for _, owner, epoch in queue if owner == index]
            model.shelved.extend((epoch, partition) for epoch in mine)
            self.evals_waiting -= len(mine)
            self.waiting[partition] = deque(entry for entry in queue if entry[1] != index)
        self.wanted[:, index] = 0
        self.update_open(index)
        self.update_sums(index)

    # -- queries of rules ----------------------------------------------------------------------------

    def workers_with_work(self, idle: Iterable[int]) -> list[int]:
        """The idle workers that hold an open unit of a ready model."""
        workers = sorted(idle)
        if len(workers) > 1:
            if len(workers) * len(self.ready) > MAX_UNITS_UNFILTERED:
                found = self.count[np.ix_(np.array(workers), np.flatnonzero(self.ready))].sum(axis=1)
            else:
                found = self.count[workers] @ self.ready
            return [workers[row] for row in np.flatnonzero(found).tolist()]
        return [w for w in workers if np.logical_and(self.count[w], self.ready).any()]

    def choose_partition(self, worker: int, model: int) -> int:
        """The model's open partition on this worker with the fewest holders, then the one that takes longest."""
        held = self.held[worker]
        if len(held) == 1:
            return held[0]
        openings = [j for j in held if self.open[j, model]]
        return min(openings, key=lambda j: (len(self.holders[j]), -self.time[j, model], j))


def _with_rows(array: NDArray[Any], count: int, size: int) -> NDArray[Any]:
    """Append rows of zeros until the array has `count` rows."""
    more = np.zeros((count - len(array), size), array.dtype)
    return np.concatenate([array, more]) if len(more) else array
