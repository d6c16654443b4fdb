"""A scheduler driven by bytes: each is an event, so that hypothesis can find and shrink sequences that break it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hopper_invariants import RecordedHopper, check_hopper

from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.simulate import spread_partitions
from regatta.plan.schedule.units import Unit


@dataclass
class Play:
    """Plays events on a hopper and keeps its own record of what finished, to compare at the end."""

    rule: str
    partitions: int
    evals: int
    workers: int
    replicas: int
    seed: int = 0
    effort: int = 200
    finished: Counter[Unit] = field(default_factory=Counter)
    assigned: list[tuple[str, Unit]] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, set[tuple[int, int]]] = field(default_factory=dict)  # done before it was added
    stopped: set[str] = field(default_factory=set)
    orders: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    trails: dict[str, list[Unit]] = field(default_factory=dict)  # training units that finished, the last one last
    now: float = 0.0

    def __post_init__(self) -> None:
        self.homes = spread_partitions(self.partitions, self.workers, self.evals, self.replicas)
        times = {(f"m{i}", j): 1.0 + (7 * i + 3 * j) % 5 for i in range(64) for j in range(self.partitions)}
        evals = {(f"m{i}", j): 0.5 for i in range(64) for j in range(self.evals)}
        self.hopper = RecordedHopper(
            self.partitions,
            self.evals,
            estimates=KnownTimes(times, evals),
            rule=self.rule,
            seed=self.seed,
            effort=self.effort,
            solver_seconds=0.05,
        )
        for worker, held in self.homes.items():
            self.hopper.add_worker(worker, *held)
        self.add_model(0)
        self.add_model(3)
        if self.rule == "planned":
            self.hopper.follow(self._some_schedule())

    def _some_schedule(self) -> list[tuple[float, str, Unit]]:
        """Of the first two models, in an order that no rule would choose."""
        homes = {j: worker for worker, (held, _) in self.homes.items() for j in held}
        units = [Unit("train", name, epoch, j) for name in self.epochs for epoch in (1, 2, 3) for j in homes]
        return [(float(7 * k % 11 + 20 * u.epoch), homes[u.partition], u) for k, u in enumerate(units)]

    # -- events -----------------------------------------------------------------------------------

    def event(self, byte: int) -> None:
        argument, what = divmod(byte, 16)
        self.now += 0.25
        actions = {
            5: self.add_model,
            6: self.stop,
            7: self.extend,
            8: self.leave,
            9: self.come,
            10: self.give_back,
            11: self.peek,
            12: self.undo,
            13: self.undo,
            14: self.hand_over,
        }
        actions.get(what, self.finish)(argument)
        check_hopper(self.hopper)
        if argument % 4:  # else another event comes before the next decision
            self.assign()

    def assign(self) -> None:
        for assignment in self.hopper.assign(self.now):
            held = self.homes[assignment.worker][0 if assignment.unit.kind == "train" else 1]
            assert assignment.unit.partition in held
            assert assignment.unit.model not in self.stopped
            self._check_order(assignment.unit)
            self.assigned.append((assignment.worker, assignment.unit))
        check_hopper(self.hopper)

    def add_model(self, argument: int) -> None:
        name = f"m{len(self.epochs)}"
        if len(self.epochs) == 8:
            return
        done = argument % 2
        visited = list(range(argument % (self.partitions + 1))) if argument % 3 == 0 else []
        self.epochs[name] = done + 1 + argument % 3
        self.skipped[name] = {(e + 1, j) for e in range(done) for j in range(self.partitions)}
        self.skipped[name] |= {(done + 1, j) for j in visited}
        if argument % 5 == 3:
            order = [(j + argument) % self.partitions for j in range(self.partitions)]
            self.orders[name] = {done + 1: order, done + 2: order[::-1]}
        most = self.epochs[name] + argument if argument % 7 == 6 else 0
        self.hopper.add_model(
            name, self.epochs[name], done=done, visited=visited, order=self.orders.get(name), most=most
        )

    def finish(self, argument: int) -> None:
        if worker := self._pick(list(self.hopper.running()), argument):
            unit = self.hopper.running()[worker]
            finished = self.hopper.finish(worker, self.now, seconds=1.0)
            self.finished[unit] += 1
            if unit.kind == "train":
                self.trails.setdefault(unit.model, []).append(unit)
            assert finished.unit == unit
            trained = self._count("train", unit) == self.partitions
            assert finished.trained == (unit.kind == "train" and trained)
            all_evaluated = self._count("eval", unit) == self.evals
            assert finished.evaluated == (finished.trained if not self.evals else unit.kind == "eval" and all_evaluated)

    def stop(self, argument: int) -> None:
        if argument % 2 and (name := self._pick(list(self.epochs), argument)):
            self.hopper.stop_model(name)
            self.stopped.add(name)

    def extend(self, argument: int) -> None:
        if name := self._pick(list(self.epochs), argument):
            self.epochs[name] += argument % 2
            order = None
            if argument % 3 == 2:  # what is fixed already stays as it is
                order = {self.epochs[name]: [(argument - j) % self.partitions for j in range(self.partitions)]}
                self.orders[name] = {**order, **self.orders.get(name, {})}
            self.hopper.extend_model(name, self.epochs[name], order=order)
            self.stopped.discard(name)

    def undo(self, argument: int) -> None:
        """The last training unit of a model, where nothing that followed from it runs or has finished."""
        possible = [name for name in self.epochs if self._may_undo(name)]
        if name := self._pick(possible, argument):
            unit = self.trails[name].pop()
            del self.finished[unit]
            left = self.hopper.units_left()
            self.hopper.undo(name, unit.epoch, unit.partition)
            assert self.hopper.units_left() == left + (name not in self.stopped)

    def _may_undo(self, name: str) -> bool:
        if not self.trails.get(name):
            return False
        last = self.trails[name][-1]
        running = [unit for unit in self.hopper.running().values() if unit.model == name]
        followed = [unit for unit in [*running, *self.finished] if (unit.kind, unit.epoch) == ("eval", last.epoch)]
        return all(unit.kind == "eval" for unit in running) and not any(unit.model == name for unit in followed)

    def leave(self, argument: int) -> None:
        if worker := self._pick(list(self.hopper.workers()), argument):
            running = self.hopper.running().get(worker)
            assert self.hopper.remove_worker(worker) == running

    def come(self, argument: int) -> None:
        if worker := self._pick(sorted(set(self.homes) - set(self.hopper.workers())), argument):
            self.hopper.add_worker(worker, *self.homes[worker])

    def hand_over(self, argument: int) -> None:
        """Those that are here hold what a worker that is away held alone; it may come back, with it or with nothing."""
        here = sorted(self.hopper.workers())
        away = self._pick(sorted(set(self.homes) - set(here)), argument)
        if away is None or not here:
            return
        for kind in (0, 1):
            held = {j for worker in here for j in self.homes[worker][kind]}
            for j in set(self.homes[away][kind]) - held:
                self.homes[here[(argument + j) % len(here)]][kind].append(j)
        for worker in here:
            self.hopper.set_partitions(worker, *self.homes[worker])
        if argument % 2:
            self.homes[away] = ([], [])

    def give_back(self, argument: int) -> None:
        if worker := self._pick(list(self.hopper.running()), argument):
            running = self.hopper.running()[worker]
            assert self.hopper.give_back(worker) == running

    def peek(self, argument: int) -> None:
        if worker := self._pick(list(self.hopper.running()), argument):
            before = self.hopper.running()
            unit = self.hopper.likely_next(worker)
            assert unit == self.hopper.likely_next(worker)
            assert self.hopper.running() == before
            if unit and unit.kind == "train":
                assert all(u.model != unit.model for u in before.values() if u.kind == "train")
                assert unit.partition in self.homes[worker][0]

    # -- the end ----------------------------------------------------------------------------------

    def to_the_end(self) -> None:
        """All workers come back, everything is finished, and every unit that was wanted happened exactly once."""
        for worker in sorted(set(self.homes) - set(self.hopper.workers())):
            self.hopper.add_worker(worker, *self.homes[worker])
        for step in range(10_000):
            self.now += 1.0
            self.assign()
            if self.hopper.done():
                break
            assert self.hopper.running(), f"stuck with {self.hopper.units_left()} units left"
            self.finish(step)
        assert not self.hopper.running()
        assert self.hopper.units_left() == 0
        assert max(self.finished.values(), default=1) == 1
        for name, epochs in self.epochs.items():
            if name not in self.stopped:
                self._check_complete(name, epochs)

    def _check_complete(self, name: str, epochs: int) -> None:
        wanted = {(epoch + 1, j) for epoch in range(epochs) for j in range(self.partitions)} - self.skipped[name]
        done = {(u.epoch, u.partition) for u in self.finished if u.model == name and u.kind == "train"}
        assert done == wanted
        full = {epoch for epoch, _ in wanted}
        resumed = {epoch for epoch in range(1, epochs + 1) if epoch not in full}
        evaluated = Counter(u.epoch for u in self.finished if u.model == name and u.kind == "eval")
        assert all(evaluated[epoch] == self.evals for epoch in full)
        assert all(evaluated[epoch] in (0, self.evals) for epoch in resumed)

    def _check_order(self, unit: Unit) -> None:
        order = self.orders.get(unit.model, {}).get(unit.epoch)
        if order and unit.kind == "train":
            done = {
                u.partition for u in self.finished if (u.kind, u.model, u.epoch) == ("train", unit.model, unit.epoch)
            }
            done |= {j for epoch, j in self.skipped[unit.model] if epoch == unit.epoch}
            assert unit.partition == next(j for j in order if j not in done)

    def _count(self, kind: str, unit: Unit) -> int:
        done = sum(u.kind == kind and u.model == unit.model and u.epoch == unit.epoch for u in self.finished)
        before = sum(epoch == unit.epoch for epoch, _ in self.skipped[unit.model]) if kind == "train" else 0
        return done + before

    @staticmethod
    def _pick(found: list[str], argument: int) -> str | None:
        return found[argument % len(found)] if found else None
