"""Hop schedulers side by side: each team of workers has its own scheduler and its own models.

No model moves from one team to another, so the invariants of each scheduler hold for all of them. Callers use the teams
like one scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.units import Assignment, Finished, Unit


class Teams:
    """`team_of_worker` and `team_of_model` return the index of the scheduler for a new worker or model."""

    def __init__(
        self, hoppers: Sequence[Hopper], team_of_worker: Callable[[str], int], team_of_model: Callable[[str], int]
    ) -> None:
        self._hoppers = tuple(hoppers)
        self._team_of_worker, self._team_of_model = team_of_worker, team_of_model
        self._workers: dict[str, Hopper] = {}
        self._models: dict[str, Hopper] = {}

    # -- workers and models ------------------------------------------------------------------------

    def add_worker(self, worker: str, train: Iterable[int], evals: Iterable[int] = ()) -> None:
        hopper = self._hoppers[self._team_of_worker(worker)]
        hopper.add_worker(worker, train, evals)
        self._workers[worker] = hopper

    def remove_worker(self, worker: str) -> Unit | None:
        return self._workers.pop(worker).remove_worker(worker)

    def set_partitions(self, worker: str, train: Iterable[int], evals: Iterable[int] = ()) -> None:
        self._workers[worker].set_partitions(worker, train, evals)

    def add_model(
        self,
        model: str,
        epochs: int,
        *,
        done: int = 0,
        visited: Iterable[int] = (),
        evals: Iterable[tuple[int, int]] = (),
        order: Mapping[int, Sequence[int]] | None = None,
        most: int = 0,
    ) -> None:
        hopper = self._hoppers[self._team_of_model(model)]
        hopper.add_model(model, epochs, done=done, visited=visited, evals=evals, order=order, most=most)
        self._models[model] = hopper

    def extend_model(self, model: str, epochs: int, order: Mapping[int, Sequence[int]] | None = None) -> None:
        self._models[model].extend_model(model, epochs, order)

    def stop_model(self, model: str) -> None:
        self._models[model].stop_model(model)

    # -- decisions ---------------------------------------------------------------------------------

    def assign(self, now: float = 0.0) -> list[Assignment]:
        return [assignment for hopper in self._hoppers if not hopper.done() for assignment in hopper.assign(now)]

    def finish(self, worker: str, now: float = 0.0, seconds: float | None = None) -> Finished:
        return self._workers[worker].finish(worker, now, seconds)

    def give_back(self, worker: str) -> Unit:
        return self._workers[worker].give_back(worker)

    def undo(self, model: str, epoch: int, partition: int) -> None:
        self._models[model].undo(model, epoch, partition)

    def likely_next(self, worker: str) -> Unit | None:
        return self._workers[worker].likely_next(worker)

    # -- queries ------------------------------------------------------------------------------------

    def workers(self) -> dict[str, tuple[list[int], list[int]]]:
        return {name: held for hopper in self._hoppers for name, held in hopper.workers().items()}

    def running(self) -> dict[str, Unit]:
        return {worker: unit for hopper in self._hoppers for worker, unit in hopper.running().items()}

    def model_units_left(self, model: str) -> int:
        return self._models[model].model_units_left(model)

    def worker_count(self) -> int:
        return sum(hopper.worker_count() for hopper in self._hoppers)

    def models_left(self) -> int:
        return sum(hopper.models_left() for hopper in self._hoppers)

    def done(self) -> bool:
        return all(hopper.done() for hopper in self._hoppers)

    def idle(self) -> list[int]:
        """The indices of teams that are done while others are not."""
        return [] if self.done() else [team for team, hopper in enumerate(self._hoppers) if hopper.done()]
