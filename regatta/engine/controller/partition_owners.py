"""Which worker holds which partitions, and which workers take over the partitions of a lost one."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from regatta.data import Dataset


class PartitionOwners:
    """Training and evaluation partitions by worker. Each team of workers holds all partitions."""

    def __init__(self, dataset: Dataset, *teams: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._teams = {worker: set(team) for team in teams for worker in team}
        self._train: dict[str, tuple[int, ...]] = {}
        self._eval: dict[str, tuple[int, ...]] = {}
        for team in teams:
            train, evaluation = dataset.holders(team)
            self._train |= train
            self._eval |= evaluation

    def partitions_of(self, worker: str) -> tuple[list[int], list[int]]:
        """The partitions of a worker. One that joined later can reach those of all others, so it holds everything."""
        if worker not in self._train:
            self._train[worker] = tuple(range(len(self._dataset.train)))
            self._eval[worker] = tuple(range(len(self._dataset.eval)))
        return list(self._train[worker]), list(self._eval[worker])

    def hand_over(self, worker: str, workers_up: Collection[str]) -> Iterator[str]:
        """Give the partitions of a lost worker to others of its team; yields a message for unreadable partitions."""
        team = self._teams.pop(worker, set())
        for others in self._teams.values():
            others.discard(worker)
        joined = [other for other in workers_up if other not in self._teams]
        heirs = [*(other for other in workers_up if other in team), *joined] or sorted(team - {worker})
        for kind, held, partitions in (
            ("train", self._train, self._dataset.train),
            ("eval", self._eval, self._dataset.eval),
        ):
            orphaned = [j for j in held.pop(worker, ()) if not any(j in held[heir] for heir in heirs)]
            unreadable = [j for j in orphaned if not partitions[j].path.exists()]
            if unreadable:
                yield f"{kind} partitions {unreadable} were held by {worker} alone and cannot be read from here"
            for place, j in enumerate(j for j in orphaned if heirs and j not in unreadable):
                heir = sorted(heirs, key=lambda name: len(held[name]))[place % len(heirs)]
                held[heir] = (*held[heir], j)
