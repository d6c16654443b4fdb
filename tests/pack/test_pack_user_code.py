"""Code of users that holds values of its own: loss functions, schedules, modules, and what is changed between calls."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pack_cases import AlwaysPays, FreezingGraphs, adam, data, loss_fn, mlp, sgd
from torch import nn

from regatta.pack import Member, Pack
from regatta.pack.state.member_state import same_bits

pytestmark = pytest.mark.usefixtures("one_thread")

schedules = torch.optim.lr_scheduler
global_calls = 0


def packs() -> list[Pack]:
    """One that stacks, and one that captures."""
    graphs = Pack("cpu", tiers=("graph", "alone"), graphs=FreezingGraphs(), rates=AlwaysPays())
    return [Pack("cpu", rates=AlwaysPays()), graphs]


@dataclass
class Case:
    """One model with the code that trains it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[..., torch.Tensor] = loss_fn
    schedule: Any = None

    def loop(self, batches: Any, given: Any) -> list[float]:
        """A plain loop."""
        losses = []
        for rows in batches:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss_fn(self.model, tuple(part[torch.from_numpy(rows)] for part in given))
            loss.backward()
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            losses.append(loss.item())
        return losses

    def load(self, pack: Pack) -> Member:
        return pack.load(self.model, self.optimizer, self.loss_fn, 15, schedule=self.schedule)


def tensors(case: Case) -> list[torch.Tensor]:
    states = (value for state in case.optimizer.state.values() for value in state.values())
    return [*case.model.parameters(), *(value for value in states if isinstance(value, torch.Tensor))]


def assert_equal(case: Case, other: Case, member: Member, losses: list[float]) -> None:
    assert member.error is None
    assert member.losses.tolist() == losses, member
    assert all(map(same_bits, tensors(case), tensors(other))), member


def compare(make: Callable[[int], Case], epochs: int = 4) -> list[Pack]:
    """Train two members in each kind of pack, in two calls, and compare them with plain loops."""
    found, given = packs(), data()  # other data would drop captured steps
    for pack in found:
        cases = [make(number) for number in range(2)]
        members = [case.load(pack) for case in cases]
        pack.train(given, epochs=epochs)
        pack.train(given, steps=3)
        for number, (case, member) in enumerate(zip(cases, members, strict=True)):
            other = make(number)
            batches = [rows for epoch in range(epochs + 1) for rows in member.order(150, epoch)][: member.taken]
            torch.manual_seed(0)  # the seed of a member
            assert_equal(case, other, member, other.loop(batches, given))
    return found


def scaled(factor: float, model: nn.Module, batch: Any) -> torch.Tensor:
    return loss_fn(model, batch) * (1 + 0.01 * factor)


def closure() -> Callable[..., torch.Tensor]:
    calls = 0

    def call(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return scaled(calls, model, batch)

    return call


def in_a_list() -> Callable[..., torch.Tensor]:
    seen: list[int] = []

    def call(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(1)
        return scaled(len(seen), model, batch)

    return call


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls += 1
        return scaled(self.calls, model, batch)


def later() -> Callable[..., torch.Tensor]:
    """Counts, and computes with it only after the first comparisons."""
    counting = Counting()

    def call(model: nn.Module, batch: Any) -> torch.Tensor:
        counting.calls += 1
        return scaled(max(0, counting.calls - 20), model, batch)

    return call


def drawing() -> Callable[..., torch.Tensor]:
    generator = random.Random(3)
    return lambda model, batch: scaled(generator.random(), model, batch)


def drawing_tensors() -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return lambda model, batch: loss_fn(model, (batch[0] * (1 + torch.rand(1, generator=generator)), batch[1]))


def iterating() -> Callable[..., torch.Tensor]:
    numbers = itertools.count()
    return lambda model, batch: scaled(next(numbers), model, batch)


def on_a_tensor() -> Callable[..., torch.Tensor]:
    running = torch.zeros(())

    def call(model: nn.Module, batch: Any) -> torch.Tensor:
        running.mul_(0.5).add_(1)
        return loss_fn(model, batch) * (1 + 0.1 * running)

    return call


LOSSES: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    "closure": closure,
    "list": in_a_list,
    "object": Counting,
    "method": lambda: Counting().__call__,
    "partial": lambda: functools.partial(Counting.__call__, Counting()),
    "later": later,
    "generator": drawing,
    "generator of tensors": drawing_tensors,
    "iterator": iterating,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_function_that_counts_is_called_by_each_member_alone(name: str) -> None:
    for pack in compare(lambda i: Case(*adam(mlp(i)), LOSSES[name]())):
        assert {member.tier for member in pack.members} == {"alone"}, pack.plan()


def test_a_loss_function_that_writes_a_tensor_is_never_stacked() -> None:
    stacked, _ = compare(lambda i: Case(*adam(mlp(i)), on_a_tensor()))
    assert {member.tier for member in stacked.members} == {"alone"}, stacked.plan()


def test_two_members_that_share_a_counting_loss_function_are_not_counted_twice() -> None:
    """Both orders of calls are possible; what counts is that each step called it once."""
    for pack in packs():
        counting = Counting()
        for number in range(2):
            pack.load(*adam(mlp(number)), counting, 15)
        pack.train(data(), epochs=4)
        assert counting.calls == sum(member.taken for member in pack.members)


def counting_rate() -> Callable[[int], float]:
    calls = 0

    def rate(step: int) -> float:
        nonlocal calls
        calls += 1
        return 1 / (1 + 0.1 * calls)

    return rate


def drawn_rate() -> Callable[[int], float]:
    generator = random.Random(4)
    return lambda step: generator.random()


def failing_at(last: int) -> Callable[[int], float]:
    def rate(step: int) -> float:
        if step > last:
            raise ValueError("no rate is known")
        return 0.9**step

    return rate


class RateAndDropout(schedules.LRScheduler):
    """Changes the module, too, at later steps."""

    def __init__(self, optimizer: Any, model: nn.Module) -> None:
        self.model = model
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        if self.last_epoch > 15:
            self.model[2].p = 0.1  # type: ignore[index, union-attr]
        return [0.1 * 0.97**self.last_epoch for _ in self.optimizer.param_groups]


SCHEDULES: dict[str, Callable[[Any, nn.Module], Any]] = {
    "counting": lambda o, m: schedules.LambdaLR(o, counting_rate()),
    "drawing": lambda o, m: schedules.LambdaLR(o, drawn_rate()),
    "of the module": RateAndDropout,
}


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_holds_values_of_its_own_is_followed(name: str, dropout: bool, tensor: bool) -> None:
    def make(number: int) -> Case:
        model, optimizer = sgd(mlp(number, dropout=0.5 * dropout), lr=torch.tensor(0.1) if tensor else 0.1)
        return Case(model, optimizer, schedule=SCHEDULES[name](optimizer, model))

    compare(make)


@pytest.mark.parametrize("tensor", [False, True])
def test_a_schedule_that_fails_stops_its_member_where_a_plain_loop_stops(tensor: bool) -> None:
    for pack in packs():
        members, others = [], []
        for number in range(2):
            model, optimizer = sgd(mlp(number), lr=torch.tensor(0.1) if tensor else 0.1)
            members.append(Case(model, optimizer, schedule=schedules.LambdaLR(optimizer, failing_at(25))).load(pack))
            model, optimizer = sgd(mlp(number), lr=torch.tensor(0.1) if tensor else 0.1)
            others.append(Case(model, optimizer, schedule=schedules.LambdaLR(optimizer, failing_at(25))))
        pack.train(data(), epochs=4)
        for member, other in zip(members, others, strict=True):
            assert isinstance(member.error, ValueError) and member.tier == "failed", pack.plan()
            with pytest.raises(ValueError, match="no rate"):
                other.loop([rows for epoch in range(4) for rows in member.order(150, epoch)], data())
            assert all(map(same_bits, member.model.parameters(), other.model.parameters()))


class MeanGradient(torch.autograd.Function):
    """Its backward pass does not know how many members its tensors hold."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (grad,) = grads
        return grad - grad.mean()


class Module(nn.Module):
    def __init__(self, seed: int, kind: str) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind, self.first, self.second = kind, nn.Linear(12, 12), nn.Linear(12, 12)
        if kind == "tied":
            self.second.weight = self.first.weight
        if kind == "transposed":
            self.second.weight = nn.Parameter(self.second.weight.detach().t().contiguous().t())
        if kind == "views":
            rows = torch.randn(24, 12)
            self.first.weight, self.second.weight = nn.Parameter(rows[:12]), nn.Parameter(rows[12:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = MeanGradient.apply(x) if self.kind == "own function" else F.relu(x)  # type: ignore[no-untyped-call]
        if self.kind == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return self.second(x).float()[:, :4]
        return self.second(x)[:, :4]


@pytest.mark.parametrize("kind", ["plain", "tied", "transposed", "views", "own function", "autocast"])
def test_modules_with_parameters_and_functions_of_their_own(kind: str) -> None:
    compare(lambda i: Case(*sgd(Module(i, kind), momentum=0.9)))


def test_double_precision_has_kernels_of_its_own() -> None:
    given = data()[0].double(), data()[1]
    for pack in packs():
        cases = [Case(*adam(mlp(number).double())) for number in range(2)]
        members = [case.load(pack) for case in cases]
        pack.train(given, epochs=3)
        for number, (case, member) in enumerate(zip(cases, members, strict=True)):
            other = Case(*adam(mlp(number).double()))
            batches = [rows for epoch in range(3) for rows in member.order(150, epoch)]
            assert_equal(case, other, member, other.loop(batches, given))


def _new_weights(case: Case) -> None:
    torch.manual_seed(3)
    case.model[0].weight.data = torch.randn(16, 12)  # type: ignore[index, union-attr]


def _new_moments(case: Case) -> None:
    for state in case.optimizer.state.values():
        state["exp_avg"] = torch.full_like(state["exp_avg"], 0.01)


def _load_optimizer(case: Case) -> None:
    state = case.optimizer.state_dict()
    case.optimizer.load_state_dict(
        {**state, "state": {k: {**v, "step": v["step"] + 5} for k, v in state["state"].items()}}
    )


def _new_group(case: Case) -> None:
    case.optimizer.param_groups[0] = {**case.optimizer.param_groups[0], "lr": 0.5}


def _freeze(case: Case) -> None:
    case.model[0].bias.requires_grad_(False)  # type: ignore[index, union-attr]


def _own_zero_grad(case: Case) -> None:
    original = case.optimizer.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        with torch.no_grad():
            for parameter in case.model.parameters():
                parameter.mul_(0.999)
        original(set_to_none)

    case.optimizer.zero_grad = zero_grad  # type: ignore[method-assign]


BETWEEN: dict[str, Callable[[Case], None]] = {
    "weights": _new_weights,
    "moments": _new_moments,
    "state of the optimizer": _load_optimizer,
    "group of the optimizer": _new_group,
    "frozen": _freeze,
    "zero_grad": _own_zero_grad,
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_a_user_replaces_between_two_calls_is_trained(name: str) -> None:
    given = data()
    for pack in packs():
        cases = [Case(*adam(mlp(number))) for number in range(2)]
        members = [case.load(pack) for case in cases]
        pack.train(given, epochs=2)
        for case in cases:
            BETWEEN[name](case)
        pack.train(given, epochs=2)
        for number, (case, member) in enumerate(zip(cases, members, strict=True)):
            other = Case(*adam(mlp(number)))
            losses = other.loop([rows for epoch in (0, 1) for rows in member.order(150, epoch)], given)
            BETWEEN[name](other)
            losses += other.loop([rows for epoch in (2, 3) for rows in member.order(150, epoch)], given)
            assert_equal(case, other, member, losses)


def test_data_that_is_changed_in_place_is_prepared_again() -> None:
    given, case, other = data(), Case(*sgd(mlp(0))), Case(*sgd(mlp(0)))
    pack = Pack("cpu", transform=lambda parts: (parts[0] * 2, parts[1]))
    member = case.load(pack)
    pack.train(given, epochs=1)
    losses = other.loop(member.order(150, 0), (given[0] * 2, given[1]))
    given[0].mul_(-1)
    pack.train(given, epochs=1)
    losses += other.loop(member.order(150, 1), (given[0] * 2, given[1]))
    assert_equal(case, other, member, losses)


def test_members_must_agree_on_values_that_some_of_them_lack() -> None:
    def with_default(model: nn.Module, batch: Any, config: Any) -> torch.Tensor:
        return loss_fn(model, batch) * config.get("factor", 1.0)

    pack = Pack("cpu", rates=AlwaysPays())
    configs = [{}, {"factor": 2.0}]
    members = [pack.load(*sgd(mlp(0)), with_default, 15, config=config) for config in configs]
    pack.train(data(), epochs=3)
    assert members[1].losses[0] == pytest.approx(2 * members[0].losses[0])
    for member, config in zip(members, configs, strict=True):
        other = Case(*sgd(mlp(0)), functools.partial(with_default, config=config))
        losses = other.loop([rows for epoch in range(3) for rows in member.order(150, epoch)], data())
        assert member.losses.tolist() == losses


NUMBERS_AS_TENSORS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "lr of Adam": lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.01)),
    "lr of AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.01)),
    "lr of SGD": lambda m: torch.optim.SGD(m.parameters(), lr=torch.tensor(0.1), momentum=0.9),
    "betas": lambda m: torch.optim.Adam(
        m.parameters(), lr=torch.tensor(0.01), betas=(torch.tensor(0.8), torch.tensor(0.99))
    ),
    "weight decay": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=torch.tensor(0.1)),
}


@pytest.mark.parametrize("name", NUMBERS_AS_TENSORS)
def test_hyperparameters_that_are_tensors_are_used_as_in_a_plain_loop(name: str) -> None:
    """Arithmetic with a tensor rounds to its precision, and that with a number does not."""

    def make(number: int) -> Case:
        model = mlp(number)
        return Case(model, NUMBERS_AS_TENSORS[name](model))

    stacked, captured = compare(make)
    assert all(member.tier == "alone" and "as a tensor" in member.reason for member in stacked.members), stacked.plan()
    assert {member.tier for member in captured.members} == {"graph"}, captured.plan()
