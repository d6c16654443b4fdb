"""Which blocks exist, which readers wait for them or hold them, and what to make, spill or drop next.

The ledger is pure: readers and jobs are names, blocks are keys and sizes; there is no clock and no file. It returns
jobs for preprocess workers, and keys of blocks to close. It keeps the limits of memory and disk by these rules:

1. A block that every model has used is dropped.
2. The block that was not needed for longest is spilled to the disk.
3. A block that does not fit on the disk either is dropped, and made again when a reader requests it.

A block that a reader waits for is always made. If it fits nowhere, the reader makes its own data. The sizes of blocks
are not known before the first one is made: the blocks made at the same time may then exceed the limits together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

BlockPlace: TypeAlias = Literal["memory", "disk"]
PartitionKind: TypeAlias = Literal["train", "eval"]
MAX_DEATHS = 3  # a block is given up when this many preprocess workers have died while making it
ABSENT_AFTER_REQUESTS = 4  # a model is not waited for any more when each other model has made this many requests since
MAX_BLOCKS = 256  # each block is an open file of the controller


class BlockKey(NamedTuple):
    """The content of a block: a partition as it is read (epoch None), or transformed for an epoch."""

    kind: PartitionKind
    partition: int
    epoch: int | None = None

    @property
    def base(self) -> BlockKey:
        return BlockKey(self.kind, self.partition)


@dataclass(frozen=True)
class BlockJob:
    """A job for a preprocess worker: make a block, if it fits into this many bytes; or spill one to the disk."""

    key: BlockKey
    spill: bool = False
    memory: int = 0
    disk: int = 0


@dataclass
class _BlockEntry:
    bytes: int = 0
    place: BlockPlace | None = None  # None: the block does not exist
    job: BlockJob | None = None
    holders: set[str] = field(default_factory=set)
    waiters: dict[str, None] = field(default_factory=dict)
    used_by: set[str] = field(default_factory=set)  # models
    last_request: int = 0
    deaths: int = 0

    @property
    def idle(self) -> bool:
        return self.place is not None and not self.holders and not self.waiters and self.job is None


class Ledger:
    """The blocks of a run."""

    def __init__(self, memory: int, disk: int, *, partitions: int, epochs: int, reads: bool, transforms: bool) -> None:
        """`reads`: partitions as they are read are blocks too, and the blocks of epochs are made from them."""
        self.memory, self.disk = memory, disk
        self._partitions, self._epochs = partitions, epochs
        self._reads, self._transforms = reads, transforms
        self._entries: dict[BlockKey, _BlockEntry] = {}
        self._progress: dict[str, int] = {}  # the epoch that each model has reached
        self._asked: dict[str, int] = {}  # the number of the last request of each model
        self._requests = 0
        self._largest = 0
        self._readers: set[str] = set()
        self._dropped: list[BlockKey] = []
        self._clock = 0

    # -- events ------------------------------------------------------------------------------------------

    def request(self, reader: str, key: BlockKey, models: Iterable[str] = ()) -> bool:
        """A reader requests a block; returns whether the block exists, and the reader now holds it."""
        self._readers.add(reader)
        entry = self._entry(key)
        entry.last_request = self._tick()
        self._note(entry, key, models)
        if entry.place is None:
            entry.waiters[reader] = None
            return False
        entry.holders.add(reader)
        return True

    def note(self, key: BlockKey, models: Iterable[str]) -> None:
        """More models have used a block that their reader holds already."""
        if key in self._entries:
            self._note(self._entries[key], key, models)

    def release(self, reader: str, key: BlockKey) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.holders.discard(reader)

    def remove_reader(self, reader: str) -> list[BlockKey]:
        """A reader is gone, and releases its blocks; returns the blocks that are being made for it alone."""
        self._readers.discard(reader)
        alone = [key for key, entry in self._entries.items() if list(entry.waiters) == [reader]]
        for entry in self._entries.values():
            entry.holders.discard(reader)
            entry.waiters.pop(reader, None)
        for key in alone:
            if self._entries[key].job is None:
                self._end_job(key)
        return [key for key in dict.fromkeys(map(self._first_to_make, alone)) if not self._is_awaited(key)]

    def _is_awaited(self, key: BlockKey) -> bool:
        return any(entry.waiters for other, entry in self._entries.items() if key in (other, self.base_of(other)))

    def made(self, key: BlockKey, size: int, place: BlockPlace) -> list[str]:
        """A block exists now; returns the readers that waited for it, which hold it now."""
        entry = self._end_job(key)
        entry.bytes, entry.place, entry.deaths = size, place, 0
        self._largest = max(self._largest, size)
        if key.epoch is None:
            entry.last_request = self._tick()
        made_from_it = (other for other in self._entries if self.base_of(other) == key and self._entries[other].waiters)
        entry.holders.update(f"job {other}" for other in made_from_it)  # the base must stay until they are made
        return self._serve(entry, hold=True)

    def lost(self, reader: str, key: BlockKey) -> None:
        """A block that a reader got no longer exists; it is made again when a reader requests it."""
        self.release(reader, key)
        entry = self._entries.get(key)
        if entry is not None and entry.place is not None:
            entry.place, entry.bytes = None, 0
            self._dropped.append(key)

    def spilled(self, key: BlockKey, done: bool) -> bool:
        """A block was written to the disk, or could not be; returns whether to keep that copy."""
        entry = self._entry(key)
        entry.job = None
        if done and entry.place == "memory" and not entry.holders:
            entry.place = "disk"
            return True
        if not done and entry.idle:  # the disk is full
            self._drop(key)
        return False

    def no_room(self, key: BlockKey, size: int) -> list[str]:
        """There is no room for a block of that size; returns the readers that waited for it."""
        self._largest = max(self._largest, size)
        return self.failed(key)

    def failed(self, key: BlockKey) -> list[str]:
        """A block cannot be made; returns the readers that waited for it, or for blocks made from it."""
        waiters = self._serve(self._end_job(key), hold=False)
        if key.epoch is None:
            for other in [other for other in self._entries if other.base == key and other != key]:
                waiters += self._serve(self._entries[other], hold=False)
        return waiters

    def worker_died(self, job: BlockJob) -> bool:
        """The preprocess worker with a job is gone; returns whether the job is given up."""
        if job.spill:
            self._entry(job.key).job = None
            return False
        entry = self._end_job(job.key)
        entry.deaths += 1
        return entry.deaths >= MAX_DEATHS

    # -- decisions ---------------------------------------------------------------------------------------

    def next_jobs(self, idle: int) -> list[BlockJob]:
        """Jobs for idle preprocess workers: make what readers wait for, then spill to make room, then make ahead."""
        jobs: list[BlockJob] = []
        while len(jobs) < idle:
            job = self._requested() or self._spill() or self._ahead()
            if job is None:
                break
            self._entry(job.key).job = job
            if not job.spill and self.base_of(job.key) is not None:
                self._entries[job.key.base].holders.add(f"job {job.key}")
            jobs.append(job)
        return jobs

    def count_unassigned(self) -> int:
        """The number of blocks that readers wait for and that no preprocess worker makes."""
        return sum(1 for _ in self._unassigned())

    def is_waiting(self, reader: str) -> bool:
        return any(reader in entry.waiters for entry in self._entries.values())

    def base_of(self, key: BlockKey) -> BlockKey | None:
        """The block that a block is made from, if that is a block."""
        return key.base if self._reads and key.epoch is not None else None

    def take_dropped(self) -> list[BlockKey]:
        """Enforce the limits; returns the blocks that were dropped since the last call."""
        self._enforce_limits()
        dropped, self._dropped = self._dropped, []
        return dropped

    def used_bytes(self, place: BlockPlace) -> int:
        return sum(entry.bytes for entry in self._entries.values() if entry.place == place)

    # -- inside ------------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _entry(self, key: BlockKey) -> _BlockEntry:
        return self._entries.setdefault(key, _BlockEntry())

    def _note(self, entry: _BlockEntry, key: BlockKey, models: Iterable[str]) -> None:
        entry.used_by.update(models)
        self._requests += 1
        for model in models if key.epoch is not None else ():
            self._progress[model] = max(key.epoch or 0, self._progress.get(model, 0))
            self._asked[model] = self._requests
        oldest = self._requests - ABSENT_AFTER_REQUESTS * (len(self._progress) + 1)
        for model in [model for model, when in self._asked.items() if when < oldest]:
            del self._asked[model], self._progress[model]  # it was stopped, or has failed

    def _end_job(self, key: BlockKey) -> _BlockEntry:
        entry = self._entry(key)
        entry.job = None
        base = self._entries.get(key.base)
        if base is not None:
            base.holders.discard(f"job {key}")
        return entry

    def _serve(self, entry: _BlockEntry, hold: bool) -> list[str]:
        waiters = list(entry.waiters)
        entry.waiters.clear()
        if hold:
            entry.holders.update(waiters)
        return waiters

    def _unassigned(self) -> Iterator[BlockKey]:
        """What readers wait for and nothing makes, the longest wait first; or the base that has to be made before."""
        wanted = [key for key, entry in self._entries.items() if entry.waiters and entry.place is None]
        for key in sorted(wanted, key=lambda key: self._entries[key].last_request):
            first = self._first_to_make(key)
            if self._entry(first).job is None:
                yield first

    def _first_to_make(self, key: BlockKey) -> BlockKey:
        """The block itself, or its base if that does not exist yet."""
        base = self.base_of(key)
        return key if base is None or self._entry(base).place is not None else base

    def _requested(self) -> BlockJob | None:
        key = next(self._unassigned(), None)
        return None if key is None else self._make(key)

    def _make(self, key: BlockKey) -> BlockJob:
        now = self._tick()
        if (base := self.base_of(key)) is not None:
            self._entries[base].last_request = now
        memory, disk = self._free_memory(), self.disk - self._busy_bytes("disk")
        if max(memory, disk) < self._largest:  # then idle blocks are dropped for one that a reader waits for
            memory = self.memory - self._busy_bytes("memory") - self._expected_bytes()
        return BlockJob(key, memory=memory, disk=disk)

    def _busy_bytes(self, place: BlockPlace) -> int:
        return sum(entry.bytes for entry in self._entries.values() if entry.place == place and not entry.idle)

    def _expected_bytes(self) -> int:
        """The bytes that the blocks being made will probably take."""
        return self._largest * sum(e.job is not None and not e.job.spill for e in self._entries.values())

    def _free_memory(self) -> int:
        """Free bytes of memory, with finished blocks counted as free and blocks being made as used."""
        finished = sum(entry.bytes for key, entry in self._entries.items() if self._is_finished(key, entry))
        return self.memory - self.used_bytes("memory") + finished - self._expected_bytes()

    def _is_finished(self, key: BlockKey, entry: _BlockEntry) -> bool:
        """The block is in memory and idle, and every model seen so far has used it or gone past its epoch."""
        if key.epoch is None or not entry.idle or entry.place != "memory" or not entry.used_by:
            return False
        return all(model in entry.used_by or epoch > key.epoch for model, epoch in self._progress.items())

    def _spill(self) -> BlockJob | None:
        """Spill the block that was not needed for longest, if there would be no room for the next one."""
        spilling = sum(entry.bytes for entry in self._entries.values() if entry.job is not None and entry.job.spill)
        has_room = self._free_memory() + spilling >= self._largest
        if has_room or self.used_bytes("disk") + spilling + self._largest > self.disk:
            return None
        kept = [key for key in self._idle("memory") if not self._is_finished(key, self._entries[key])]
        return BlockJob(min(kept, key=self._drop_order), spill=True) if kept else None

    def _idle(self, place: BlockPlace) -> list[BlockKey]:
        return [key for key, entry in self._entries.items() if entry.idle and entry.place == place]

    def _first_to_drop(self, place: BlockPlace) -> BlockKey | None:
        return min(self._idle(place), key=self._drop_order, default=None)

    def _drop_order(self, key: BlockKey) -> tuple[bool, int]:
        """Finished blocks come first; blocks made ahead, which no reader has requested yet, come last."""
        entry = self._entries[key]
        last_request = entry.last_request if entry.used_by or key.epoch is None else self._clock
        return not self._is_finished(key, entry), last_request

    def _ahead(self) -> BlockJob | None:
        """Make a block that readers will request next: the rest of this epoch, then the next epoch."""
        if not (self._transforms and self._progress and self._largest) or self._free_memory() < self._largest:
            return None
        unused = [e for k, e in self._entries.items() if k.epoch is not None and not e.used_by and (e.place or e.job)]
        if len(unused) >= max(1, len(self._readers)):
            return None
        last = min(max(self._progress.values()) + 1, self._epochs)
        for epoch in range(max(1, min(self._progress.values())), last + 1):
            for partition in self._in_request_order(epoch):
                key = BlockKey("train", partition, epoch)
                if key not in self._entries and self._first_to_make(key) == key:
                    return self._make(key)
        return None

    def _in_request_order(self, epoch: int) -> Sequence[int]:
        """Partitions in the order in which readers requested them in the epoch before."""

        def last_request(partition: int) -> int:
            entry = self._entries.get(BlockKey("train", partition, epoch - 1))
            return (entry.last_request if entry is not None else 0) or self._clock

        return sorted(range(self._partitions), key=last_request)

    def _enforce_limits(self) -> None:
        while self.used_bytes("memory") > self.memory:
            key = self._first_to_drop("memory")
            finished = key is not None and self._is_finished(key, self._entries[key])
            if key is None or not (finished or self.used_bytes("disk") + self._entries[key].bytes > self.disk):
                break  # blocks in use stay; a block that can be spilled goes when that is done
            self._drop(key)
        while self.used_bytes("disk") > self.disk or self._count() > MAX_BLOCKS:
            key = self._first_to_drop("disk") or self._first_to_drop("memory")
            if key is None:
                break
            self._drop(key)

    def _count(self) -> int:
        return sum(entry.place is not None for entry in self._entries.values())

    def _drop(self, key: BlockKey) -> None:
        entry = self._entries[key]
        entry.place, entry.bytes = None, 0
        self._dropped.append(key)
        if key.epoch is not None and all(epoch > key.epoch for epoch in self._progress.values()):
            del self._entries[key]  # no reader is expected to request it again
