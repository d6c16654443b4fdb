"""Schedules of users, which may do more than to change hyperparameters, and optimizers with states of their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pack_cases import AlwaysPays, FreezingGraphs, data, loss_fn, mlp
from torch import nn

from regatta.pack import Member, Pack
from regatta.pack.stacked.tensors import RULES, stacked, underlying
from regatta.pack.state.member_state import same_bits

pytestmark = pytest.mark.usefixtures("one_thread")

LRScheduler = torch.optim.lr_scheduler.LRScheduler


class OfUser(LRScheduler):
    """Calls a function after some steps."""

    def __init__(self, optimizer: Any, act: Callable[[Any, int], None], first: int) -> None:
        self.act, self.first = act, first
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        if self.last_epoch >= self.first:
            self.act(self.optimizer, self.last_epoch)
        return [float(group["lr"]) * 0.99 for group in self.optimizer.param_groups]


def parameters(optimizer: Any) -> list[torch.Tensor]:
    return list(optimizer.param_groups[0]["params"])


def _scale(optimizer: Any, factor: float) -> None:
    optimizer.param_groups[0]["lr"] *= factor


def _shrink(optimizer: Any, step: int) -> None:
    with torch.no_grad():
        for parameter in parameters(optimizer):
            parameter.mul_(0.999)


def _replace(optimizer: Any, step: int) -> None:
    if step == 17:
        for parameter in parameters(optimizer):
            parameter.data = parameter.data * 0.5


def _reset(optimizer: Any, step: int) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].zero_()


def _clear(optimizer: Any, step: int) -> None:
    if step == 17:
        optimizer.state.clear()


def _read_count(optimizer: Any, step: int) -> None:
    counts = [float(state["step"]) for state in optimizer.state.values()]
    _scale(optimizer, 1 / (1 + 0.01 * max(counts, default=0.0)))


def _read_gradient(optimizer: Any, step: int) -> None:
    norms = [float(parameter.grad.norm()) for parameter in parameters(optimizer) if parameter.grad is not None]
    _scale(optimizer, 1 / (1 + sum(norms)))


ACTS: dict[str, Callable[[Any, int], None]] = {
    "Python's generator": lambda o, step: _scale(o, 0.5 + random.random()),
    "NumPy's generator": lambda o, step: _scale(o, 0.5 + np.random.rand()),
    "PyTorch's generator": lambda o, step: _scale(o, 0.5 + float(torch.rand(()))),
    "reads weights": lambda o, step: _scale(o, 1 / (1 + float(parameters(o)[0].detach().norm()))),
    "reads weights as an array": lambda o, step: _scale(o, 1 / (1 + abs(parameters(o)[0].detach().numpy()[0, 0]))),
    "reads gradients": _read_gradient,
    "reads counters": _read_count,
    "shrinks weights": _shrink,
    "replaces weights": _replace,
    "resets moments": _reset,
    "clears the state": _clear,
    "harmless": lambda o, step: _scale(o, 1 / (1 + parameters(o)[0].numel() * 1e-3)),
}


def loop(model: nn.Module, optimizer: Any, schedule: Any, batches: Any, seeded: bool = True) -> list[float]:
    """A plain loop, under the seed of a member."""
    given, losses = data(), []
    if seeded:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
    for rows in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model, tuple(part[torch.from_numpy(rows)] for part in given))
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


def make(seed: int, dropout: float = 0.2, lr: Any = 0.01) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = mlp(seed, dropout=dropout)
    return model, torch.optim.Adam(model.parameters(), lr=lr)


def batches_of(member: Member) -> list[Any]:
    return [rows for epoch in range(10) for rows in member.order(150, epoch)][: member.taken]


def assert_equal(member: Member, model: nn.Module, losses: list[float]) -> None:
    assert member.error is None
    assert member.losses.tolist() == losses, member
    assert all(map(same_bits, member.model.parameters(), model.parameters())), member


def packs() -> list[Pack]:
    graphs = Pack("cpu", tiers=("graph", "alone"), graphs=FreezingGraphs(), rates=AlwaysPays())
    return [Pack("cpu", rates=AlwaysPays()), graphs]


@pytest.mark.parametrize("first", [0, 15])
@pytest.mark.parametrize("name", ACTS)
def test_what_a_schedule_does_besides_is_done_as_in_a_plain_loop(name: str, first: int) -> None:
    for pack in packs():
        captured = pack.graphs is not None  # a captured step follows a rate that is a tensor, without random numbers

        def built(seed: int, captured: bool = captured) -> Any:
            random.seed(seed)  # the schedule draws when it is made
            np.random.seed(seed)
            model, optimizer = make(seed, 0.0 if captured else 0.2, torch.tensor(0.01) if captured else 0.01)
            return model, optimizer, OfUser(optimizer, ACTS[name], first)

        members = []
        for seed in range(2):
            model, optimizer, schedule = built(seed)
            members.append(pack.load(model, optimizer, loss_fn, 15, schedule=schedule))
        given = data()  # other data would drop captured steps
        pack.train(given, epochs=4)
        pack.train(given, steps=3)
        for seed, member in enumerate(members):
            other, optimizer, schedule = built(seed)
            assert_equal(member, other, loop(other, optimizer, schedule, batches_of(member)))
        tiers = {member.tier for member in members}
        assert tiers == ({"graph" if captured else "fused"} if name == "harmless" else {"alone"}), pack.plan()


def test_a_schedule_that_draws_is_given_up_at_its_first_draw() -> None:
    """The steps before it are taken by the stack."""
    pack = Pack("cpu", rates=AlwaysPays())
    for seed in range(2):
        model, optimizer = make(seed)
        pack.load(model, optimizer, loss_fn, 15, schedule=OfUser(optimizer, ACTS["NumPy's generator"], 15))
    pack.train(data(), steps=9)
    assert {member.tier for member in pack.members} == {"fused"}, pack.plan()
    pack.train(data(), steps=21)
    assert "draws random numbers on the host" in pack.plan()[0].reason


class OwnNames(torch.optim.Optimizer):
    """Keeps its states under names, not under parameters, each with the same inner name."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            state = self.state[f"slow {number}"]
            slow = state.setdefault("slow", parameter.detach().clone())
            parameter.add_(parameter.grad, alpha=-self.param_groups[0]["lr"])
            slow.lerp_(parameter, 0.1)
            parameter.lerp_(slow, 0.3)


def test_states_under_other_names_than_parameters_are_compared_and_put_back() -> None:
    for pack in packs():
        members = [pack.load(model := mlp(i), OwnNames(model.parameters(), 0.1), loss_fn, 15) for i in range(2)]
        pack.train(data(), epochs=4)
        for seed, member in enumerate(members):
            other = mlp(seed)
            assert_equal(member, other, loop(other, OwnNames(other.parameters(), 0.1), None, batches_of(member)))


def test_a_rate_that_becomes_a_tensor_dissolves_a_stack() -> None:
    pack = Pack("cpu", rates=AlwaysPays())
    members = [pack.load(*make(seed), loss_fn, 15) for seed in range(3)]
    pack.train(data(), epochs=2)
    assert {member.tier for member in members} == {"fused"}, pack.plan()
    for member in members:
        member.optimizer.param_groups[0]["lr"] = torch.tensor(0.0123)
    pack.train(data(), epochs=2)
    for seed, member in enumerate(members):
        model, optimizer = make(seed)
        batches = batches_of(member)
        losses = loop(model, optimizer, None, batches[:20])
        optimizer.param_groups[0]["lr"] = torch.tensor(0.0123)
        losses += loop(model, optimizer, None, batches[20:], seeded=False)
        assert_equal(member, model, losses)


class HoldsSettings(FreezingGraphs):
    """As a real graph, a replayed step runs the kernels that were chosen when it was captured."""

    def capture(self, stream: object, step: Any) -> Any:
        replay = super().capture(stream, step)
        enabled = torch.is_autocast_enabled("cpu")

        class Replayed:
            def replay(self) -> None:
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    replay.replay()

        return Replayed()


def test_a_setting_of_the_process_that_changes_between_calls_reaches_captured_steps() -> None:
    pack, given = Pack("cpu", tiers=("graph", "alone"), graphs=HoldsSettings(), rates=AlwaysPays()), data()
    members = [pack.load(*make(seed, dropout=0.0), loss_fn, 15) for seed in range(2)]
    pack.train(given, epochs=2)
    with torch.autocast("cpu", torch.bfloat16):
        pack.train(given, epochs=2)
    assert {member.tier for member in members} == {"graph"}, pack.plan()
    for seed, member in enumerate(members):
        model, optimizer = make(seed, dropout=0.0)
        losses = loop(model, optimizer, None, batches_of(member)[:20])
        with torch.autocast("cpu", torch.bfloat16):
            losses += loop(model, optimizer, None, batches_of(member)[20:], seeded=False)
        assert_equal(member, model, losses)


def test_a_stack_that_is_far_from_the_steps_alone_is_refused_also_where_it_may_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = RULES[F.relu]
    for factor, tier in ((1.00001, "fused"), (1.5, "alone")):

        def scaled(x: Any, factor: float = factor, **options: Any) -> Any:
            return stacked(underlying(right(x, **options)) * factor)

        monkeypatch.setitem(RULES, F.relu, scaled)
        pack = Pack("cpu", numerics="fast", rates=AlwaysPays())
        for seed in range(2):
            pack.load(*make(seed), loss_fn, 15)
        pack.train(data(), epochs=1)
        assert {member.tier for member in pack.members} == {tier}, pack.plan()


class Bounded(nn.Module):
    """Gives a parameter by name to an operation on elements."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner, self.low, self.outer = nn.Linear(12, 16), nn.Parameter(torch.randn(16)), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.clamp(self.inner(x), min=self.low))


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_operands_by_name_are_not_mistaken_for_members(numerics: Any) -> None:
    pack = Pack("cpu", numerics=numerics, rates=AlwaysPays())
    members = []
    for seed in range(15):  # as many as rows
        model = Bounded(seed)
        members.append(pack.load(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, 15))
    pack.train(data(), epochs=1)
    for seed, member in enumerate(members):
        other = Bounded(seed)
        assert_equal(member, other, loop(other, torch.optim.SGD(other.parameters(), lr=0.1), None, batches_of(member)))
