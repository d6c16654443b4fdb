"""The store against its contract, in every encoding, and against a random state machine."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from kill_drill import random_plan

from regatta.errors import ConflictError, CorruptError, NotFoundError, UsageError
from regatta.store.database import Database
from regatta.store.export import write_safetensors
from regatta.store.format.encodings import ENCODINGS, encoding_named
from regatta.store.format.tensor_id import Bits
from regatta.store.index import MAX_CHAIN_LENGTH
from regatta.store.store import ParameterStore
from regatta.store.torch_tensors import torch_tensors
from regatta.testing.store import PlainStore, Store, StoreContract, bits_of, snapshots

DIRECT = [encoding.id for encoding in ENCODINGS.values() if not encoding.needs_base and not encoding.lossy]
DELTAS = [encoding.id for encoding in ENCODINGS.values() if encoding.needs_base and not encoding.lossy]
LOSSY = ["float16", "bfloat16", "fixed-4", "fixed-12", "uniform-3", "uniform-8", "random-3", "random-8"]


class ArchivedStore(ParameterStore):
    """A store that is re-encoded after each snapshot."""

    rng = random.Random(0)

    def put(self, tensors: Any, **options: Any) -> str:
        snapshot = super().put(tensors, **options)
        if len(self.index.tensors()) < 40:  # hypothesis puts many into one store
            self.reencode(random_plan(self, self.rng))
        return snapshot


class OffloadedStore(ParameterStore):
    """A store whose planes, except the first, are at the remote."""

    def put(self, tensors: Any, **options: Any) -> str:
        snapshot = super().put(tensors, **options)
        self.offload([snapshot], keep_planes=1)
        return snapshot


class TestPlain(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return PlainStore()


class TestDirect(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with ParameterStore.open(tmp_path) as store:
            yield store


class TestArchived(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with ArchivedStore.open(tmp_path, threads=2) as store:
            yield store


class TestOffloaded(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with OffloadedStore.open(tmp_path / "here", remote=str(tmp_path / "there")) as store:
            yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParameterStore]:
    with ParameterStore.open(tmp_path / "store") as opened:
        yield opened


def weights(seed: int = 0, count: int = 3000) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def other_than(store: ParameterStore) -> int:
    """All bytes of its files but the index."""
    return sum(path.stat().st_size for path in store.folder.packs.iterdir())


def test_existing_tensors_cost_nothing(store: ParameterStore) -> None:
    store.put({"w": weights(), "b": weights(1, 10)})
    before = other_than(store)
    store.put({"w": weights(), "another name": weights()}, metadata={"epoch": "2"})
    assert other_than(store) - before < 1000  # a manifest


def test_storing_an_existing_snapshot_writes_nothing(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()})
    before = other_than(store)
    assert store.put({"w": weights()}) == snapshot
    assert other_than(store) == before


def test_tensors_are_kept_small(store: ParameterStore) -> None:
    store.put({"w": weights(count=300_000)})
    assert other_than(store) < 0.87 * 4 * 300_000


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"]
)
def test_from_torch_and_back(store: ParameterStore, dtype: str) -> None:
    import torch

    value = (torch.randn(70, 30) * 10).to(getattr(torch, dtype))
    given = {"w": value, "t": value.t(), "s": value[3, 4], "e": value[:0], "p": torch.nn.Parameter(torch.ones(3))}
    found = torch_tensors(store.get(store.put(given)))
    assert all(torch.equal(found[name].view(torch.uint8), given[name].detach().clone().contiguous().view(torch.uint8))
               for name in ("w", "t", "e", "p"))  # fmt: skip
    assert found["s"].shape == ()
    assert found["w"].dtype == value.dtype


def test_to_safetensors(store: ParameterStore, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    given = {"w": torch.randn(300, 7), "half": torch.randn(5).bfloat16(), "n": torch.arange(3), "e": torch.zeros(0, 4)}
    snapshot = store.put(given, metadata={"epoch": "3"})
    write_safetensors(tmp_path / "w.safetensors", store.manifest(snapshot), store.get(snapshot).items())
    found = load_file(tmp_path / "w.safetensors")
    assert set(found) == set(given)
    assert all(torch.equal(found[name], given[name]) for name in given)
    snapshot = store.put({"c": np.zeros(3, complex)})
    with pytest.raises(UsageError, match="C128"):
        write_safetensors(tmp_path / "c.safetensors", store.manifest(snapshot), store.get(snapshot).items())
    assert [path.name for path in tmp_path.glob("*safetensors*")] == ["w.safetensors"]


def test_ids_may_be_shortened(store: ParameterStore) -> None:
    snapshot = store.put({"w": weights()})
    assert store.manifest(snapshot[:9]).id == snapshot
    with pytest.raises(NotFoundError):
        store.get("0123456789" if not snapshot.startswith("0123456789") else "9876543210")
    for wrong in ("", "abc", "../../etc", snapshot + "0"):
        with pytest.raises(UsageError):
            store.get(wrong)


def test_names_are_compared_and_swapped(store: ParameterStore) -> None:
    one, two = store.put({"w": weights(1)}), store.put({"w": weights(2)})
    store.reference("best", one)
    with pytest.raises(ConflictError):
        store.reference("best", two, expected=two)
    store.reference("best", two, expected=one)
    assert store.references() == {"best": two}
    with pytest.raises(NotFoundError, match="best"):
        store.release("bset")
    with pytest.raises(UsageError):
        store.reference("../best", one)
    with pytest.raises(NotFoundError):
        store.reference("best", "0" * 64)


def series(store: ParameterStore, count: int) -> list[str]:
    """Tensors of one shape, none a delta."""
    found = [store.manifest(store.put({"w": weights(i)})).tensors["w"].id for i in range(count)]
    assert len(set(found)) == count
    return found


delta = pytest.mark.skipif(not DELTAS, reason="there are no deltas")


@delta
def test_reencoding_changes_bytes_not_ids(store: ParameterStore) -> None:
    tensors = series(store, 4)
    plan = {tensor: (DELTAS[0], base) for base, tensor in itertools.pairwise(tensors)}
    store.reencode(plan)
    assert {t: (store.entry(t).encoding, store.entry(t).base) for t in plan} == plan
    assert all(np.array_equal(store.get(tensor), weights(i)) for i, tensor in enumerate(tensors))
    written = set(store.folder.packs.iterdir())
    store.reencode(plan)  # is so already
    assert set(store.folder.packs.iterdir()) == written
    # Turned round: the last becomes the base of all.
    turned = {
        tensors[0]: (DELTAS[-1], tensors[1]),
        tensors[1]: (DELTAS[-1], tensors[2]),
        tensors[2]: (DELTAS[-1], tensors[3]),
    }
    store.reencode({**turned, tensors[3]: (DIRECT[0], None)})
    assert all(np.array_equal(store.get(tensor), weights(i)) for i, tensor in enumerate(tensors))
    assert store.fsck("deep").clean


@delta
def test_impossible_plans_are_refused(store: ParameterStore) -> None:
    a, b, c = series(store, 3)
    short = store.manifest(store.put({"w": weights(0, 10)})).tensors["w"].id
    doubles = store.manifest(store.put({"w": np.zeros(3000)})).tensors["w"].id
    store.reencode({b: (DELTAS[0], a)})
    before = {entry.tensor: entry for entry in store.entries()}
    wrong: list[tuple[dict[str, tuple[int, str | None]], type[Exception], str]] = [
        ({a: (DELTAS[0], b)}, UsageError, "cycle"),
        ({c: (DELTAS[0], c)}, UsageError, "cycle"),
        ({c: (DELTAS[0], "0" * 64)}, NotFoundError, "0000"),
        ({"f" * 64: (DIRECT[0], None)}, NotFoundError, "ffff"),
        ({c: (DELTAS[0], None)}, UsageError, "no base"),
        ({c: (DIRECT[0], a)}, UsageError, "a base"),
        ({c: (60_000, None)}, UsageError, "60000"),
        ({c: (DELTAS[0], short)}, UsageError, "10 words"),
        ({c: (DELTAS[0], doubles)}, UsageError, "F64"),
    ]
    for plan, kind, message in wrong:
        with pytest.raises(kind, match=message):
            store.reencode({**plan, doubles: (DIRECT[0], None)})
    assert {entry.tensor: entry for entry in store.entries()} == before


@delta
def test_chains_are_bounded(store: ParameterStore) -> None:
    tensors = [
        store.manifest(store.put({"w": np.full(3, i, np.float32)})).tensors["w"].id for i in range(MAX_CHAIN_LENGTH + 1)
    ]
    plan = {tensor: (DELTAS[0], base) for base, tensor in itertools.pairwise(tensors)}
    with pytest.raises(UsageError, match=str(MAX_CHAIN_LENGTH)):
        store.reencode(plan)
    del plan[tensors[64]]
    store.reencode(plan)
    assert [float(store.get(tensor)[0]) for tensor in tensors] == list(range(MAX_CHAIN_LENGTH + 1))


def test_a_damaged_tensor_is_not_reencoded(store: ParameterStore) -> None:
    tensor = series(store, 1)[0]
    flip(store, tensor)
    with pytest.raises(CorruptError, match=tensor):
        store.reencode({tensor: (DIRECT[0], None)})


@pytest.mark.parametrize("scheme", LOSSY)
def test_lossy_schemes_say_so(store: ParameterStore, scheme: str) -> None:
    given = {"w": weights() * 0.05, "n": np.arange(5)}
    snapshot = store.put(given, scheme=scheme)
    member, found = store.manifest(snapshot).tensors["w"], store.get(snapshot)
    assert member.scheme == scheme
    assert member.original == store.manifest(store.put(given)).tensors["w"].id != member.id
    assert store.manifest(snapshot).tensors["n"].scheme is None
    assert np.array_equal(found["n"], given["n"])
    assert 0 < np.abs(found["w"] - given["w"]).max() < 0.2
    assert store.fsck("deep").clean
    with pytest.raises(UsageError, match="lossy"):
        store.put(given, encoding=scheme)
    with pytest.raises(UsageError, match="lossy"):
        store.reencode({member.original: (encoding_named(scheme).id, None)})


def test_schemes_and_encodings_are_not_interchangeable(store: ParameterStore) -> None:
    with pytest.raises(UsageError, match="not lossy"):
        store.put({"w": weights()}, scheme="raw")
    with pytest.raises(UsageError):
        store.put({"w": weights()}, encoding="zstd-plains")


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        ParameterStore.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_an_index_of_another_format(tmp_path: Path) -> None:
    with ParameterStore.open(tmp_path) as store, store.index.transaction():
        store.index.set("format", "2")
    with pytest.raises(CorruptError, match="format 2"):
        ParameterStore.open(tmp_path)


def flip(store: ParameterStore, tensor: str) -> Path:
    """Change one bit in the first stream of a tensor."""
    part = store.index.stored(tensor).segments[0]
    path = store.folder.path(part.pack)
    data = bytearray(path.read_bytes())
    data[part.segment.offset] ^= 4
    path.write_bytes(data)
    store.folder.forget(part.pack)
    return path


class Play(RuleBasedStateMachine):
    """Snapshots are stored, released, re-encoded and collected; named ones are always there, bit for bit."""

    held = Bundle("held")

    @initialize(folder=st.just(None))
    def open(self, folder: None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1e9
        self.store = ParameterStore.open(Path(self.folder.name), threads=1, clock=lambda: self.now)
        self.expected: dict[str, dict[str, Any]] = {}
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    @rule(target=held, snapshot=snapshots)
    def put(self, snapshot: dict[str, Bits]) -> str:
        self.count += 1
        name = f"run/{self.count}"
        self.store.put(snapshot, reference=name)
        self.expected[name] = {key: bits_of(value) for key, value in snapshot.items()}
        return name

    @rule(target=held, name=held, change=st.integers(1, 255))
    def put_neighbour(self, name: str, change: int) -> str:
        """The same shapes, other numbers: something to make deltas of."""
        if name not in self.expected:
            return name
        changed = {
            key: Bits(dtype, shape, bytes(b ^ (change & 1 if dtype == "BOOL" else change) for b in data))
            for key, (dtype, shape, data) in self.expected[name].items()
        }
        return self.put(changed)

    @rule(name=consumes(held))
    def release(self, name: str) -> None:
        if self.expected.pop(name, None) is not None:
            self.store.release(name)

    @rule(seed=st.integers(0, 2**32))
    def reencode(self, seed: int) -> None:
        self.store.reencode(random_plan(self.store, random.Random(seed)))

    @rule(seconds=st.sampled_from([0.0, 5.0, 100.0]))
    def collect(self, seconds: float) -> None:
        self.now += seconds
        self.store.gc(grace=10.0)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = ParameterStore.open(Path(self.folder.name), threads=1, clock=lambda: self.now)

    @rule()
    def check(self) -> None:
        assert self.store.fsck("deep").problems == ()

    @invariant()
    def everything_named_is_there(self) -> None:
        if hasattr(self, "store"):
            for name, snapshot in self.store.references().items():
                found = self.store.get(snapshot)
                assert {key: bits_of(value) for key, value in found.items()} == self.expected[name]


TestPlay = Play.TestCase
TestPlay.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


def test_thousands_of_tensors_take_few_statements(store: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query or a change for each tensor would make small tensors slow."""
    statements: list[str] = []
    for name in ("_all", "_run"):
        plain = getattr(Database, name)

        def counted(self: Database, query: str, *values: Any, plain: Any = plain) -> Any:
            statements.append(query)
            return plain(self, query, *values)

        monkeypatch.setattr(Database, name, counted)
    tensors = {f"t{number}": np.full(3, number, np.float32) for number in range(3000)}
    snapshot = store.put(tensors, reference="many")
    found = store.get(snapshot)
    assert len(statements) < 100
    assert all(np.array_equal(found[name], value) for name, value in tensors.items())
