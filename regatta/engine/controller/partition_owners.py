"""Which worker holds which partitions, and who takes over what a worker leaves behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from regatta.data import Dataset


class PartitionOwners:
    """Partitions by worker, for training and for evaluation; each team of workers holds all of them."""

    def __init__(self, dataset: Dataset, *teams: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._teams = {worker: set(team) for team in teams for worker in team}
        self._train: dict[str, tuple[int, ...]] = {}
        self._eval: dict[str, tuple[int, ...]] = {}
        for team in teams:
            train, held = dataset.holders(team)
            self._train |= train
            self._eval |= held

    def of(self, worker: str) -> tuple[list[int], list[int]]:
        """What a worker holds; one that joined holds everything: what others hold is in reach."""
        if worker not in self._train:
            self._train[worker] = tuple(range(len(self._dataset.train)))
            self._eval[worker] = tuple(range(len(self._dataset.eval)))
        return list(self._train[worker]), list(self._eval[worker])

    def hand_over(self, worker: str, here: Collection[str]) -> Iterable[str]:
        """What a worker that will not come back was alone to hold, others of its team read, if they can reach it.

        Those that are here, if there are any, else those that will be. What nobody can reach is told.
        """
        mates = self._teams.pop(worker, set())
        for team in self._teams.values():
            team.discard(worker)
        guests = [other for other in here if other not in self._teams]
        left = [*(other for other in here if other in mates), *guests] or sorted(mates - {worker})
        for kind, held, parts in (
            ("train", self._train, self._dataset.train),
            ("eval", self._eval, self._dataset.eval),
        ):
            alone = [j for j in held.pop(worker, ()) if not any(j in held[other] for other in left)]
            gone = [j for j in alone if not parts[j].path.exists()]
            if gone:
                yield f"{kind} partitions {gone} were held by {worker} alone and cannot be read from here"
            for place, j in enumerate(j for j in alone if left and j not in gone):
                other = sorted(left, key=lambda name: len(held[name]))[place % len(left)]
                held[other] = (*held[other], j)
