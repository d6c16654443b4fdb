"""The partitions that a worker holds in memory: read, transformed, or preprocessed by others and shared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from regatta.engine.messages import WorkerSetup
from regatta.engine.sharing.block_reader import BlockReader
from regatta.engine.sharing.blocks import UnsharableError, layout_of, to_arrays
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.sharing.preprocess import ROWS_PER_CALL, Preprocessor, making_data
from regatta.engine.workers.training.unit import UnitCosts
from regatta.frameworks import Framework
from regatta.frameworks.arrays import rows

_CacheKey: TypeAlias = tuple[str, BlockKey]  # the name of the framework, "" for data as it was read


@dataclass
class PartitionCache:
    """Keeps every partition that was read; of transformed or shared ones, the last of each kind."""

    setup: WorkerSetup
    device: str = "cpu"
    reader: BlockReader | None = None
    _data: dict[_CacheKey, Any] = field(default_factory=dict)
    _ahead: tuple[BlockKey, Any] | None = None  # read, and not yet prepared for a framework
    _sample: tuple[tuple[str, int, int], Any] | None = None
    sampled: tuple[int, float] | None = None  # rows of the last sampled partition, and seconds to transform a row
    unsharable: bool = False  # whether no block can hold that partition

    def __post_init__(self) -> None:
        self._preprocessor = Preprocessor(self.setup)
        self._held: set[BlockKey] = set()  # shared blocks

    def read_ahead(self, key: BlockKey, costs: UnitCosts, models: Sequence[str] = ()) -> None:
        """Read a partition, unless it is here already, before it is known which framework it is for."""
        known = [self._ahead[0]] if self._ahead is not None else []  # of a unit whose model could not be built
        if self._is_for_one_model(key) or key not in (*known, *(cached for _, cached in self._data)):
            start = time.perf_counter()
            self._make_room(key)
            self._ahead = key, self._load(key, models)
            costs.load_seconds += time.perf_counter() - start

    def partition(self, key: BlockKey, framework: Framework, costs: UnitCosts, models: Sequence[str] = ()) -> Any:
        """The data of a partition; transformed, if the key has an epoch."""
        cache_key, start = (framework.NAME, key), time.perf_counter()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == key:
            self._data[cache_key] = self._prepare(ahead[1], framework)
        elif cache_key not in self._data or self._is_for_one_model(key):
            self._make_room(key)
            self._data[cache_key] = self._prepare(self._load(key, models), framework)
        elif key in self._held and self.reader is not None:
            self.reader.note(key, models)
        costs.load_seconds += time.perf_counter() - start
        return self._data[cache_key]

    def _prepare(self, data: Any, framework: Framework) -> Any:
        """The data for a framework. What input_fn or transform_fn returned may be nothing that can be trained on."""
        prepared = framework.prepare(data, self.device)  # the device may have no room for it beside this model
        with making_data():
            framework.rows(prepared)
        return prepared

    def _is_for_one_model(self, key: BlockKey) -> bool:
        sharing = self.setup.sharing
        return key.epoch is not None and sharing is not None and sharing.settings.always is False

    def sample(self, index: int, framework: Framework, max_rows: int, costs: UnitCosts) -> Any:
        """The first rows of a partition, transformed, for profiling."""
        sample_key = framework.NAME, index, max_rows
        if self._sample is None or self._sample[0] != sample_key:
            start = time.perf_counter()
            base = self._read(BlockKey("train", index))
            read = time.perf_counter()
            first = self._preprocessor.transform(base, index, 0, max_rows)
            with making_data():
                end, total = time.perf_counter(), rows(base)
            self.sampled = total, (end - read) / min(total, -(-max_rows // ROWS_PER_CALL) * ROWS_PER_CALL)
            self.unsharable = _is_unsharable(base)
            self._sample = sample_key, self._prepare(first, framework)
            costs.load_seconds += end - start
            if self.reader is not None:
                self.reader.measured(self.sampled[1] * total)
        return self._sample[1]

    def forget_sample(self) -> None:
        """Measure the next sample again: the first one also paid for the imports of transform_fn."""
        self._sample = None

    def clear(self) -> None:
        """Drop all data, because a function of the user changed it; it will be read again."""
        for key in list(self._held):
            self._release(key)
        self._data.clear()
        self._sample = self._ahead = None

    def _make_room(self, key: BlockKey) -> None:
        """Drop the last block before the next one is requested, and the sample of a profiling task."""
        self._sample = None
        for cache_key in [cache_key for cache_key in self._data if cache_key[1].kind == key.kind]:
            if cache_key[1].epoch is not None or cache_key[1] in self._held:
                del self._data[cache_key]
                self._release(cache_key[1])

    def _release(self, key: BlockKey) -> None:
        if key in self._held and self.reader is not None:
            self._held.discard(key)
            self.reader.release(key)

    def _load(self, key: BlockKey, models: Sequence[str]) -> Any:
        plan = self.setup.sharing
        shares = plan is not None and (key.epoch is not None or (plan.reads and plan.settings.always is True))
        if self.reader is not None and shares:
            block = self.reader.get(key, models)
            if block is not None:
                self._held.add(key)
                return block
        if key.epoch is None:
            return self._preprocessor.read(key.kind, key.partition)
        base = self._read(key.base)
        start = time.perf_counter()
        transformed = self._preprocessor.transform(base, key.partition, key.epoch)
        if self.reader is not None:
            self.reader.measured(time.perf_counter() - start)
        return transformed

    def _read(self, key: BlockKey) -> Any:
        """A partition as it is read, kept for later transforms."""
        cache_key = "", key
        if cache_key not in self._data:
            self._data[cache_key] = self._load(key, ())
        return self._data[cache_key]


def _is_unsharable(base: Any) -> bool:
    try:
        layout_of(to_arrays(base, "input_fn"))
    except UnsharableError:
        return True
    return False
