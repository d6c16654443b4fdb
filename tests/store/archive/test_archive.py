"""The archive pass on real stores: smaller, bit for bit the same, within budget, and the same again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from training_series import Weights, series, start, step

from regatta.errors import NotFoundError, UsageError
from regatta.paths import bytes_on_disk
from regatta.store.archive.archive import DEFAULT_BUDGET, archive
from regatta.store.archive.candidates import EdgeEstimates, lineage
from regatta.store.archive.speeds import Speeds
from regatta.store.format.encodings import ENCODINGS, encoding_named
from regatta.store.store import ParameterStore

SPEEDS = Speeds({(one.id, width): 4e10 if one.name == "raw" else 1e9 for one in ENCODINGS.values() for width in (4, 8)})


@pytest.fixture(autouse=True)
def same_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine measures would decide how long the chains are."""
    monkeypatch.setattr("regatta.store.archive.archive.measured_speeds", lambda: SPEEDS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParameterStore]:
    with ParameterStore.open(tmp_path / "store", threads=1) as opened:
        yield opened


class Repository:
    """A model of four snapshots, one of two that was tuned from it, and one that has nothing to do with them."""

    def __init__(self, store: ParameterStore) -> None:
        base = series(1, 4)
        self.weights: dict[str, list[Weights]] = {"base": base, "tuned": series(2, 2, base[-1]), "other": [start(3)]}
        self.snapshots = {name: [store.put(weights) for weights in kept] for name, kept in self.weights.items()}
        self.bases = lineage(self.snapshots, {"tuned": ["base"]})
        self.all = [snapshot for kept in self.snapshots.values() for snapshot in kept]

    def check(self, store: ParameterStore) -> None:
        """Every bit is as it was put."""
        for name, kept in self.weights.items():
            for weights, snapshot in zip(kept, self.snapshots[name], strict=True):
                found = store.get(snapshot)
                assert found.keys() == weights.keys()
                for key, value in weights.items():
                    assert found[key].dtype == value.dtype
                    assert found[key].tobytes() == value.tobytes()
        findings = store.fsck("deep")
        assert findings.problems == ()


def test_smaller_and_bit_for_bit_the_same(store: ParameterStore) -> None:
    repository = Repository(store)
    report = archive(store, repository.bases, budget=math.inf)
    assert report.bytes_after is not None
    assert report.bytes_after == sum(entry.stored_bytes for entry in store.entries())
    assert report.bytes_after < 0.8 * report.bytes_before
    assert report.bytes_planned == pytest.approx(report.bytes_after, rel=0.02)
    assert report.saved == pytest.approx(1 - report.bytes_after / report.bytes_before)
    assert report.moved == sum(entry.encoding != 1 for entry in store.entries())
    assert sum(report.encodings.values()) == report.tensors == 7 * 4
    repository.check(store)


def test_only_related_tensors_become_deltas(store: ParameterStore) -> None:
    repository = Repository(store)
    archive(store, repository.bases, budget=math.inf)
    hidden = {
        name: [store.entry(store.manifest(snapshot).tensors["hidden.weight"].id) for snapshot in kept]
        for name, kept in repository.snapshots.items()
    }
    assert hidden["other"][0].base is None
    related = hidden["base"] + hidden["tuned"]
    assert sum(entry.base is None for entry in related) == 1  # one of the family is whole, the others lean on it
    assert {entry.base for entry in related} - {None} <= {entry.tensor for entry in related}


def test_without_lineage_sketches_find_related_tensors(store: ParameterStore) -> None:
    """Two models whose snapshots were stored alternately: the previous one is always unrelated."""
    one, two = series(1, 4), series(2, 4)
    for pair in zip(one, two, strict=True):
        for weights in pair:
            store.put(weights)
    report = archive(store, budget=math.inf)
    hidden = [entry for entry in store.entries() if entry.shape == (300, 400)]
    assert sum(entry.base is None for entry in hidden) == 2
    assert report.saved > 0.15


def packs_on_disk(store: ParameterStore) -> int:
    return sum(bytes_on_disk(path) for path in store.folder.packs.iterdir())


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6])
def test_the_disk_is_never_fuller_after_archive_and_gc(store: ParameterStore, share: float) -> None:
    """Some tensors of a pack file become deltas, and the others stay as they are."""
    rng = np.random.default_rng(1)
    few, weights = round(20 * share), {}
    for number in range(20):
        size = 8192 + (0 if number < 2 * few else 16 * number)  # no other tensor of its size to be a delta to
        weights[f"w{number:02}"] = rng.normal(size=size).astype(np.float32)
    for number in range(few):
        weights[f"near{number:02}"] = weights[f"w{number:02}"] * np.float32(1.0001)
    snapshot = store.put(weights, reference="kept")
    before = packs_on_disk(store)
    report = archive(store)
    assert report.moved >= few
    store.gc(grace=0.0)
    assert packs_on_disk(store) < before
    for name, value in store.get(snapshot).items():
        assert value.tobytes() == weights[name].tobytes()
    assert store.fsck("deep").problems == ()


def test_what_would_not_shrink_stays_as_it_is(store: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates that promise too much change nothing: the encoded bytes decide."""
    rng = np.random.default_rng(1)
    store.put({f"w{number}": rng.normal(size=30_000).astype(np.float32) for number in range(4)}, reference="kept")
    before, entries, packs = packs_on_disk(store), list(store.entries()), set(store.folder.packs.iterdir())
    honest = EdgeEstimates.streams
    monkeypatch.setattr(
        EdgeEstimates,
        "streams",
        lambda self, encoding, target, base: [
            size * (0.5 if encoding.name == "raw" else 1.5) for size in honest(self, encoding, target, base)
        ],
    )
    report = archive(store)
    assert report.moved == 0
    assert (list(store.entries()), set(store.folder.packs.iterdir())) == (entries, packs)
    assert packs_on_disk(store) == before


def test_a_delta_becomes_a_whole_tensor_only_where_the_disk_gets_no_fuller(store: ParameterStore) -> None:
    base = np.random.default_rng(1).normal(size=30_000).astype(np.float32)
    snapshots = [store.put({"w": base * np.float32(factor)}, reference=f"{factor}") for factor in (1, 1.0001)]
    first, second = (store.manifest(snapshot).tensors["w"].id for snapshot in snapshots)
    plain = store.index.stored(second).encoding
    store.reencode({second: (encoding_named("subtract").id, first)})
    before, entries = packs_on_disk(store), list(store.entries())
    assert store.reencode({second: (plain, None)}, only_smaller=True) == 0
    assert (packs_on_disk(store), list(store.entries())) == (before, entries)
    assert store.reencode({second: (plain, None)}) == 1


def test_the_default_budget_lets_no_snapshot_take_longer_than_now_or_the_factor(store: ParameterStore) -> None:
    kept = series(1, 12)
    snapshots = [store.put(weights) for weights in kept]
    bases = lineage({"v": snapshots})
    first = archive(store, bases)
    assert first.deepest < len(kept)
    for cost in first.snapshots.values():
        assert cost.planned <= cost.budget == pytest.approx(max(DEFAULT_BUDGET * cost.cheapest, cost.before))
    archive(store, bases, budget=math.inf)
    size = sum(entry.stored_bytes for entry in store.entries())
    again = archive(store, bases)  # does not grow to become quicker
    assert again.bytes_after is not None and again.bytes_after <= size
    quick = archive(store, bases, budget=1.5)  # this was asked for
    assert all(cost.planned <= 1.51 * cost.cheapest for cost in quick.snapshots.values())


def test_a_dry_run_changes_nothing(store: ParameterStore) -> None:
    repository = Repository(store)
    before = list(store.entries())
    report = archive(store, repository.bases, dry_run=True, budget=math.inf)
    assert list(store.entries()) == before
    assert report.bytes_after is None
    assert report.moved > 0
    assert 0.2 < report.saved == pytest.approx(1 - report.bytes_planned / report.bytes_before)
    real = archive(store, repository.bases, budget=math.inf)
    assert real.bytes_after == pytest.approx(report.bytes_planned, rel=0.02)


def test_a_second_pass_finds_little_to_do(store: ParameterStore) -> None:
    repository = Repository(store)
    first = archive(store, repository.bases, budget=math.inf)
    second = archive(store, repository.bases, budget=math.inf)
    assert second.moved <= 0.1 * first.moved
    assert first.bytes_after is not None
    assert second.bytes_after == pytest.approx(first.bytes_after, rel=0.005)
    repository.check(store)


@pytest.mark.parametrize("scheme", ["independent", "parallel"])
@pytest.mark.parametrize("algorithm", ["last", "pas-mt", "pas-pt"])
def test_budgets_are_kept_by_every_algorithm(store: ParameterStore, scheme: str, algorithm: str) -> None:
    repository = Repository(store)
    report = archive(store, repository.bases, budget=2.0, scheme=scheme, algorithm=algorithm, dry_run=True)
    for cost in report.snapshots.values():
        assert cost.cheapest <= cost.planned <= cost.budget == pytest.approx(2 * cost.cheapest)


def test_a_larger_budget_needs_less_space(store: ParameterStore) -> None:
    repository = Repository(store)
    planned = [
        archive(store, repository.bases, budget=b, dry_run=True).bytes_planned for b in (1.0, 2.0, 5.0, math.inf)
    ]
    assert planned == sorted(planned, reverse=True)
    assert planned[-1] < 0.9 * planned[0]


def test_a_snapshot_that_is_read_often_is_quick(store: ParameterStore) -> None:
    repository = Repository(store)
    store.reference("best", repository.snapshots["tuned"][-1])
    reads = dict.fromkeys(repository.all, 1.0) | {repository.snapshots["tuned"][-1]: 0.0, "best": 1000.0}
    report = archive(store, repository.bases, budget=2.0, reads=reads)
    best = report.snapshots[repository.snapshots["tuned"][-1]]
    others = [report.snapshots[one] for one in repository.all if one != repository.snapshots["tuned"][-1]]
    assert best.planned / best.cheapest < min(2.0, max(cost.planned / cost.cheapest for cost in others))
    mean = (1000 * best.planned + sum(cost.planned for cost in others)) / 1006
    assert mean <= 2 * (1000 * best.cheapest + sum(cost.cheapest for cost in others)) / 1006
    repository.check(store)


def test_budgets_by_snapshot(store: ParameterStore) -> None:
    repository = Repository(store)
    last = repository.snapshots["base"][-1]
    store.reference("release", last)
    free = archive(store, repository.bases, dry_run=True, budget=math.inf).snapshots[last]
    report = archive(store, repository.bases, budget={"release": 1.1 * free.cheapest}, dry_run=True)
    assert report.snapshots[last].planned <= 1.1 * free.cheapest
    assert report.snapshots[repository.all[0]].budget == math.inf
    with pytest.raises(UsageError, match="cannot be recreated within their budgets"):
        archive(store, repository.bases, budget={"release": 0.5 * free.cheapest})
    repository.check(store)


def test_progressive_reads_stay_possible(store: ParameterStore) -> None:
    repository = Repository(store)
    plain = archive(store, repository.bases, dry_run=True, budget=math.inf)
    report = archive(store, repository.bases, progressive=True, budget=math.inf)
    large = [entry for entry in store.entries() if math.prod(entry.shape) > 1024]
    assert all(ENCODINGS[entry.encoding].progressive for entry in large)
    assert any(entry.base is not None for entry in large)
    assert report.bytes_after is not None
    assert plain.bytes_planned < report.bytes_after < 0.85 * report.bytes_before
    snapshot = repository.all[2]
    exact = store.get(snapshot)["hidden.weight"]
    partial = store.get(snapshot, planes=2)["hidden.weight"]
    lower, upper = partial.bounds
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    repository.check(store)


def test_weights_without_a_base_stay_readable_by_planes(store: ParameterStore) -> None:
    """Another encoding is a percent smaller, and would be read as a whole for two planes."""
    rng = np.random.default_rng(1)
    fresh = {f"w{number}": rng.uniform(-0.1, 0.1, 200_000).astype(np.float32) for number in range(4)}
    snapshot = store.put(fresh, reference="single")
    archive(store)
    large = [entry for entry in store.entries() if math.prod(entry.shape) > 1024]
    assert large and all(ENCODINGS[entry.encoding].progressive for entry in large)
    read = []
    for planes in (2, None):
        before = store.source.bytes_read["local"]
        store.get(snapshot, planes=planes)
        read.append(store.source.bytes_read["local"] - before)
    assert read[0] < 0.5 * read[1]


def test_cold_planes_go_to_the_remote_where_the_budget_allows(tmp_path: Path) -> None:
    with ParameterStore.open(tmp_path / "store", threads=1, remote=str(tmp_path / "far")) as store:
        repository = Repository(store)
        hot = repository.all[0]
        here = archive(store, repository.bases, progressive=True, dry_run=True)
        quick = {hot: 3 * here.snapshots[hot].cheapest}
        report = archive(store, repository.bases, budget=quick, remote_planes=2)
        away = {entry.tensor for entry in store.entries() if entry.remote_bytes}
        assert away
        assert report.snapshots[hot].planned <= quick[hot]
        assert report.bytes_after == sum(entry.stored_bytes - entry.remote_bytes for entry in store.entries())
        assert report.bytes_after < 0.7 * here.bytes_planned
        kept = {member.id for member in store.manifest(hot).tensors.values()}
        assert not kept & away
        repository.check(store)
        again = archive(store, repository.bases, budget=quick, remote_planes=2)
        assert {entry.tensor for entry in store.entries() if entry.remote_bytes} >= away
        assert again.moved <= 0.2 * report.moved


def test_lossy_snapshots_stay_small(store: ParameterStore) -> None:
    lossy = next(encoding.name for encoding in ENCODINGS.values() if encoding.lossy)
    snapshot = store.put(start(1), scheme=lossy)
    before = store.get(snapshot)
    size = sum(entry.stored_bytes for entry in store.entries())
    report = archive(store)
    assert report.bytes_after is not None
    assert report.bytes_after <= size
    for name, value in store.get(snapshot).items():
        assert value.tobytes() == before[name].tobytes()


def test_every_kind_of_tensor(store: ParameterStore) -> None:
    """Types without a base, scalars, empty ones, NaN, and the same tensor under two names."""
    weights = start(1) | {
        "scalar": np.float32(3.5),
        "empty": np.zeros((0, 4), np.float32),
        "steps": np.arange(5000, dtype=np.int64),
        "mask": np.ones(3000, bool),
        "double": np.linspace(0, 1, 3000),
        "half": np.linspace(0, 1, 3000).astype(np.float16),
        "odd": np.array([math.nan, -0.0, math.inf, -math.inf] * 500, np.float32),
        "complex": np.full(3000, 1 + 2j),
    }
    weights["tied"] = weights["hidden.weight"]
    later = {
        name: step({"w": value}, 1)["w"] if value.dtype == np.float32 else value for name, value in weights.items()
    }
    first, second = store.put(weights), store.put(later)
    archive(store, {second: [first]}, budget=3.0)
    for snapshot, kept in ((first, weights), (second, later)):
        for name, value in store.get(snapshot).items():
            assert value.tobytes() == np.asarray(kept[name]).tobytes(), name
    assert store.fsck("deep").problems == ()


def test_an_empty_store(store: ParameterStore) -> None:
    report = archive(store)
    assert (report.tensors, report.moved, report.bytes_after, report.saved) == (0, 0, 0, 0.0)


def test_long_series_keep_within_the_longest_chain(store: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regatta.store.archive.archive.MAX_CHAIN_LENGTH", 3)
    kept = [{"w": weights["hidden.weight"]} for weights in series(1, 10)]
    snapshots = [store.put(weights) for weights in kept]
    report = archive(store, lineage({"v": snapshots}), budget=math.inf)
    assert report.deepest <= 3
    whole = sum(entry.base is None for entry in store.entries())
    assert 2 <= whole <= 4  # a whole one reaches two to either side
    for weights, snapshot in zip(kept, snapshots, strict=True):
        assert store.get(snapshot)["w"].tobytes() == weights["w"].tobytes()


class TestRefusals:
    def test_unknown_snapshots(self, store: ParameterStore) -> None:
        snapshot = store.put(start(1))
        with pytest.raises(NotFoundError):
            archive(store, {snapshot: ["ab" * 32]})
        with pytest.raises(UsageError, match="is not an id"):
            archive(store, {snapshot: ["nothing like it"]})

    def test_contradictions(self, store: ParameterStore) -> None:
        snapshot = store.put(start(1))
        with pytest.raises(UsageError, match="cannot be combined"):
            archive(store, budget={snapshot: 1.0}, reads={snapshot: 1.0})
        with pytest.raises(UsageError, match="needs a budget"):
            archive(store, reads={snapshot: 1.0})
        with pytest.raises(UsageError, match="no remote"):
            archive(store, remote_planes=2)
        with pytest.raises(UsageError, match="scheme 'reusable'"):
            archive(store, scheme="reusable")
        with pytest.raises(UsageError, match=r"0\.5 times the cheapest"):
            archive(store, budget=0.5)
