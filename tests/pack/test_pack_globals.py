"""Code of users that counts in globals, by whatever way it reaches them: objects, classes, modules, other functions."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from pack_cases import AlwaysPays, FreezingGraphs, adam, data, loss_fn, mlp
from torch import nn

from regatta.pack import Pack
from regatta.pack.state.member_state import same_bits

pytestmark = pytest.mark.usefixtures("one_thread")


def packs() -> list[tuple[Pack, int]]:
    """One that stacks two members, and one that captures one: then a plain loop says what its weights are."""
    graphs = Pack("cpu", tiers=("graph", "alone"), graphs=FreezingGraphs(), rates=AlwaysPays())
    return [(Pack("cpu", rates=AlwaysPays()), 2), (graphs, 1)]


@dataclass
class Counter:
    calls: int = 0


class Slots:
    __slots__ = ("calls",)


class OfClass:
    calls = 0

    @staticmethod
    def count() -> int:
        OfClass.calls += 1
        return OfClass.calls


@dataclass
class Tree:
    """Holds its number far down."""

    inner: Any = field(default_factory=list)


calls = 0
counter, namespace, local, slots = Counter(), types.SimpleNamespace(calls=0), threading.local(), Slots()
array, tensor, variable = np.zeros(2), torch.zeros(2), ContextVar("calls", default=0)
module = types.ModuleType("helpers")
tree = Tree([Tree([Tree([Tree([Tree([Tree([0])])])])])])
rebound = torch.zeros(())


def count_globally() -> int:
    global calls
    calls += 1
    return calls


def helpers_count() -> int:
    module.calls += 1
    return int(module.calls)


def count_object() -> int:
    counter.calls += 1
    return counter.calls


def count_slot() -> int:
    slots.calls += 1
    return int(slots.calls)


def count_namespace() -> int:
    namespace.calls += 1
    return int(namespace.calls)


def count_local() -> int:
    local.calls += 1
    return int(local.calls)


def count_array() -> int:
    array[0] += 1
    return int(array[0])


def count_tensor() -> int:
    tensor.add_(1)
    return int(tensor[0])


def count_variable() -> int:
    variable.set(variable.get() + 1)
    return variable.get()


def count_far_down() -> int:
    leaf = tree
    while isinstance(leaf.inner[0], Tree):
        leaf = leaf.inner[0]
    leaf.inner[0] += 1
    return int(leaf.inner[0])


def count_rebound() -> int:
    global rebound
    rebound = rebound + 1
    return int(rebound)


def count_named() -> int:
    return int(module.count())


COUNTS: dict[str, Callable[[], int]] = {
    "a helper's global": count_globally,
    "an object": count_object,
    "a class": OfClass.count,
    "slots": count_slot,
    "a namespace": count_namespace,
    "a local of the thread": count_local,
    "an array": count_array,
    "a tensor": count_tensor,
    "a tensor that is replaced": count_rebound,
    "a context variable": count_variable,
    "a module": helpers_count,
    "a function of a module": count_named,
    "objects in objects": count_far_down,
}


def reset() -> None:
    global calls, rebound
    calls, counter.calls, OfClass.calls, slots.calls, namespace.calls, local.calls = 0, 0, 0, 0, 0, 0
    rebound = torch.zeros(())
    array[:], module.calls, module.count = 0, 0, helpers_count
    tensor.zero_()
    variable.set(0)
    count_far_down()
    leaf = tree
    while isinstance(leaf.inner[0], Tree):
        leaf = leaf.inner[0]
    leaf.inner[0] = 0
    Wrapped.count = staticmethod(lambda: 0)


class Wrapped(nn.Module):
    """Counts in its forward pass."""

    count: Callable[[], int] = staticmethod(lambda: 0)

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = mlp(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (1 + 0.01 * type(self).count())


def in_loss(count: Callable[[], int]) -> tuple[Callable[[int], nn.Module], Callable[..., torch.Tensor]]:
    return mlp, lambda model, batch: loss_fn(model, batch) * (1 + 0.01 * count())


def in_forward(count: Callable[[], int]) -> tuple[Callable[[int], nn.Module], Callable[..., torch.Tensor]]:
    Wrapped.count = staticmethod(count)
    return Wrapped, loss_fn


@pytest.mark.parametrize("place", [in_loss, in_forward])
@pytest.mark.parametrize("name", COUNTS)
def test_each_step_counts_once(name: str, place: Any) -> None:
    for pack, members in packs():
        reset()
        make, loss = place(COUNTS[name])
        for seed in range(members):
            pack.load(*adam(make(seed)), loss, 15)
        pack.train(data(), epochs=3)
        pack.train(data(), steps=4)
        assert COUNTS[name]() == 1 + sum(member.taken for member in pack.members), pack.plan()
        if members > 1:
            continue
        reset()
        model, optimizer = adam(place(COUNTS[name])[0](0))
        given = data()
        for rows in [rows for epoch in range(4) for rows in pack.members[0].order(150, epoch)][:34]:
            optimizer.zero_grad(set_to_none=True)
            loss(model, tuple(part[torch.from_numpy(rows)] for part in given)).backward()
            optimizer.step()
        pairs = zip(model.parameters(), pack.members[0].model.parameters(), strict=True)
        assert all(same_bits(one, other) for one, other in pairs), pack.plan()
