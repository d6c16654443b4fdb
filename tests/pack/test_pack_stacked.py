"""What may be computed on a stack, what may not, and what makes members group_alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pack_cases import adam, assert_same, data, epochs_of, loss_fn, mlp, sgd, trained_alone
from torch import nn

from regatta.pack import Pack
from regatta.pack.fingerprint import fingerprint
from regatta.pack.stacked.stack import Stack
from regatta.pack.stacked.tensors import NotStackable, _sum_order_is_known, kernel_settings, stacked, underlying

pytestmark = pytest.mark.usefixtures("one_thread")

SAME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "leaky": functools.partial(F.leaky_relu, negative_slope=0.2),
    "scaled": lambda x: 2 * x - 1,
    "squared": lambda x: (x**2 + x * x) / 3,
    "flattened": lambda x: x.flatten(1),
    "viewed": lambda x: x.view(x.shape[0], -1) if x.dim() == 3 else x,
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(),
    "with a row": lambda x: x + torch.arange(5.0),
}


@pytest.mark.parametrize("name", SAME)
def test_a_stacked_operation_equals_that_of_each_member_alone(name: str) -> None:
    x = torch.randn(3, 4, 2, 5)
    found = underlying(SAME[name](stacked(x.clone())))
    for one, alone in zip(found, x, strict=True):
        assert torch.equal(one, SAME[name](alone))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.argmax(),
        lambda x: x.mean(0),
        lambda x: x.item(),
        lambda x: F.relu(x, inplace=True),
        lambda x: x[0],
        lambda x: torch.cat([x, x]),
        lambda x: x.add_(1),
        lambda x: bool(x.sum() > 0),
        lambda x: x + torch.zeros(9, 9, 9, 9),
    ],
)
def test_operations_without_a_rule_are_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(NotStackable):
        function(stacked(torch.randn(3, 4, 2)))


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40, 64, 130, 300])
def test_losses_are_summed_in_the_order_of_one_member(count: int) -> None:
    assert _sum_order_is_known(count, kernel_settings(torch.zeros(1)))


def test_ignored_targets_count_as_for_a_single_model() -> None:
    x, y = data()
    y = torch.where(torch.arange(len(y)) % 5 == 0, -100, y)
    pack = Pack("cpu")
    members = [pack.load(*adam(mlp(i)), loss_fn, 16) for i in range(2)]
    pack.train((x, y), epochs=2)
    assert {m.tier for m in members} == {"fused"}
    for i, member in enumerate(members):
        trainee, _ = trained_alone(adam(mlp(i)), epochs_of(member, 2), 0, given=(x, y))
        assert_same(member, trainee)


def squared(model: nn.Module, batch: Any, config: Any = None) -> torch.Tensor:
    return F.mse_loss(model(batch[0]), F.one_hot(batch[1], 4).float() if config is None else batch[2])


def test_regression_is_exact_too() -> None:
    x, y = data()
    given = (x, y, F.one_hot(y, 4).float())
    pack = Pack("cpu")
    members = [pack.load(*sgd(mlp(i)), squared, 16, config={"n": i}) for i in range(2)]
    pack.train(given, epochs=2)
    assert {m.tier for m in members} == {"fused"}, pack.plan()
    for i, member in enumerate(members):
        model, optimizer = sgd(mlp(i))
        for rows in (b for e in epochs_of(member, 2) for b in e):
            optimizer.zero_grad()
            squared(model, tuple(part[rows] for part in given), {}).backward()
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), member.model.parameters(), strict=True))


def smoothed(model: nn.Module, batch: Any, config: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]) / config["heat"], batch[1])


@pytest.mark.parametrize(("heats", "tier"), [((2.0, 2.0), "fused"), ((2.0, 3.0), "alone")])
def test_members_must_agree_on_what_the_loss_reads_of_their_configurations(heats: Any, tier: str) -> None:
    pack = Pack("cpu")
    members = [pack.load(*sgd(mlp(i)), smoothed, 16, config={"heat": h, "lr": i}) for i, h in enumerate(heats)]
    pack.train(data(), epochs=2)
    assert {m.tier for m in members} == {tier}, pack.plan()
    if tier == "alone":
        assert "heat" in members[0].reason


def test_a_forced_stack_of_unlike_members_is_detected() -> None:
    """Both would be trained as the first; the proof compares each with itself alone."""
    pack = Pack("cpu")
    pair = [pack.load(*adam(mlp(i, kind)), loss_fn, 16) for i, kind in enumerate((nn.ReLU, nn.Tanh))]
    pack.train(data(), steps=1)
    stack = Stack(pair)
    with stack.stepping():
        found = stack.check(pack.device_data, [member.order(150, 0)[1] for member in pair], range(2))
    assert found.difference is not None


class Gate(nn.Module):
    def __init__(self, act: Any, size: int = 4) -> None:
        super().__init__()
        self.act, self.inner = act, nn.Linear(12, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.inner(x))


def one(model: nn.Module, **changes: Any) -> Any:
    made = {"loss_fn": loss_fn, "batch_size": 16, **changes}
    return fingerprint(Pack("cpu").load(*sgd(model), **made))


def test_fingerprints_differ_for_different_computations() -> None:
    plain = one(Gate(torch.relu))
    assert plain == one(Gate(torch.relu))
    assert one(mlp(0)) == one(mlp(1))
    hooked = Gate(torch.relu)
    hooked.register_forward_hook(lambda *_: None)
    frozen = Gate(torch.relu)
    frozen.inner.bias.requires_grad_(False)
    others = [Gate(torch.tanh), Gate(torch.relu, 5), Gate(lambda x: x), hooked, frozen]
    assert all(one(other) != plain for other in others)
    assert one(Gate(torch.relu), batch_size=8) != plain
    assert one(Gate(torch.relu), loss_fn=lambda m, b: loss_fn(m, b)) != plain
    assert one(mlp(0, dropout=0.1)) != one(mlp(0, dropout=0.2))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda i: adam(mlp(i), amsgrad=True), "amsgrad"),
        (lambda i: sgd(nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))), "buffers"),
        (lambda i: (m := mlp(i), torch.optim.RMSprop(m.parameters(), centered=True)), "centered"),
        (lambda i: (m := mlp(i), torch.optim.Adadelta(m.parameters())), "Adadelta"),
        (lambda i: sgd(mlp(i), weight_decay=0.1 * i), "weight decay"),
        (lambda i: sgd(nn.Sequential(nn.Linear(12, 4), nn.RReLU())), "rrelu"),
    ],
)
def test_models_that_cannot_be_stacked_train_alone_with_a_reason(make: Any, why: str) -> None:
    pack = Pack("cpu")
    members = [pack.load(*make(i), loss_fn, 16) for i in range(2)]
    pack.train(data(), epochs=2)
    assert all(m.tier == "alone" and "do not pack" in m.reason and why in m.reason for m in members), pack.plan()
