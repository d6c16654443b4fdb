"""What a proof of the first steps cannot show: changes at later steps, and members with steps of their own."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pack_cases import (
    AlwaysPays,
    FakeGraphs,
    FreezingGraphs,
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

from regatta.pack import Member, Pack
from regatta.pack.checks import STEPS_PER_CHECK, check_steps, members_to_check
from regatta.pack.stacked.tensors import (
    RULES,
    _products_round_alike,
    kernel_settings,
    leaf,
    stacked,
    underlying,
    without_rules,
)

pytestmark = pytest.mark.usefixtures("one_thread")

schedules = torch.optim.lr_scheduler


def batches(member: Member, steps: int) -> list[Any]:
    return [[rows for epoch in epochs_of(member, 1 + steps // 10) for rows in epoch][:steps]]


def test_members_with_unequal_numbers_of_steps_count_their_own() -> None:
    pack = Pack("cpu", rates=AlwaysPays())
    first, second = (pack.load(*adam(mlp(i)), loss_fn, 16) for i in range(2))
    pack.train(data(), steps={first: 10, second: 30})
    assert first.tier == second.tier == "fused"
    pack.free(first)
    assert {float(state["step"]) for state in second.optimizer.state.values()} == {30.0}
    newcomer = pack.load(*adam(mlp(2)), loss_fn, 16)
    pack.train(data(), steps=20)
    pack.train(data(), steps=20)
    assert second.tier == newcomer.tier == "fused", pack.plan()
    for seed, member, steps in ((0, first, 10), (1, second, 70), (2, newcomer, 40)):
        trainee, _ = trained_alone(adam(mlp(seed)), batches(member, steps), 0)
        assert_same(member, trainee)


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_stacked_members_follow_a_schedule_of_momentum(kind: str) -> None:
    def make(i: int) -> tuple[Any, Any]:
        model = mlp(i, dropout=0.2)
        options = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01 * (1 + i), **options)
        return (model, optimizer), schedules.OneCycleLR(optimizer, 0.05, total_steps=40)

    pack = Pack("cpu", rates=AlwaysPays())
    made = [make(i) for i in range(3)]
    members = [pack.load(*parts, loss_fn, 16, schedule=schedule, seed=i) for i, (parts, schedule) in enumerate(made)]
    pack.train(data(), epochs=3)
    assert {member.tier for member in members} == {"fused"}, pack.plan()
    for i, member in enumerate(members):
        parts, schedule = make(i)
        trainee, _ = trained_alone(parts, epochs_of(member, 3), i, schedule=schedule)
        assert_same(member, trainee)


def test_an_attribute_changed_between_calls_reaches_stacks_and_graphs() -> None:
    given = data()  # other data would drop captured steps
    for pack in (Pack("cpu", rates=AlwaysPays()), graph_pack()):
        members = [pack.load(*adam(mlp(i, dropout=0.5)), loss_fn, 16, seed=i) for i in range(2)]
        pack.train(given, epochs=2)
        for member in members:
            member.model[2].p = 0.0  # type: ignore[index, union-attr]
        pack.train(given, epochs=2)
        for i, member in enumerate(members):
            made = adam(mlp(i, dropout=0.5))
            trained_alone(made, epochs_of(member, 2), i)
            made[0][2].p = 0.0  # type: ignore[index, union-attr]
            trainee, _ = trained_alone(made, [member.order(150, epoch) for epoch in (2, 3)], i)
            assert_same(member, trainee)


class Scaled(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner, self.factor = mlp(seed), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor


def test_a_number_that_a_captured_step_holds_is_changed_between_calls() -> None:
    def change(made: Any) -> None:
        made[0].factor, made[1].param_groups[0]["momentum"] = 0.5, 0.5

    given, pack = data(), graph_pack(FreezingGraphs())
    made, other = (sgd(Scaled(0), momentum=0.9) for _ in range(2))
    member = pack.load(*made, loss_fn, 15)
    pack.train(given, epochs=2)
    assert member.tier == "graph"
    trained_alone(other, epochs_of(member, 2), 0)
    change(made)
    change(other)
    pack.train(given, epochs=2)
    assert member.tier == "graph"
    trainee, _ = trained_alone(other, [member.order(150, epoch) for epoch in (2, 3)], 0)
    assert_same(member, trainee)


@pytest.mark.parametrize("late", [25, 70])
def test_a_stack_that_goes_wrong_later_is_put_back_and_trained_alone(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    right = RULES[F.relu]

    def wrong(x: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        found = right(x, **options)
        return found if calls < late else stacked(underlying(found) * 1.001)

    monkeypatch.setitem(RULES, F.relu, wrong)
    pack = Pack("cpu", rates=AlwaysPays())
    members = [pack.load(*adam(mlp(i, dropout=0.2)), loss_fn, 16, seed=i) for i in range(3)]
    pack.train(data(), epochs=12)
    pack.train(data(), epochs=1)
    assert {member.tier for member in members} == {"alone"}, pack.plan()
    assert "differs" in members[0].reason and "trained alone from step" in members[0].notes[0]
    for i, member in enumerate(members):
        trainee, _ = trained_alone(adam(mlp(i, dropout=0.2)), epochs_of(member, 13), i)
        assert_same(member, trainee)
        assert len(member.losses) == member.taken == 130


def test_a_graph_that_goes_wrong_later_is_put_back_and_trained_alone() -> None:
    class Wearing(FakeGraphs):
        """After some replays a step uses another learning rate."""

        def capture(self, stream: object, step: Any) -> Any:
            (member,) = step.__self__.track.members
            group, replays = member.optimizer.param_groups[0], []

            def replay() -> None:
                replays.append(1)
                before = group["lr"]
                group["lr"] = before * (1 if len(replays) < 40 else 1.5)
                step()
                group["lr"] = before

            return Replayed(replay)

    pack = graph_pack(Wearing())
    member = pack.load(*sgd(mlp(0), lr=0.25), loss_fn, 16)
    pack.train(data(), epochs=8)
    pack.train(data(), epochs=2)
    assert member.tier == "alone", pack.plan()
    assert "trained alone from step" in member.notes[0]
    trainee, _ = trained_alone(sgd(mlp(0), lr=0.25), epochs_of(member, 10), 0)
    assert_same(member, trainee)


def test_one_step_of_each_epoch_and_the_last_are_compared() -> None:
    draw = random.Random(0)
    for steps, epoch in ((1, 10), (49, 10), (800, 100), (2000, 3), (400, 300)):
        found = check_steps([16] * steps, 16, epoch, draw)
        block = max(epoch, STEPS_PER_CHECK)
        assert found[-1] == steps - 1 and all(0 <= step < steps for step in found)
        for start in range(0, steps - STEPS_PER_CHECK, block):
            assert any(start <= step < start + block for step in found)
    assert check_steps([16, 16, 6], 16, 3, draw) == [1, 2]  # each size has a kernel of its own
    assert members_to_check(32, 100, random.Random(1)) == members_to_check(32, 100, random.Random(1))
    assert len(members_to_check(32, 5000, draw)) == 4 and len(members_to_check(2, 10**6, draw)) == 2


class Small(nn.Module):
    """ReLU leaves few values to the last layer, whose small products round differently when stacked."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner, self.outer = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(F.relu(self.inner(x)))


def test_kernels_are_tested_on_random_numbers_and_not_on_lucky_steps() -> None:
    pack = Pack("cpu", rates=AlwaysPays())
    members = [pack.load(*sgd(Small(i)), loss_fn, 9) for i in range(2)]
    pack.train(data(), epochs=2)
    settings = kernel_settings(torch.zeros(1))
    alike = all(_products_round_alike(2, 9, *sizes, True, settings) for sizes in ((8, 4), (12, 8)))
    assert {member.tier for member in members} == {"fused" if alike else "alone"}, pack.plan()
    for i, member in enumerate(members):
        trainee, _ = trained_alone(sgd(Small(i)), epochs_of(member, 2), 0)
        assert_same(member, trainee)


@pytest.mark.parametrize("count", [5, 33, 81])
@pytest.mark.parametrize(
    "act", [torch.sigmoid, F.silu, F.elu, F.selu, F.softplus, F.mish, torch.tanh, F.gelu, torch.exp, lambda x: x**3]
)
def test_activations_that_do_not_fill_a_register_equal_those_alone(act: Any, count: int) -> None:
    made = torch.Generator().manual_seed(count)
    x, grad = (3 * torch.randn(40, count, generator=made) for _ in range(2))
    given = leaf(x)
    found = underlying(act(given))
    with without_rules():
        (back,) = torch.autograd.grad(found, given, grad)
    for number in range(len(x)):
        alone = x[number].clone().requires_grad_()
        expected = act(alone)
        assert torch.equal(found[number], expected)
        assert torch.equal(back[number], torch.autograd.grad(expected, alone, grad[number])[0])


@pytest.mark.parametrize("graphs", [False, True])
def test_free_and_load_equal_going_on(graphs: bool) -> None:
    pack = graph_pack() if graphs else Pack("cpu", rates=AlwaysPays())
    members = [pack.load(*adam(mlp(i, dropout=0.3)), loss_fn, 16, seed=i) for i in range(2)]
    pack.train(data(), epochs=1)
    state = pack.free(members[1])
    assert pack.load(*sgd(mlp(7)), loss_fn, 16).name == "member-2"  # no default name is used twice
    again = pack.load(*adam(mlp(9, dropout=0.3)), loss_fn, 16, seed=5, state=saved_and_read(state))
    pack.train(data(), epochs=2)
    trainee, _ = trained_alone(adam(mlp(1, dropout=0.3)), epochs_of(again, 3), 1)
    assert_same(again, trainee)


def saved_and_read(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize("graphs", [False, True])
def test_a_diverged_member_takes_no_steps_in_later_calls(graphs: bool) -> None:
    pack = graph_pack() if graphs else Pack("cpu", rates=AlwaysPays())
    members = [pack.load(*sgd(mlp(i), lr), loss_fn, 16) for i, lr in enumerate((0.1, 1e30, 0.2))]
    pack.train(data(), epochs=2)
    assert [member.diverged for member in members] == [False, True, False]
    pack.train(data(), epochs=1)
    assert [member.taken for member in members] == [30, 20, 30] and members[1].done
    assert pack.plan()[1].reason == "stopped: its loss was nan at step 20"
    members[1].start_again(seed=0)  # a unit of a sweep goes on as a plain loop would
    pack.train(data(), epochs=1)
    assert members[1].taken == 30
    for i, lr in ((0, 0.1), (2, 0.2)):
        trainee, _ = trained_alone(sgd(mlp(i), lr), epochs_of(members[i], 4), 0)
        assert_same(members[i], trainee)
