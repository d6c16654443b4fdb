"""The contract of a store of tensors, however it keeps them.

    class TestMine(StoreContract):
        @pytest.fixture
        def store(self, tmp_path) -> Iterator[Store]:
            ...

`PlainStore` is the reference: it keeps the bytes in a dict. The suite gives both stores the same tensors, of every
type and with special numbers, and expects the same bits back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from regatta.errors import NotFoundError, UsageError
from regatta.store.format.dtypes import DTYPES, DType
from regatta.store.format.manifest import Manifest, ManifestEntry, make_manifest
from regatta.store.format.tensor_id import Bits, RawTensor, as_tensor
from regatta.store.slices import PartialTensor

drawn_examples = settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


class Store(Protocol):
    """The part of a store that the suite uses."""

    def put(self, tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None) -> str: ...

    def manifest(self, snapshot: str) -> Manifest: ...

    def get(
        self, what: str, names: Iterable[str] | None = None, planes: int | None = None, slices: Any = None
    ) -> Any: ...


class PlainStore:
    """Keeps every snapshot unchanged, in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, RawTensor]] = {}
        self.manifests: dict[str, Manifest] = {}

    def put(self, tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None) -> str:
        made = {name: as_tensor(name, value) for name, value in tensors.items()}
        made = {name: RawTensor(t.dtype, t.shape, np.array(t.words)) for name, t in made.items()}
        members = {name: ManifestEntry(t.id, t.dtype.name, t.shape) for name, t in made.items()}
        manifest = make_manifest(members, metadata)
        self.kept[manifest.id], self.manifests[manifest.id] = made, manifest
        return manifest.id

    def manifest(self, snapshot: str) -> Manifest:
        return self.manifests[snapshot]

    def get(self, what: str, names: Iterable[str] | None = None, planes: int | None = None, slices: Any = None) -> Any:
        if what not in self.kept:
            (found,) = {t.id: t for kept in self.kept.values() for t in kept.values() if t.id == what}.values()
            return self._value(found, planes, slices)
        kept, picks = self.kept[what], slices or {}
        for name in names or ():
            if name not in kept:
                raise NotFoundError(f"There is no {name}.")
        wanted = kept if names is None else names
        return {name: self._value(kept[name], planes, picks.get(name)) for name in wanted}

    def _value(self, tensor: RawTensor, planes: int | None, index: Any) -> Any:
        lanes = () if tensor.dtype.lanes == 1 else (tensor.dtype.lanes,)
        words = np.array(tensor.words.reshape((*tensor.shape, *lanes))[index if index is not None else ()])
        shape = words.shape[: words.ndim - len(lanes)]
        if planes is not None:
            return PartialTensor(tensor.dtype, shape, tensor.dtype.planes, words)
        return RawTensor(tensor.dtype, shape, np.ascontiguousarray(words).reshape(-1)).value()


def bits_of(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of a tensor, for comparisons."""
    tensor = as_tensor("value", value)
    return tensor.dtype.name, tuple(tensor.shape), tensor.words.tobytes()


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of scalars, empty tensors, and tensors of up to a few hundred elements."""
    return st.lists(st.integers(0, 9), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Bits:
    """Tensors of any type and any bits: NaNs with payloads, infinities, minus zeros, subnormals."""
    dtype, shape = DTYPES[draw(st.sampled_from(sorted(DTYPES)))], draw(shapes())
    size = math.prod(shape) * dtype.element_bytes
    seed = draw(st.integers(0, 2**32 - 1))
    data = np.random.default_rng(seed).integers(0, 2, size, np.uint8) if dtype.name == "BOOL" else _noise(seed, size)
    return Bits(dtype.name, shape, data.tobytes())


def _noise(seed: int, size: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    few = rng.integers(0, 256, 4, np.uint8)  # some streams compress, some do not
    return rng.integers(0, 256, size, np.uint8) if seed % 2 else rng.choice(few, size)


names = st.sampled_from(["weight", "layer.0/weight", "größe", "a b", "…", "x" * 1024])
snapshots = st.dictionaries(names, tensors(), max_size=4)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A basic index into this shape."""
    picks: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        picks.append(draw(st.integers(-size, size - 1) | st.slices(size) if size else st.slices(size)))
    return (*picks, Ellipsis) if draw(st.booleans()) else tuple(picks)


SPECIAL: dict[str, list[int]] = {
    "F64": [0, 1 << 63, 0x7FF0 << 48, 0xFFF0 << 48, (0x7FF8 << 48) | 0xBEEF, (0x7FF0 << 48) | 1, 1, 0x7FEF << 48],
    "F32": [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC0BEEF, 0xFF800001, 1, 0x7F7FFFFF],
    "F16": [0, 1 << 15, 0x7C00, 0xFC00, 0x7E11, 0xFC01, 1, 0x7BFF],
    "BF16": [0, 1 << 15, 0x7F80, 0xFF80, 0x7FC1, 0xFF81, 1, 0x7F7F],
    "F8_E4M3": [0, 0x80, 0x7F, 0xFF, 1, 0x7E],
    "F8_E5M2": [0, 0x80, 0x7C, 0xFC, 0x7D, 0xFF, 1],
}


class StoreContract:
    """Inherit from this class and define the fixture `store`."""

    @drawn_examples
    @given(snapshot=snapshots)
    def test_the_same_bits_leave_under_the_same_id(self, store: Store, snapshot: dict[str, Bits]) -> None:
        plain = PlainStore()
        stored = store.put(snapshot)
        assert stored == plain.put(snapshot)
        assert store.manifest(stored) == plain.manifest(stored)
        found = store.get(stored)
        assert {name: bits_of(value) for name, value in found.items()} == {n: bits_of(v) for n, v in snapshot.items()}

    @pytest.mark.parametrize("name", SPECIAL)
    def test_special_numbers_survive(self, store: Store, name: str) -> None:
        words = np.tile(np.array(SPECIAL[name], DTYPES[name].word), 500)
        given_bits = Bits(name, (len(words),), words)
        assert bits_of(store.get(store.put({"w": given_bits}))["w"]) == bits_of(given_bits)

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_several_chunks(self, store: Store, dtype: DType) -> None:
        count = 2**19 // dtype.lanes + 77
        data = _noise(1, count * dtype.element_bytes) & (1 if dtype.name == "BOOL" else 255)
        snapshot = store.put({"w": Bits(dtype.name, (count,), data)})
        assert bits_of(store.get(snapshot)["w"])[2] == data.tobytes()

    @drawn_examples
    @given(data=st.data(), snapshot=snapshots.filter(bool))
    def test_a_slice_is_a_slice_of_the_whole(
        self, store: Store, data: st.DataObject, snapshot: dict[str, Bits]
    ) -> None:
        stored, name = store.put(snapshot), data.draw(st.sampled_from(sorted(snapshot)))
        index = data.draw(indices(snapshot[name].shape))
        plain = PlainStore()
        plain.put(snapshot)
        expected = plain.get(stored, [name], slices={name: index})[name]
        assert bits_of(store.get(stored, [name], slices={name: index})[name]) == bits_of(expected)

    @drawn_examples
    @given(data=st.data(), snapshot=snapshots.filter(bool))
    def test_planes_bound_every_element(self, store: Store, data: st.DataObject, snapshot: dict[str, Bits]) -> None:
        stored, name = store.put(snapshot), data.draw(st.sampled_from(sorted(snapshot)))
        index = data.draw(indices(snapshot[name].shape))
        some = store.get(stored, [name], planes=data.draw(st.integers(1, 8)), slices={name: index})[name]
        plain = PlainStore()
        whole = plain.get(plain.put(snapshot), [name], planes=8, slices={name: index})[name]
        (lower, upper), (least, greatest) = some.bounds, whole.bounds
        assert lower.shape == upper.shape == least.shape
        numbers = ~np.isnan(least)
        assert (lower <= least)[numbers].all()
        assert (upper >= greatest)[numbers].all()
        if some.exact:
            assert np.array_equal(lower, least, equal_nan=True)
            assert np.array_equal(upper, greatest, equal_nan=True)

    def test_one_tensor_by_its_id(self, store: Store) -> None:
        value = np.arange(12.0).reshape(3, 4)
        member = store.manifest(store.put({"w": value})).tensors["w"]
        assert bits_of(store.get(member.id)) == bits_of(value)
        assert bits_of(store.get(member.id, slices=(1, slice(None, None, -1)))) == bits_of(value[1, ::-1])

    def test_equal_tensors_have_one_id(self, store: Store) -> None:
        value = np.arange(5000, dtype=np.float32)
        tensors = store.manifest(store.put({"a": value, "b": value.copy(), "c": value.reshape(50, 100)})).tensors
        assert tensors["a"] == tensors["b"]
        assert tensors["a"].id != tensors["c"].id
        assert store.put({"a": value}) != store.put({"a": value}, metadata={"epoch": "1"})

    def test_results_are_copies(self, store: Store) -> None:
        snapshot = store.put({"w": np.arange(400_000, dtype=np.float32)})
        store.get(snapshot)["w"][:] = -1
        assert store.get(snapshot)["w"][3] == 3

    def test_an_unknown_name_is_an_error(self, store: Store) -> None:
        snapshot = store.put({"weight": np.zeros(3)})
        with pytest.raises(NotFoundError):
            store.get(snapshot, ["wieght"])

    @pytest.mark.parametrize(
        "name", ["", "..", "../w", "a/../../b", "/w", "a//b", "a\\..\\b", "w\0", "n\n", "x" * 1025]
    )
    def test_names_that_lead_elsewhere_are_refused(self, store: Store, name: str) -> None:
        with pytest.raises(UsageError):
            store.put({name: np.zeros(3)})

    @pytest.mark.parametrize(
        "value", [np.array(["text"]), np.array([object()]), ("F32", (3,), b"12"), ("F33", (1,), b"1234")]
    )
    def test_values_that_are_not_tensors_are_refused(self, store: Store, value: Any) -> None:
        with pytest.raises(UsageError):
            store.put({"w": value})
