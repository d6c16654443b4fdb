"""The data of a worker: partitions as frameworks want them; read, transformed, or made by others and shared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from regatta.engine.messages import WorkerSetup
from regatta.engine.sharing.block_reader import BlockReader
from regatta.engine.sharing.blocks import UnsharableError, layout_of, plain
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.sharing.preprocess import ROWS, PartitionKind, Preprocessor
from regatta.frameworks import Framework
from regatta.frameworks.arrays import rows

if TYPE_CHECKING:
    from regatta.engine.workers.training.trainer import Costs

_Place: TypeAlias = tuple[str, BlockKey]


@dataclass
class PartitionCache:
    """What is read is kept; of what is transformed or shared, the last of each kind."""

    setup: WorkerSetup
    device: str = "cpu"
    reader: BlockReader | None = None
    _data: dict[_Place, Any] = field(default_factory=dict)
    _sample: tuple[tuple[str, int, int], Any] | None = None
    sampled: tuple[int, float] | None = None  # the rows of the partition of the last sample, and seconds for each
    unsharable: bool = False  # what it was made from

    def __post_init__(self) -> None:
        self._preprocessor = Preprocessor(self.setup)
        self._held: set[BlockKey] = set()

    def partition(
        self,
        kind: PartitionKind,
        index: int,
        framework: Framework,
        costs: Costs | None = None,
        epoch: int | None = None,
        models: Sequence[str] = (),
    ) -> Any:
        """The data of a partition; for training, as it is in an epoch."""
        transformed = kind == "train" and epoch is not None and self.setup.recipe.transform_fn is not None
        key = BlockKey(kind, index, epoch if transformed else None)
        place, start = (framework.NAME, key), time.perf_counter()
        if place not in self._data or (transformed and not self._keeps()):
            self._make_way(key)
            self._data[place] = framework.prepare(self._bring(key, models), self.device)
        elif key in self._held and self.reader is not None:
            self.reader.note(key, models)
        if costs is not None:
            costs.load_seconds += time.perf_counter() - start
        return self._data[place]

    def sample(self, index: int, framework: Framework, most: int, costs: Costs | None) -> Any:
        """Some transformed rows of a partition, for a pilot."""
        place = framework.NAME, index, most
        if self._sample is None or self._sample[0] != place:
            start = time.perf_counter()
            base = self._read(BlockKey("train", index))
            read = time.perf_counter()
            first = self._preprocessor.transform(base, index, 0, most)
            end, total = time.perf_counter(), rows(base)
            self.sampled = total, (end - read) / min(total, -(-most // ROWS) * ROWS)
            self.unsharable = _is_unsharable(base)
            self._sample = place, framework.prepare(first, self.device)
            if costs is not None:
                costs.load_seconds += end - start
            if self.reader is not None:
                self.reader.measured(self.sampled[1] * total)
        return self._sample[1]

    def sample_again(self) -> None:
        """The first sample also paid for what transform_fn imports: the next is measured anew."""
        self._sample = None

    def forget(self) -> None:
        """Somebody changed what is here; it is read again."""
        for key in list(self._held):
            self._let_go(key)
        self._data.clear()
        self._sample = None

    def _keeps(self) -> bool:
        """Whether a model may have what was made for another."""
        sharing = self.setup.sharing
        return sharing is None or sharing.settings.always is not False

    def _make_way(self, key: BlockKey) -> None:
        """Let go of the last block before the next is asked for, and of the rows that a pilot looked at."""
        self._sample = None
        for place in [place for place in self._data if place[1].kind == key.kind]:
            if place[1].epoch is not None or place[1] in self._held:
                del self._data[place]
                self._let_go(place[1])

    def _let_go(self, key: BlockKey) -> None:
        if key in self._held and self.reader is not None:
            self._held.discard(key)
            self.reader.release(key)

    def _bring(self, key: BlockKey, models: Sequence[str]) -> Any:
        shares = self.setup.sharing is not None and (key.epoch is not None or self.setup.sharing.reads_for_all)
        if self.reader is not None and shares:
            found = self.reader.get(key, models)
            if found is not None:
                self._held.add(key)
                return found
        if key.epoch is None:
            return self._preprocessor.read(_kind(key), key.partition)
        base = self._read(key.base)
        start = time.perf_counter()
        made = self._preprocessor.transform(base, key.partition, key.epoch)
        if self.reader is not None:
            self.reader.measured(time.perf_counter() - start)
        return made

    def _read(self, key: BlockKey) -> Any:
        """A partition as it is read, kept for the transforms to come."""
        place = "", key
        if place not in self._data:
            self._data[place] = self._bring(key, ())
        return self._data[place]


def _is_unsharable(base: Any) -> bool:
    try:
        layout_of(plain(base, "input_fn"))
    except UnsharableError:
        return True
    return False


def _kind(key: BlockKey) -> PartitionKind:
    return "train" if key.kind == "train" else "eval"
