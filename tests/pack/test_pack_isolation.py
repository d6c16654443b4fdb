"""A member that diverges, raises, needs too much memory or leaves changes no bit of the others."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from pack_cases import (
    FakeGraphs,
    Replayed,
    adam,
    assert_same,
    data,
    epochs_of,
    graph_pack,
    loss_fn,
    mlp,
    sgd,
    trained_alone,
)
from torch import nn

from regatta.errors import ConflictError, NotFoundError, UsageError
from regatta.pack import Pack, Rates
from regatta.pack.memory import MEMORY_SLACK, split_into_waves
from regatta.pack.rates import PackTiming
from regatta.pack.track import Lane

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("count", [3, 70])
def test_a_member_with_nan_does_not_affect_the_others(graphs: bool, count: int) -> None:
    pack = graph_pack() if graphs else Pack("cpu")
    rates = {i: 1e30 if i == 1 else 0.1 * (1 + i % 3) for i in range(count)}
    members = [pack.load(*sgd(mlp(i), lr), loss_fn, 16) for i, lr in rates.items()]
    pack.train(data(), epochs=2)
    assert {m.tier for m in members} == {"graph" if graphs else "fused"}, pack.plan()
    assert [i for i, m in enumerate(members) if m.diverged] == [1]
    for i in (0, 1, 2, count - 1):
        trainee, _ = trained_alone(sgd(mlp(i), rates[i]), epochs_of(members[i], 2), 0)
        assert_same(members[i], trainee)


class Fuse(nn.Module):
    """Raises at its nth forward pass."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.inner, self.left = mlp(0), [passes]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise ValueError("burnt out")
        return self.inner(x)


@pytest.mark.parametrize(("graphs", "passes"), [(False, 0), (False, 2), (False, 13), (True, 0), (True, 2), (True, 4)])
def test_a_member_that_raises_stops_alone(graphs: bool, passes: int) -> None:
    pack = graph_pack() if graphs else Pack("cpu")
    before = pack.load(*sgd(mlp(1)), loss_fn, 16)
    bad = pack.load(*sgd(Fuse(passes)), loss_fn, 16)
    after = pack.load(*sgd(mlp(2, width=8)), loss_fn, 16)
    pack.train(data(), epochs=2)
    pack.train(data(), epochs=1)
    assert isinstance(bad.error, ValueError) and bad.tier == "failed" and "burnt out" in bad.reason
    assert bad.done and bad.taken <= passes
    for member, made in ((before, sgd(mlp(1))), (after, sgd(mlp(2, width=8)))):
        trainee, _ = trained_alone(made, epochs_of(member, 3), 0)
        assert_same(member, trainee)


class Moody(nn.Module):
    """Raises, after it has drawn random numbers, from the day on that all of its kind do."""

    angry = False

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = mlp(seed, dropout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        if Moody.angry:
            raise RuntimeError("not today")
        return found


def test_a_stacked_step_that_raises_is_repeated_member_by_member(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Pack("cpu")
    members = [pack.load(*sgd(Moody(i)), loss_fn, 16, seed=i) for i in range(2)]
    other = pack.load(*sgd(mlp(5)), loss_fn, 16)
    pack.train(data(), epochs=1)
    assert {m.tier for m in members} == {"fused"}, pack.plan()
    before = [m.randomness.mark() for m in members]
    monkeypatch.setattr(Moody, "angry", True)
    pack.train(data(), epochs=1)
    assert all(isinstance(m.error, RuntimeError) and m.taken == 10 for m in members), pack.plan()
    assert all(m.randomness.differs(mark) for m, mark in zip(members, before, strict=True))  # of the step alone
    trainee, _ = trained_alone(sgd(mlp(5)), epochs_of(other, 2), 0)
    assert_same(other, trainee)


def test_a_step_that_raises_when_stacked_alone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stacked step fails halfway, the same steps alone do not: random streams continue from where they were."""
    pack = Pack("cpu")
    members = [pack.load(*sgd(Picky(i)), loss_fn, 16, seed=i) for i in range(2)]
    pack.train(data(), epochs=1)
    assert {m.tier for m in members} == {"fused"}, pack.plan()
    monkeypatch.setattr(Picky, "allowed", torch.Tensor)
    pack.train(data(), epochs=1)
    assert {m.tier for m in members} == {"alone"} and "TypeError: Stacked" in members[0].reason, pack.plan()
    for i, member in enumerate(members):
        trainee, _ = trained_alone(sgd(Picky(i)), epochs_of(member, 2), i)
        assert_same(member, trainee)


class Picky(nn.Module):
    """Takes no tensors but those of one type."""

    allowed: Any = None

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = mlp(seed, dropout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        if Picky.allowed is not None and type(found) is not Picky.allowed:
            raise TypeError(type(found).__name__)
        return found


def test_a_member_freed_from_a_stack_keeps_its_state_and_the_others_continue() -> None:
    pack = Pack("cpu")
    members = [pack.load(*adam(mlp(i, dropout=0.2)), loss_fn, 16, seed=i) for i in range(3)]
    pack.train(data(), epochs=1)
    state = pack.free(members[1])
    held = members[1].model[0].weight.clone()
    pack.train(data(), epochs=1)
    assert torch.equal(held, members[1].model[0].weight) and torch.equal(held, state["model"]["0.weight"])
    assert members[1].model[0].weight.untyped_storage().nbytes() == held.nbytes  # no part of the memory of others
    for i, epochs in ((0, 2), (1, 1), (2, 2)):
        trainee, _ = trained_alone(adam(mlp(i, dropout=0.2)), epochs_of(members[i], epochs), i)
        assert_same(members[i], trainee)
    assert state["steps"] == 10 and state["epoch"] == 1
    other, optimizer = adam(mlp(9))
    other.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])  # an ordinary optimizer takes it


def test_removing_a_member_from_graphs_does_not_change_the_others() -> None:
    pack, given = graph_pack(), data()
    members = [pack.load(*adam(mlp(i, width=8 + i)), loss_fn, 5 + i, seed=i) for i in range(4)]
    pack.train(given, steps=25)
    tracks = dict(pack.graph_tier.tracks)
    state = pack.free(members[1])
    pack.train(given, steps=25)
    assert pack.graph_tier.tracks == {m: track for m, track in tracks.items() if m is not members[1]}
    assert state["steps"] == members[1].taken == 25
    for i, steps in enumerate((50, 25, 50, 50)):
        batches = [b for epoch in epochs_of(members[i], 3) for b in epoch][:steps]
        trainee, _ = trained_alone(adam(mlp(i, width=8 + i)), [batches], i)
        assert_same(members[i], trainee)


def test_joint_graphs_are_reused_and_dropped_with_their_members() -> None:
    class Joint(Rates):
        def get(self, key: Any) -> PackTiming:
            return PackTiming(together=1.0, in_turn=2.0, joint=True)

    graphs, given = FakeGraphs(), data()
    pack = graph_pack(graphs, rates=Joint())
    members = [pack.load(*sgd(mlp(i, width=8 + i)), loss_fn, 1) for i in range(3)]
    for _ in range(3):
        pack.train(given, epochs=1)
    assert graphs.joined == 1
    step = weakref.ref(pack.graph_tier.tracks[members[0]].replays()[0])
    pack.free(members[0])
    gc.collect()
    assert step() is None  # nor the memory that it works on
    pack.train(given, epochs=1)
    assert graphs.joined == 2
    for i, epochs in enumerate((3, 4, 4)):
        trainee, _ = trained_alone(sgd(mlp(i, width=8 + i)), epochs_of(members[i], epochs), 0)
        assert_same(members[i], trainee)


def test_members_with_different_activations_are_never_one_stack() -> None:
    pack = Pack("cpu")
    kinds = [nn.ReLU, nn.Tanh, nn.ReLU, nn.Tanh]
    members = [pack.load(*adam(mlp(i, kind)), loss_fn, 16) for i, kind in enumerate(kinds)]
    pack.train(data(), epochs=2)
    assert {m.tier for m in members} == {"fused"}
    assert sorted(len(stack.members) for stack in pack.stacked_tier.proven) == [2, 2]
    for i, kind in enumerate(kinds):
        trainee, _ = trained_alone(adam(mlp(i, kind)), epochs_of(members[i], 2), 0)
        assert_same(members[i], trainee)


def test_out_of_memory_splits_a_group_and_continues() -> None:
    class Tight(FakeGraphs):
        """Room for two graphs at a time."""

        def capture(self, stream: object, step: Any) -> Any:
            if len(pack.graph_tier.tracks) >= 2:
                raise torch.OutOfMemoryError("no room")
            return super().capture(stream, step)

    graphs = Tight()
    pack = graph_pack(graphs)

    def make(i: int) -> tuple[Any, Any]:
        made = sgd(mlp(i, width=8 + i), lr=torch.tensor(0.5))
        return made, torch.optim.lr_scheduler.ExponentialLR(made[1], 0.9)

    built = [make(i) for i in range(5)]
    members = [pack.load(*made, loss_fn, 10, schedule=schedule) for made, schedule in built]
    pack.train(data(), epochs=3)
    assert all(member.error is None for member in members), pack.plan()
    for i, member in enumerate(members):
        made, schedule = make(i)
        trainee, _ = trained_alone(made, epochs_of(member, 3), 0, schedule=schedule)
        assert_same(member, trainee)


def test_a_group_that_would_not_fit_is_split_before_it_runs() -> None:
    graphs = FakeGraphs()
    pack = graph_pack(graphs, memory_limit=250)
    members = [pack.load(*sgd(mlp(i, width=8 + i)), loss_fn, 10) for i in range(4)]
    pack.train(data(), steps=1)
    for member in members:
        member.figures = replace(member.figures, peak_bytes=100)
    pack.train(data(), epochs=2)
    assert len(pack.graph_tier.tracks) == 2  # two waves of two, and the first one has made room
    for i, member in enumerate(members):
        trainee, _ = trained_alone(sgd(mlp(i, width=8 + i)), [member.order(150, 0), member.order(150, 1)], 0)
        assert_same(member, trainee)


class Counting(nn.Module):
    """Computes with a number that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = mlp(0), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * (1 + 0.01 * self.calls)


def chance(model: nn.Module, batch: Any, config: Any = None) -> torch.Tensor:
    return loss_fn(model, batch) * (1 + random.random())


def test_models_that_cannot_be_captured_train_alone_with_a_reason() -> None:
    pack = graph_pack()
    counting = pack.load(*sgd(Counting()), loss_fn, 16)
    by_chance = pack.load(*sgd(mlp(0)), chance, 16, seed=3)
    by_itself = pack.load(m := mlp(0), torch.optim.LBFGS(m.parameters(), max_iter=2), loss_fn, 50)
    pack.train(data(), epochs=3)
    assert {m.tier for m in pack.members} == {"alone"}
    assert "calls" in counting.reason and "random numbers" in by_chance.reason and "by itself" in by_itself.reason
    trainee, _ = trained_alone(sgd(Counting()), epochs_of(counting, 3), 0)
    assert_same(counting, trainee)


def test_modules_that_count_calls_train_alone() -> None:
    pack = Pack("cpu")
    members = [pack.load(*sgd(Counting()), loss_fn, 16) for _ in range(2)]
    pack.train(data(), epochs=2)
    assert {m.tier for m in members} == {"alone"}
    trainee, _ = trained_alone(sgd(Counting()), epochs_of(members[0], 2), 0)
    assert_same(members[0], trainee)


def test_a_wrong_capture_is_detected() -> None:
    class Forgetful(FakeGraphs):
        def capture(self, stream: object, step: Any) -> Any:
            lr = member.optimizer.param_groups[0]

            def wrong() -> None:
                lr["lr"] *= 1.5
                step()
                lr["lr"] /= 1.5

            return Replayed(wrong)

    pack = graph_pack(Forgetful())
    member = pack.load(*sgd(mlp(0), lr=0.25), loss_fn, 16)
    pack.train(data(), epochs=2)
    assert member.tier == "alone" and "differs" in member.reason
    trainee, _ = trained_alone(sgd(mlp(0), lr=0.25), epochs_of(member, 2), 0)
    assert_same(member, trainee)


def test_packs_that_are_slower_are_reported_as_such() -> None:
    class Slow(Rates):
        def get(self, key: Any) -> PackTiming:
            return PackTiming(together=2.0, in_turn=1.0)

    pack = graph_pack(rates=Slow())
    members = [pack.load(*sgd(mlp(i, width=8 + i)), loss_fn, 16) for i in range(3)]
    pack.train(data(), epochs=2)
    assert all("do not pack" in m.reason and m.tier == "graph" for m in members)
    stacked = Pack("cpu", rates=Slow())
    pair = [stacked.load(*sgd(mlp(i)), loss_fn, 16) for i in range(2)]
    stacked.train(data(), epochs=2)
    assert all("do not pack" in m.reason and m.tier == "alone" for m in pair)
    for i, member in enumerate(pair):
        trainee, _ = trained_alone(sgd(mlp(i)), epochs_of(member, 2), 0)
        assert_same(member, trainee)


def test_measurements_are_shared_and_reported() -> None:
    rates, graphs = Rates(), FakeGraphs()
    for turn in range(2):
        pack = graph_pack(graphs, rates=rates)
        members = [pack.load(*sgd(mlp(i, width=8 + i)), loss_fn, 2) for i in range(2)]
        pack.train(data(), epochs=1)
        assert len(rates.known) == 1
        assert (graphs.joined > 0) if turn == 0 else True
        assert all(m.figures.samples_per_second > 0 and m.figures.state_bytes > 0 for m in members)
        assert all("side by side" in m.reason for m in members)
    points = rates.points("mlp")
    assert points.keys() == {("mlp", 1), ("mlp", 2)} and all(seconds > 0 for seconds in points.values())


def test_invalid_arguments_are_refused() -> None:
    pack = Pack("cpu")
    model, optimizer = sgd(mlp(0))
    pack.load(model, optimizer, loss_fn, 16, name="a")
    with pytest.raises(ConflictError, match="'a'"):
        pack.load(*sgd(mlp(0)), loss_fn, 16, name="a")
    with pytest.raises(UsageError, match="exactly one"):
        pack.train(data(), steps=1, epochs=1)
    with pytest.raises(UsageError, match="not the model's"):
        pack.load(mlp(1), optimizer, loss_fn, 16)
    with pytest.raises(UsageError, match="batch_size"):
        pack.load(*sgd(mlp(0)), loss_fn, 0)
    with pytest.raises(UsageError, match="waits for a metric"):
        made = sgd(mlp(0))
        pack.load(*made, loss_fn, 16, schedule=torch.optim.lr_scheduler.ReduceLROnPlateau(made[1]))
    with pytest.raises(UsageError, match="different numbers of rows"):
        pack.train((torch.zeros(3, 12), torch.zeros(2)), steps=1)
    with pytest.raises(NotFoundError, match="'b'"):
        pack.free("b")
    with pytest.raises(UsageError, match="numerics"):
        Pack("cpu", numerics="quick")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="alone"):
        Pack("cpu", tiers=("graph",))


def test_a_loss_that_is_none_is_the_members_own_error() -> None:
    pack = Pack("cpu")
    member = pack.load(*sgd(mlp(0)), lambda model, batch: model(batch[0]), 16)
    pack.train(data(), steps=2)
    assert isinstance(member.error, UsageError) and "one number" in str(member.error)


def test_waves_fill_the_room() -> None:
    pack = Pack("cpu")
    members = [pack.load(*adam(mlp(i)), loss_fn, 10) for i in range(5)]
    for member, size in zip(members, (100, 100, 100, 900, 50), strict=True):
        member.figures = replace(member.figures, peak_bytes=size)
    waves = split_into_waves(members, int(250 * MEMORY_SLACK))
    assert [[member.figures.peak_bytes for member in wave] for wave in waves] == [[100, 100], [100], [900], [50]]


class AsynchronousGraphs(FakeGraphs):
    """Knows on which side streams work may still be running; a capture of a `broken` pack raises."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.broken, self.current = broken, object()
        self.running = set[int]()

    @contextlib.contextmanager
    def on_stream(self, stream: object) -> Iterator[None]:
        before, self.current = self.current, stream
        self.running.add(id(stream))
        try:
            yield
        finally:
            self.current = before

    def join(self, streams: Iterable[object]) -> None:
        self.running -= {id(stream) for stream in streams}

    def capture(self, stream: object, step: Any) -> Any:
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(stream, step)

    def replay_many(self, parts: Sequence[tuple[Any, Any, int]], rounds: int) -> None:
        self.running |= {id(stream) for stream, _, _ in parts}
        super().replay_many(parts, rounds)


class WholeBatches(nn.Module):
    """Raises at the last batch of an epoch, which is smaller."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) < 16:
            raise ValueError("a small batch")
        return self.inner(x)


@pytest.mark.parametrize("broken", [False, True], ids=["step raises", "capture raises"])
def test_losses_are_read_only_after_the_steps_that_compute_them(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, flush, seen = AsynchronousGraphs(broken), Lane.flush_losses, list[bool]()

    def watched(lane: Lane) -> None:
        stream = lane.track.stream
        seen.append(stream is graphs.current or id(stream) not in graphs.running)
        flush(lane)

    monkeypatch.setattr(Lane, "flush_losses", watched)
    pack = graph_pack(graphs)
    pack.load(*sgd(mlp(1)), loss_fn, 16)
    other = pack.load(*sgd(mlp(2) if broken else WholeBatches(mlp(2))), loss_fn, 16)
    pack.train(data(), epochs=2)
    assert other.tier == ("alone" if broken else "failed")
    assert seen and all(seen)
