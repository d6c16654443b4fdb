"""FORMAT.md is complete: a reader written from it alone reads everything that the store writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from independent_reader import TYPES, Packs

from regatta.store.format.encodings import CHUNK_WORDS, ENCODINGS
from regatta.store.format.tensor_id import Bits, as_tensor
from regatta.store.store import ParameterStore

LOSSLESS = [encoding for encoding in ENCODINGS.values() if not encoding.lossy]
SCHEMES = ["float16", "bfloat16", "fixed-3", "fixed-11", "uniform-2", "uniform-8", "random-1", "random-5"]


def weights(dtype: str, count: int, seed: int = 0) -> Bits:
    """Words like those of trained weights; some end in zero bits, and a few are random."""
    width, kind, _, lanes = TYPES[dtype]
    rng = np.random.default_rng(seed)
    sizes = np.exp2(np.arange(count * lanes) // 500 % 7)
    start = np.random.default_rng(9).normal(size=count * lanes) * sizes
    moved = start + 1e-3 * rng.normal(size=count * lanes)
    if kind == "f":
        wide = moved.astype("<f8" if width == 8 else "<f4").view(f"<u{max(4, width)}")
        words = (wide >> np.array(32 - 8 * width, wide.dtype) if width < 4 else wide).astype(f"<u{width}")
        words[-count // 3 :] &= np.array((1 << 8 * width) - (1 << 4 * width - 2), words.dtype)
    else:
        words = np.rint(50 * moved).astype(np.int64).astype(f"<i{width}").view(f"<u{width}")
    if dtype == "BOOL":
        words &= np.uint8(1)
    elif kind == "f":
        words[::97] = rng.integers(0, 1 << 8 * width, len(words[::97]), dtype=f"<u{width}")
    return Bits(dtype, (count,), words)


def read_independently(store: ParameterStore, snapshot: str) -> dict[str, bytes]:
    packs = Packs(store.folder.packs)
    members = packs.manifests[snapshot]["tensors"]
    return {name: packs.words(member["id"]).tobytes() for name, member in members.items()}


def stored_as(store: ParameterStore, encoding: Any, values: dict[str, Any], bases: dict[str, Any]) -> str:
    """Store bases and values, the values in this encoding, and nothing else in the packs."""
    before, snapshot = store.put(bases, reference="bases"), store.put(values, reference="values")
    known, base_of = store.manifest(snapshot).tensors, store.manifest(before).tensors
    plan = {known[name].id: (encoding.id, base_of[name].id if encoding.needs_base else None) for name in values}
    store.reencode(plan)
    store.gc(grace=0.0)
    assert {store.entry(tensor).encoding for tensor in plan} == {encoding.id}
    return snapshot


@pytest.mark.parametrize("encoding", LOSSLESS, ids=lambda encoding: encoding.name)
def test_every_type_in_every_encoding(tmp_path: Path, encoding: Any) -> None:
    values = {dtype: weights(dtype, 7000, seed=1) for dtype in TYPES}
    bases = {dtype: weights(dtype, 7000, seed=2) for dtype in TYPES}
    values |= {"few": weights("F32", 5, 1), "many": weights("F32", CHUNK_WORDS + 70, 1), "same": np.zeros(300, "<f4")}
    bases |= {"few": weights("F32", 5, 2), "many": weights("F32", CHUNK_WORDS + 70, 2), "same": np.ones(300, "<f4")}
    with ParameterStore.open(tmp_path / "store", threads=1) as store:
        found = read_independently(store, stored_as(store, encoding, values, bases))
    for name, value in values.items():
        assert found[name] == as_tensor(name, value).words.tobytes(), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lossy_schemes(tmp_path: Path, scheme: str) -> None:
    value = np.random.default_rng(3).normal(size=5000).astype("<f4")
    with ParameterStore.open(tmp_path / "store", threads=1) as store:
        snapshot = store.put({"w": value}, scheme=scheme)
        assert read_independently(store, snapshot)["w"] == store.get(snapshot)["w"].tobytes()


def test_shapes(tmp_path: Path) -> None:
    values = {"scalar": np.float32(3), "empty": np.empty((3, 0), "<i8"), "cube": np.arange(24.0).reshape(2, 3, 4)}
    with ParameterStore.open(tmp_path / "store", threads=1) as store:
        found = read_independently(store, store.put(values, metadata={"über": "uns"}))
    assert found == {name: np.asarray(value).tobytes() for name, value in values.items()}


def test_planes_that_lie_elsewhere(tmp_path: Path) -> None:
    """Offloaded planes are in other packs, at the remote: both folders together are the store."""
    value = np.random.default_rng(3).normal(size=(300, 300)).astype("<f4")
    with ParameterStore.open(tmp_path / "store", remote=str(tmp_path / "there"), threads=1) as store:
        snapshot = store.put({"w": value}, reference="w")
        store.offload([snapshot], 2)
        store.gc(grace=0.0)
        for pack in (tmp_path / "there" / "packs").iterdir():
            (store.folder.packs / pack.name).write_bytes(pack.read_bytes())
        assert read_independently(store, snapshot)["w"] == value.tobytes()
