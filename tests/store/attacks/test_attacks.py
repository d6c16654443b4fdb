"""Hostile files in a store: named in the error, and never a crash, a hang or memory without bound."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_pack import one_input, read_pack, seeds
from hostile import ATTACKS, GOOD, VALUE, Pack
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import RegattaError
from regatta.store import reader
from regatta.store.format.pack_file import read_records
from regatta.store.store import ParameterStore

SECONDS = 20.0
MEMORY = 200 * 2**20


@contextmanager
def bounded() -> Iterator[None]:
    """Limits of time and memory; NumPy reports its memory to tracemalloc."""
    tracemalloc.start()
    began = time.monotonic()
    try:
        yield
        assert time.monotonic() - began < SECONDS
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def everything(folder: Path) -> list[str]:
    """Do all that can be done with a store in which that pack lies; what was said about it."""
    said = []

    def attempt(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except RegattaError as error:
            said.append(str(error))
            return None

    said += ParameterStore.rebuild(folder).unreadable
    with ParameterStore.open(folder, threads=1) as store:
        for snapshot in store.snapshots():
            attempt(lambda s=snapshot: store.get(s))  # type: ignore[misc]
            attempt(lambda s=snapshot: store.get(s, planes=1))  # type: ignore[misc]
        for tensor in store.index.tensors()[:10]:
            attempt(lambda t=tensor: store.get(t))  # type: ignore[misc]
            attempt(lambda t=tensor: store.get(t, slices=slice(0, 2)))  # type: ignore[misc]
            attempt(lambda t=tensor: store.reencode({t: (1, None)}))  # type: ignore[misc]
        for depth in ("structure", "checksums", "deep"):
            said += store.fsck(depth).problems  # type: ignore[arg-type]
        findings = store.fsck("deep", repair=True)
        said += findings.problems + findings.lost
        attempt(lambda: store.gc(grace=0.0))
        # Whatever that was, the store can be used.
        snapshot = store.put({"mine": np.arange(9.0)}, reference="mine")
        assert np.array_equal(store.get(snapshot)["mine"], np.arange(9.0))
    return said


@pytest.fixture(autouse=True)
def a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PHYSICAL_MEMORY_BYTES", MEMORY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ParameterStore.open(tmp_path / "store") as store:
        return store.path


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_hostile_pack_in_the_folder(folder: Path, attack: Pack) -> None:
    (folder / "packs" / f"{attack.id}.pack").write_bytes(attack.data)
    with bounded():
        said = everything(folder)
    if attack.named is not None:
        assert any(re.search(attack.named, line) for line in said), said
        assert said


@pytest.mark.parametrize("attack", [a for a in ATTACKS.values() if a.named is not None], ids=lambda a: a.named)
def test_a_hostile_pack_in_the_place_of_a_good_one(folder: Path, attack: Pack) -> None:
    """The index knows of a good pack; its file is another."""
    with ParameterStore.open(folder, threads=1) as store, bounded():
        snapshot = store.put({"w": np.frombuffer(VALUE, "<f4")}, reference="w")
        (pack,) = store.index.packs()
        store.folder.path(pack).write_bytes(attack.data)
        store.folder.forget(pack)
        with pytest.raises(RegattaError, match=f"{pack}|{GOOD.hex()}|{snapshot}"):
            store.get(snapshot)
        assert any(pack in problem for problem in store.fsck("checksums").problems)
        store.fsck("checksums", repair=True)
        assert store.put({"w": np.frombuffer(VALUE, "<f4")}) == snapshot
        assert store.get(snapshot)["w"].tobytes() == VALUE


def test_the_format_is_what_the_page_says(folder: Path) -> None:
    good = ATTACKS["good"]
    (folder / "packs" / f"{good.id}.pack").write_bytes(good.data)
    rebuilt = ParameterStore.rebuild(folder)
    assert (rebuilt.packs, rebuilt.tensors, rebuilt.snapshots, rebuilt.unreadable) == (1, 1, 1, ())
    with ParameterStore.open(folder) as store:
        assert store.get(store.snapshots()[0])["w"].tobytes() == VALUE
        assert store.fsck("deep").clean


def test_special_files_in_place_of_packs_are_refused(folder: Path) -> None:
    """A pipe would block its reader, a link would lead elsewhere, a folder is not a file."""
    packs = folder / "packs"
    os.mkfifo(packs / f"{'01' * 32}.pack")
    (packs / f"{'02' * 32}.pack").symlink_to("/dev/zero")
    (packs / f"{'03' * 32}.pack").mkdir()
    (packs / f"{'04' * 32}.pack").symlink_to(packs / f"{'04' * 32}.pack")
    with bounded():
        said = everything(folder)
    assert {digits * 32 for digits in ("01", "02", "03", "04")} <= set(re.findall("[0-9a-f]{64}", " ".join(said)))


SEEDS = seeds()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_bytes_decode_or_raise_an_error(data: st.DataObject) -> None:
    """What the fuzzer does, without it: seeds with some bytes changed, cut out or put in, and any bytes at all."""
    changed = bytearray(data.draw(st.sampled_from(SEEDS) | st.binary(max_size=300)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    one_input(bytes(changed))


def test_the_fuzzer_gets_past_the_checksums() -> None:
    good = ATTACKS["good"].data
    changed = bytearray(good)
    changed[17] ^= 1  # in the tensor's bytes: the streams' checksum and the footer's are wrong now
    assert read_pack(bytes(changed)) == read_pack(good) == 1


def test_every_length_of_a_good_pack() -> None:
    data = ATTACKS["good"].data
    for size in range(len(data)):
        cut = data[:size]
        with pytest.raises(RegattaError):
            read_records(lambda at, length, cut=cut: cut[at : at + length], size, "here")  # type: ignore[misc]


def test_every_bit_of_a_good_pack(folder: Path) -> None:
    """Wherever a bit is flipped, the tensor comes back as it was or not at all."""
    with ParameterStore.open(folder, threads=1) as store:
        snapshot = store.put({"w": np.frombuffer(VALUE, "<f4")}, reference="w")
        (pack,) = store.index.packs()
        path = store.folder.path(pack)
        data = path.read_bytes()
        path.unlink()
        refused = 0
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 1 << (at % 8)
            path.unlink(missing_ok=True)
            path.write_bytes(changed)
            store.folder.forget(pack)
            try:
                assert store.get(snapshot)["w"].tobytes() == VALUE
            except RegattaError:
                refused += 1
        assert refused > 100
