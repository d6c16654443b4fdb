"""Reading in part: how much is read and decoded, and that threads and caches change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from regatta.errors import CorruptError, RegattaError, UsageError
from regatta.store import reader
from regatta.store.format.encodings import CHUNK_WORDS, ENCODINGS, encoding_named
from regatta.store.format.tensor_id import Bits
from regatta.store.reader import ChunkCache
from regatta.store.slices import narrow
from regatta.store.store import ParameterStore

DELTAS = [encoding for encoding in ENCODINGS.values() if encoding.needs_base]


def weights(seed: int, count: int = CHUNK_WORDS + 100) -> NDArray[np.float32]:
    start = np.random.default_rng(0).normal(0, 0.05, count)
    return (start + np.random.default_rng(seed).normal(0, 1e-4, count)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParameterStore]:
    with ParameterStore.open(tmp_path / "store", threads=2) as opened:
        yield opened


def add(store: ParameterStore, value: Any) -> str:
    return store.manifest(store.put({"w": value})).tensors["w"].id


def bytes_for(store: ParameterStore, **request: Any) -> int:
    """How many bytes of packs a read looks at."""
    before = sum(store.source.bytes_read.values())
    store.get(**request)
    return sum(store.source.bytes_read.values()) - before


def test_two_planes_of_four_are_two_fifths_of_the_bytes(store: ParameterStore) -> None:
    tensor = add(store, weights(1))
    entry = store.entry(tensor)
    assert bytes_for(store, what=tensor) == entry.stored_bytes
    read = [bytes_for(store, what=tensor, planes=planes) / entry.stored_bytes for planes in (1, 2, 3, 4)]
    assert read == sorted(read)
    assert read[0] < 0.12
    assert read[1] < 0.40
    assert read[3] == 1.0


def test_a_slice_reads_the_chunks_that_hold_it(store: ParameterStore) -> None:
    value = weights(1, 4 * CHUNK_WORDS).reshape(-1, 1024)
    tensor, rows = add(store, value), CHUNK_WORDS // 1024
    whole = store.entry(tensor).stored_bytes
    for index, chunks in [(3, 1), (slice(rows, 2 * rows), 1), (slice(rows - 1, rows + 1), 2), (slice(None), 4)]:
        assert np.array_equal(store.get(tensor, slices=index), value[index])
        assert bytes_for(store, what=tensor, slices=index) == pytest.approx(whole * chunks / 4, rel=0.01)
    planes = bytes_for(store, what=tensor, slices=3, planes=2)
    assert planes < 0.4 * whole / 4
    assert bytes_for(store, what=tensor, slices=slice(0, 0)) == 0
    assert np.array_equal(
        store.words(tensor, CHUNK_WORDS - 5, CHUNK_WORDS + 5),
        value.reshape(-1).view(np.uint32)[CHUNK_WORDS - 5 : CHUNK_WORDS + 5],
    )


def test_reading_one_chunk_of_words_from_two_chunks(store: ParameterStore) -> None:
    value = weights(1, 2 * CHUNK_WORDS).view(np.uint32)
    tensor = add(store, value)
    for start in (0, 100, CHUNK_WORDS):
        assert np.array_equal(store.words(tensor, start, start + CHUNK_WORDS), value[start : start + CHUNK_WORDS])


def test_bounds_get_nearer_with_each_plane(store: ParameterStore) -> None:
    value = weights(3, 5000)
    tensor = add(store, value)
    widths = []
    for planes in (1, 2, 3, 4):
        lower, upper = store.get(tensor, planes=planes).bounds
        assert (lower <= value).all()
        assert (value <= upper).all()
        widths.append(float((upper - lower).max()))
    assert widths[0] > widths[1] > widths[2] > widths[3] == 0.0
    assert widths[1] < 2**-7 * np.abs(value).max() * 2


@pytest.mark.parametrize("encoding", DELTAS, ids=lambda encoding: encoding.name)
@pytest.mark.parametrize("dtype", ["F32", "BF16", "I64"])
def test_deltas_over_several_hops(store: ParameterStore, encoding: Any, dtype: str) -> None:
    values = [weights(seed) for seed in range(4)]
    words = [v.view(np.uint32) for v in values]
    if dtype == "BF16":
        words = [(w >> 16).astype(np.uint16) for w in words]  # type: ignore[misc]
    if dtype == "I64":
        words = [w.astype(np.uint64) for w in words]  # type: ignore[misc]
    tensors = [add(store, Bits(dtype, w.shape, w)) for w in words]
    store.reencode({tensor: (encoding.id, base) for base, tensor in itertools.pairwise(tensors)})
    for tensor, expected in zip(tensors, words, strict=True):
        assert np.array_equal(store.words(tensor), expected)
        assert np.array_equal(
            store.words(tensor, CHUNK_WORDS - 3, CHUNK_WORDS + 3), expected[CHUNK_WORDS - 3 : CHUNK_WORDS + 3]
        )
    known = store.get(tensors[3], planes=1)
    assert known.planes == (1 if encoding.progressive else known.dtype.planes)
    (lower, upper), (exact, _) = known.bounds, store.get(tensors[3], planes=8).bounds
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    if encoding.progressive:
        part = bytes_for(store, what=tensors[3], planes=1)
        store.reader.cache.clear()
        assert part < 0.6 * bytes_for(store, what=tensors[3])


def test_a_delta_read_in_part_needs_part_of_its_base(store: ParameterStore) -> None:
    progressive = [encoding for encoding in DELTAS if encoding.progressive]
    base, child = add(store, weights(1)), add(store, weights(2))
    store.reencode({child: (progressive[0].id, base)})
    whole = store.entry(base).stored_bytes + store.entry(child).stored_bytes
    assert bytes_for(store, what=child, planes=1) < 0.2 * whole


def test_a_delta_that_is_not_progressive_needs_its_whole_base(store: ParameterStore) -> None:
    """A carry runs through all planes: what is not progressive is read whole, with all below it."""
    base, child = add(store, weights(1)), add(store, weights(2))
    store.reencode({child: (encoding_named("subtract").id, base)})
    partial = store.get(child, planes=1)
    assert partial.exact
    assert np.array_equal(partial.bounds[0], weights(2))


def test_the_cache_saves_reading_shared_bases(store: ParameterStore) -> None:
    base, *children = [add(store, weights(seed)) for seed in range(4)]
    store.reencode({child: (DELTAS[0].id, base) for child in children})
    first, *others = [bytes_for(store, what=child) for child in children]
    assert first == store.entry(base).stored_bytes + store.entry(children[0]).stored_bytes
    assert others == [store.entry(child).stored_bytes for child in children[1:]]
    assert all(np.array_equal(store.get(child), weights(seed)) for seed, child in enumerate(children, 1))


def test_a_cache_drops_the_least_recently_used() -> None:
    cache, words = ChunkCache(limit=100), np.zeros(10, np.uint32)
    for number in range(3):
        cache.put(("t", number, None), words)
        assert cache.get(("t", 0, None)) is not None
    assert cache.bytes == 80
    assert cache.get(("t", 1, None)) is None
    cache.put(("big", 0, None), np.zeros(1000, np.uint32))
    assert cache.get(("big", 0, None)) is None


@pytest.mark.parametrize("cache_bytes", [0, 2**20, 2**30])
def test_threads_and_caches_change_nothing(tmp_path: Path, cache_bytes: int) -> None:
    with ParameterStore.open(tmp_path, threads=4, cache_bytes=cache_bytes) as store:
        values = {f"w{seed}": weights(seed, 3 * CHUNK_WORDS // 2) for seed in range(6)}
        snapshot = store.put(values)
        tensors = [member.id for member in store.manifest(snapshot).tensors.values()]
        store.reencode(
            {tensor: (DELTAS[i % len(DELTAS)].id, base) for i, (base, tensor) in enumerate(itertools.pairwise(tensors))}
        )
        for _ in range(3):
            found = store.get(snapshot)
            assert all(np.array_equal(found[name], value) for name, value in values.items())


def test_a_tensor_larger_than_memory(store: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = add(store, weights(1))
    monkeypatch.setattr(reader, "_PHYSICAL_MEMORY_BYTES", 2**19)
    with pytest.raises(RegattaError, match=f"{tensor}.*\n.*slices"):
        store.get(tensor)
    assert np.array_equal(store.get(tensor, slices=slice(5, 1000)), weights(1)[5:1000])


def test_the_error_names_the_tensor_with_a_flipped_bit(store: ParameterStore) -> None:
    tensor = add(store, weights(1))
    part = store.index.stored(tensor).segments[0]
    path = store.folder.path(part.pack)
    data = bytearray(path.read_bytes())
    data[part.segment.offset + part.segment.size - 1] ^= 1  # in the last plane of the last chunk
    path.write_bytes(data)
    store.folder.forget(part.pack)
    with pytest.raises(CorruptError, match=f"{part.pack}.*{tensor}.*chunk 1"):
        store.get(tensor)
    assert np.array_equal(store.get(tensor, slices=slice(0, CHUNK_WORDS)), weights(1)[:CHUNK_WORDS])
    assert store.get(tensor, planes=3).planes == 3


@pytest.mark.parametrize(
    "index", [5, (0, 0, 0), (slice(None), 7), "x", 1.5, (0, "y"), (slice(None, None, 0),), ([1, 2],)]
)
def test_indices_that_do_not_fit(index: Any) -> None:
    with pytest.raises(UsageError, match="index"):
        narrow((3, 4), index)


def test_planes_begin_with_one(store: ParameterStore) -> None:
    with pytest.raises(UsageError, match="plane"):
        store.get(add(store, weights(1, 10)), planes=0)
