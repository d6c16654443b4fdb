"""Which worker holds which partitions, and which workers take over those of a lost one, or those it cannot read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from regatta.data import Dataset

KINDS = ("train", "eval")


class PartitionOwners:
    """Training and evaluation partitions by worker. Each team of workers holds all partitions."""

    def __init__(self, dataset: Dataset, *teams: tuple[str, ...]) -> None:
        self._partitions = {"train": dataset.train, "eval": dataset.eval}
        self._availability = dataset.availability
        self._teams = {worker: set(team) for team in teams for worker in team}
        self._held: dict[str, dict[str, tuple[int, ...]]] = {kind: {} for kind in KINDS}
        self._readable: dict[str, Mapping[str, Collection[int]]] = {}  # by workers that joined
        self._withdrawn: set[tuple[str, str, int]] = set()  # worker, kind, partition: it could not read it
        for team in teams:
            for kind, held in zip(KINDS, dataset.holders(team), strict=True):
                self._held[kind] |= held

    @property
    def are_placed(self) -> bool:
        """Whether an availability map says for every partition which workers can read it."""
        return all(part.path in self._availability for parts in self._partitions.values() for part in parts)

    def add(self, worker: str, readable: Mapping[str, Sequence[int]] | None, named: bool = False) -> None:
        """A worker is up. One that joined says which partitions it can read, and holds those.

        If they are not `named` by its user, it leaves those to others that an availability map gives to these.
        """
        for withdrawn in [entry for entry in self._withdrawn if entry[0] == worker]:
            self._withdrawn.discard(withdrawn)
        if worker not in self._held["train"]:
            self._readable[worker] = readable or {}
            for kind in KINDS:
                can_read = range(len(self._partitions[kind])) if readable is None else readable.get(kind, ())
                self._held[kind][worker] = tuple(j for j in can_read if named or not self._is_placed(kind, j))

    def joined(self, worker: str) -> bool:
        """Whether a worker joined by itself."""
        return worker in self._readable

    def partitions_of(self, worker: str) -> tuple[list[int], list[int]]:
        train, evaluation = ([j for j in self._held[kind][worker] if self._reads(worker, kind, j)] for kind in KINDS)
        return train, evaluation

    def hand_over(self, worker: str, workers_up: Collection[str]) -> Iterator[str]:
        """Give the partitions of a lost worker to others of its team; yields a message for unreadable partitions."""
        team = self._teams.pop(worker, set())
        for others in self._teams.values():
            others.discard(worker)
        heirs = self._mates(team, workers_up) or sorted(team - {worker})
        for kind in KINDS:
            held = self._held[kind]
            orphaned = [j for j in held.pop(worker, ()) if not self._holders(kind, j, heirs)]
            unreadable = [j for j in orphaned if not self._partitions[kind][j].path.exists()]
            if unreadable:
                yield f"{kind} partitions {unreadable} were held by {worker} alone and cannot be read from here"
            for j in orphaned:
                if j not in unreadable:
                    self._give(kind, j, heirs)
        self._restore_unread()

    def withdraw(self, worker: str, kind: str, partition: int, workers_up: Collection[str]) -> list[str]:
        """A worker cannot read a partition. Returns the workers that hold it now: others, unless there are none."""
        self._withdrawn.add((worker, kind, partition))
        mates = self._mates(self._teams.get(worker, set(self._teams)), workers_up)
        holders = self._holders(kind, partition, mates)
        if not holders and not self._is_placed(kind, partition):
            self._give(kind, partition, [mate for mate in mates if self._reads(mate, kind, partition)])
            holders = self._holders(kind, partition, mates)
        return holders

    def _is_placed(self, kind: str, partition: int) -> bool:
        """Whether an availability map says which workers have a partition; then no other worker has it."""
        return self._partitions[kind][partition].path in self._availability

    def restore(self, kind: str, partition: int) -> None:
        """Let the workers that could not read a partition try again."""
        self._withdrawn = {entry for entry in self._withdrawn if entry[1:] != (kind, partition)}

    def _restore_unread(self) -> None:
        """Let workers try a partition again that only a worker could read that has left."""
        joined = [worker for worker in self._held["train"] if worker not in self._teams]
        for kind, partition in {entry[1:] for entry in self._withdrawn}:
            if not all(self._holders(kind, partition, [*team, *joined]) for team in self._teams.values()):
                self.restore(kind, partition)

    def _reads(self, worker: str, kind: str, partition: int) -> bool:
        """Whether a worker may be able to read a partition, as far as is known."""
        if (worker, kind, partition) in self._withdrawn:
            return False
        return not self._readable.get(worker) or partition in self._readable[worker].get(kind, ())

    def _holders(self, kind: str, partition: int, workers: Collection[str]) -> list[str]:
        held = self._held[kind]
        return [w for w in workers if partition in held.get(w, ()) and self._reads(w, kind, partition)]

    def _mates(self, team: Collection[str], workers_up: Collection[str]) -> list[str]:
        """The workers of a team that are up, and those that joined."""
        joined = [other for other in workers_up if other not in self._teams]
        return [*(other for other in workers_up if other in team), *joined]

    def _give(self, kind: str, partition: int, heirs: Collection[str]) -> None:
        """Give a partition to the heir that holds fewest, of those that can read it."""
        held: Any = self._held[kind]
        able = [heir for heir in heirs if self._reads(heir, kind, partition)]
        if able:
            heir = min(able, key=lambda name: len(held[name]))
            held[heir] = (*held[heir], partition)
