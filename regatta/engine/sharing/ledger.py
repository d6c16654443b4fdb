"""The books of the blocks: which are there, who waits for them, who holds them, and what is to be done next.

Pure: readers and makers are names, blocks are keys and sizes; no clock, no files. What to do comes out as jobs, and
blocks to close as keys. Bounds are kept by these rules, in this order: what every model has had is dropped, what was
not needed for longest is spilled to the disk, what does not fit there either is dropped and made again when it is
asked for. A block that somebody waits for is always made; where it fits nowhere, readers are told to make their own.
Before the first one is made nobody knows how large they are: those made at the same time may then be too much together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

BlockPlace: TypeAlias = Literal["memory", "disk"]
DEATHS = 3  # a block that takes so many makers with it is given up
ABSENT = 4  # a model that has not asked while the others asked so often is waited for no more
MOST_BLOCKS = 256  # each is an open file of the controller


class BlockKey(NamedTuple):
    """What a block is of: a partition as it is read (epoch None), or transformed for an epoch."""

    kind: str
    partition: int
    epoch: int | None = None

    @property
    def base(self) -> BlockKey:
        return BlockKey(self.kind, self.partition)


@dataclass(frozen=True)
class BlockJob:
    """Something for a maker: make a block, where there is so much room; or write one to the disk."""

    key: BlockKey
    spill: bool = False
    memory: int = 0
    disk: int = 0


@dataclass
class _BlockEntry:
    bytes: int = 0
    place: BlockPlace | None = None  # None: not made
    job: BlockJob | None = None
    holders: set[str] = field(default_factory=set)
    waiters: dict[str, None] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # models
    needed: int = 0  # when it was last asked for
    deaths: int = 0

    @property
    def idle(self) -> bool:
        return self.place is not None and not self.holders and not self.waiters and self.job is None


class Ledger:
    """What is known of all blocks of a run."""

    def __init__(self, memory: int, disk: int, *, partitions: int, epochs: int, reads: bool, transforms: bool) -> None:
        """`reads`: partitions as they are read are blocks too, from which those of epochs are made."""
        self.memory, self.disk = memory, disk
        self._partitions, self._epochs = partitions, epochs
        self._reads, self._transforms = reads, transforms
        self._entries: dict[BlockKey, _BlockEntry] = {}
        self._progress: dict[str, int] = {}  # the epoch that each model has come to, the last to ask last
        self._asked: dict[str, int] = {}
        self._asks = 0
        self._largest = 0
        self._readers: set[str] = set()
        self._closed: list[BlockKey] = []
        self._clock = 0

    # -- what happens ------------------------------------------------------------------------------------

    def want(self, reader: str, key: BlockKey, models: Iterable[str] = ()) -> bool:
        """A reader asks for a block; whether it is there, and now held by the reader."""
        self._readers.add(reader)
        entry = self._entry(key)
        self._clock += 1
        entry.needed = self._clock
        self._note(entry, key, models)
        if entry.place is None:
            entry.waiters[reader] = None
            return False
        entry.holders.add(reader)
        return True

    def note(self, key: BlockKey, models: Iterable[str]) -> None:
        """Models had a block that their reader held already."""
        if key in self._entries:
            self._note(self._entries[key], key, models)

    def release(self, reader: str, key: BlockKey) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.holders.discard(reader)

    def leave(self, reader: str) -> list[BlockKey]:
        """A reader is gone, and lets go of all that it held; what is being made for it alone."""
        self._readers.discard(reader)
        alone = [key for key, entry in self._entries.items() if list(entry.waiters) == [reader]]
        for entry in self._entries.values():
            entry.holders.discard(reader)
            entry.waiters.pop(reader, None)
        for key in alone:
            if self._entries[key].job is None:
                self._finish(key)
        return [key for key in dict.fromkeys(map(self._first, alone)) if not self._is_awaited(key)]

    def _is_awaited(self, key: BlockKey) -> bool:
        return any(entry.waiters for other, entry in self._entries.items() if key in (other, self.base_of(other)))

    def made(self, key: BlockKey, size: int, place: BlockPlace) -> list[str]:
        """A block is there; who waited for it holds it now."""
        entry = self._finish(key)
        entry.bytes, entry.place, entry.deaths = size, place, 0
        self._largest = max(self._largest, size)
        if key.epoch is None:
            self._clock += 1
            entry.needed = self._clock
        made_from_it = (other for other in self._entries if self.base_of(other) == key and self._entries[other].waiters)
        entry.holders.update(f"job {other}" for other in made_from_it)  # it must be there when that is made
        return self._serve(entry, hold=True)

    def lost(self, reader: str, key: BlockKey) -> None:
        """A block that a reader was given is not to be had any more; it is made again when it is asked for."""
        self.release(reader, key)
        entry = self._entries.get(key)
        if entry is not None and entry.place is not None:
            entry.place, entry.bytes = None, 0
            self._closed.append(key)

    def spilled(self, key: BlockKey, done: bool) -> bool:
        """A block was written to the disk, or could not be; whether that copy is to be kept."""
        entry = self._entry(key)
        entry.job = None
        if done and entry.place == "memory" and not entry.holders:
            entry.place = "disk"
            return True
        if not done and entry.idle:  # the disk does not take it
            self._drop(key)
        return False

    def crowded(self, key: BlockKey, size: int) -> list[str]:
        """There is no room for a block of that size; who waited for it."""
        self._largest = max(self._largest, size)
        return self.failed(key)

    def failed(self, key: BlockKey) -> list[str]:
        """A block cannot be made; who waited for it, or for what is made from it."""
        waiters = self._serve(self._finish(key), hold=False)
        if key.epoch is None:
            for other in [other for other in self._entries if other.base == key and other != key]:
                waiters += self._serve(self._entries[other], hold=False)
        return waiters

    def died(self, job: BlockJob) -> bool:
        """The maker that had a job is gone; whether the job is given up."""
        entry = self._entry(job.key)
        if job.spill:
            entry.job = None
            return False
        entry = self._finish(job.key)
        entry.deaths += 1
        return entry.deaths >= DEATHS

    # -- what to do --------------------------------------------------------------------------------------

    def jobs(self, idle: int) -> list[BlockJob]:
        """Jobs for so many idle makers: what is waited for, then room for what comes, then what comes."""
        found: list[BlockJob] = []
        while len(found) < idle:
            job = self._demanded() or self._spill() or self._ahead()
            if job is None:
                break
            self._entry(job.key).job = job
            if not job.spill and self.base_of(job.key) is not None:
                self._entries[job.key.base].holders.add(f"job {job.key}")
            found.append(job)
        return found

    def waiting(self) -> int:
        """How many blocks are waited for that nobody makes."""
        return sum(1 for _ in self._unmade())

    def waits(self, reader: str) -> bool:
        return any(reader in entry.waiters for entry in self._entries.values())

    def base_of(self, key: BlockKey) -> BlockKey | None:
        """The block that a block is made from, where that is one."""
        return key.base if self._reads and key.epoch is not None else None

    def closed(self) -> list[BlockKey]:
        """Blocks that were dropped since the last time, after all bounds are seen to."""
        self._trim()
        found, self._closed = self._closed, []
        return found

    def used(self, place: BlockPlace) -> int:
        return sum(entry.bytes for entry in self._entries.values() if entry.place == place)

    # -- inside ------------------------------------------------------------------------------------------

    def _entry(self, key: BlockKey) -> _BlockEntry:
        return self._entries.setdefault(key, _BlockEntry())

    def _note(self, entry: _BlockEntry, key: BlockKey, models: Iterable[str]) -> None:
        entry.seen.update(models)
        self._asks += 1
        for model in models if key.epoch is not None else ():
            self._progress[model] = max(key.epoch or 0, self._progress.get(model, 0))
            self._asked[model] = self._asks
        watchdog = ABSENT * (len(self._progress) + 1)
        for model in [model for model, when in self._asked.items() if when < self._asks - watchdog]:
            del self._asked[model], self._progress[model]  # it was stopped, or has failed

    def _finish(self, key: BlockKey) -> _BlockEntry:
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

    def _unmade(self) -> Iterator[BlockKey]:
        """What is waited for and not being made, longest first; what it is made from before it."""
        wanted = [key for key, entry in self._entries.items() if entry.waiters and entry.place is None]
        for key in sorted(wanted, key=lambda key: self._entries[key].needed):
            first = self._first(key)
            if self._entry(first).job is None:
                yield first

    def _first(self, key: BlockKey) -> BlockKey:
        """The block itself, or the one that it is made from, where that is not there yet."""
        base = self.base_of(key)
        return key if base is None or self._entry(base).place is not None else base

    def _demanded(self) -> BlockJob | None:
        key = next(self._unmade(), None)
        return None if key is None else self._make(key)

    def _make(self, key: BlockKey) -> BlockJob:
        self._clock += 1
        if (base := self.base_of(key)) is not None:
            self._entries[base].needed = self._clock
        memory, disk = self._free(), self.disk - self._held("disk")
        if max(memory, disk) < self._largest:  # then what nobody holds is dropped for what somebody waits for
            memory = self.memory - self._held("memory") - self._making()
        return BlockJob(key, memory=memory, disk=disk)

    def _held(self, place: BlockPlace) -> int:
        return sum(entry.bytes for entry in self._entries.values() if entry.place == place and not entry.idle)

    def _making(self) -> int:
        """Bytes that blocks which are being made will probably take."""
        return self._largest * sum(e.job is not None and not e.job.spill for e in self._entries.values())

    def _free(self) -> int:
        """Bytes of memory, less what is being made and less what can be dropped at once."""
        droppable = sum(entry.bytes for key, entry in self._entries.items() if self._is_over(key, entry))
        return self.memory - self.used("memory") + droppable - self._making()

    def _is_over(self, key: BlockKey, entry: _BlockEntry) -> bool:
        """In memory, held by nobody, and every model that was ever seen has had it or gone past it."""
        if key.epoch is None or not entry.idle or entry.place != "memory" or not entry.seen:
            return False
        return all(model in entry.seen or epoch > key.epoch for model, epoch in self._progress.items())

    def _spill(self) -> BlockJob | None:
        """The block that was not needed for longest, where there would be no room for the next."""
        going = sum(entry.bytes for entry in self._entries.values() if entry.job is not None and entry.job.spill)
        if self._free() + going >= self._largest or self.used("disk") + going + self._largest > self.disk:
            return None
        kept = [key for key in self._idle("memory") if not self._is_over(key, self._entries[key])]
        return BlockJob(min(kept, key=self._order), spill=True) if kept else None

    def _idle(self, place: BlockPlace) -> list[BlockKey]:
        return [key for key, entry in self._entries.items() if entry.idle and entry.place == place]

    def _oldest(self, place: BlockPlace) -> BlockKey | None:
        return min(self._idle(place), key=self._order, default=None)

    def _order(self, key: BlockKey) -> tuple[bool, int]:
        """What everybody has had comes first; what nobody has asked for yet is about to be."""
        entry = self._entries[key]
        return not self._is_over(key, entry), entry.needed if entry.seen or key.epoch is None else self._clock

    def _ahead(self) -> BlockJob | None:
        """What will be asked for next: the other partitions of this epoch, and then the next epoch of all."""
        if not (self._transforms and self._progress and self._largest) or self._free() < self._largest:
            return None
        unasked = [e for k, e in self._entries.items() if k.epoch is not None and not e.seen and (e.place or e.job)]
        if len(unasked) >= max(1, len(self._readers)):
            return None
        last = min(max(self._progress.values()) + 1, self._epochs)
        for epoch in range(max(1, min(self._progress.values())), last + 1):
            for partition in self._by_use(epoch):
                key = BlockKey("train", partition, epoch)
                if key not in self._entries and self._first(key) == key:
                    return self._make(key)
        return None

    def _by_use(self, epoch: int) -> Sequence[int]:
        """Partitions in the order in which they were asked for in the epoch before."""
        before = [
            self._entries.get(BlockKey("train", p, epoch - 1), _BlockEntry()).needed for p in range(self._partitions)
        ]
        return sorted(range(self._partitions), key=lambda p: before[p] or self._clock)

    def _trim(self) -> None:
        while self.used("memory") > self.memory:
            key = self._oldest("memory")
            over = key is not None and self._is_over(key, self._entries[key])
            if key is None or not (over or self.used("disk") + self._entries[key].bytes > self.disk):
                break  # what is held stays; what is spilled goes when it is
            self._drop(key)
        while self.used("disk") > self.disk or sum(e.place is not None for e in self._entries.values()) > MOST_BLOCKS:
            key = self._oldest("disk") or self._oldest("memory")
            if key is None:
                break
            self._drop(key)

    def _drop(self, key: BlockKey) -> None:
        entry = self._entries[key]
        entry.place, entry.bytes = None, 0
        self._closed.append(key)
        if key.epoch is not None and all(epoch > key.epoch for epoch in self._progress.values()):
            del self._entries[key]  # nobody is expected to ask for it again
