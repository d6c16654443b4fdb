"""Which Python values are watched, and put back."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regatta.pack.state.python_state import MAX_ARRAY_BYTES, PythonState

count_of_calls = 0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        self.register_buffer("mean", torch.zeros(2))
        self.calls, self.seen, self.options = 0, [1.0], {"deep": {"rate": 0.5}}
        self.scale, self.table = torch.tensor(1.0), torch.ones(3)
        self.queue, self.names = deque([1, 2]), {"a"}
        self.random, self.generator = random.Random(0), torch.Generator().manual_seed(0)
        self.drawn, self.array = np.random.default_rng(0), np.zeros(3)
        self.settings = SimpleNamespace(size=1)


def _count_globally(model: Model) -> None:
    global count_of_calls
    count_of_calls += 1


def _delete_calls(model: Model) -> None:
    del model.calls


CHANGES: dict[str, Callable[[Model], Any]] = {
    "a number": lambda m: setattr(m, "calls", m.calls + 1),
    "a new attribute": lambda m: setattr(m, "late", 1),
    "a deleted attribute": _delete_calls,
    "the rate of a part": lambda m: setattr(m.inner[1], "p", 0.1),
    "evaluation": lambda m: m.inner.eval(),
    "a list": lambda m: m.seen.append(2.0),
    "an item of a list": lambda m: m.seen.__setitem__(0, 3.0),
    "a dict in a dict": lambda m: m.options["deep"].update(rate=1),
    "a set": lambda m: m.names.add("b"),
    "a deque": lambda m: m.queue.rotate(),
    "an object": lambda m: setattr(m.settings, "size", 2),
    "a tensor with one number": lambda m: m.scale.mul_(2),
    "a small tensor": lambda m: m.table.add_(1),
    "an array": lambda m: m.array.__setitem__(0, 1.0),
    "Python's generator": lambda m: m.random.random(),
    "PyTorch's generator": lambda m: torch.rand(1, generator=m.generator),
    "NumPy's generator": lambda m: m.drawn.random(),
    "a frozen parameter": lambda m: m.inner[0].bias.requires_grad_(False),
    "another part": lambda m: m.inner.append(nn.ReLU()),
    "another parameter": lambda m: setattr(m.inner[0], "bias", nn.Parameter(torch.zeros(2))),
    "another buffer": lambda m: setattr(m, "mean", torch.ones(2)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_put_back(name: str) -> None:
    model = Model()
    state = PythonState(model)
    assert state.first_change() is None
    CHANGES[name](model)
    assert state.first_change() is not None
    state.put_back()
    assert state.first_change() is None
    assert PythonState(model).first_change() is None


def test_training_changes_nothing_that_is_watched() -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.inner.parameters())
    model.inner(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = PythonState(model, optimizer)
    model.inner(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.mean.add_(1)  # type: ignore[operator, union-attr]
    assert state.first_change() is None


def test_a_large_tensor_is_seen_only() -> None:
    model = Model()
    model.table = torch.zeros(MAX_ARRAY_BYTES)
    state = PythonState(model)
    model.table.add_(1)
    assert state.first_change() == "a tensor in table of the module"
    state.put_back()
    assert state.first_change() is not None


def closure() -> Callable[[], int]:
    count = 0

    def call() -> int:
        nonlocal count
        count += 1
        return count

    return call


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls

    def method(self) -> int:
        return self()


def keyword(*, held: list[int] = [0]) -> int:  # noqa: B006 (this is what is tested)
    held[0] += 1
    return held[0]


def with_attribute() -> int:
    with_attribute.calls = getattr(with_attribute, "calls", 0) + 1  # type: ignore[attr-defined]
    return int(with_attribute.calls)  # type: ignore[attr-defined]


def with_global() -> int:
    global count_of_calls
    count_of_calls += 1
    return count_of_calls


@dataclasses.dataclass(frozen=True)
class Frozen:
    calls: list[int] = dataclasses.field(default_factory=lambda: [0])

    def __call__(self) -> int:
        self.calls[0] += 1
        return self.calls[0]


CODE: dict[str, Callable[[], Callable[[], int]]] = {
    "a closure": closure,
    "an object": Counter,
    "a method": lambda: Counter().method,
    "a partial function": lambda: functools.partial(Counter.__call__, Counter()),
    "a default": lambda: keyword,
    "an attribute of a function": lambda: with_attribute,
    "a global number": lambda: with_global,
    "a frozen dataclass": Frozen,
}


@pytest.mark.parametrize("name", CODE)
def test_what_a_function_counts_is_seen_and_put_back(name: str) -> None:
    function = CODE[name]()
    first = function()
    state = PythonState(code=[("loss_fn", function)])
    assert state.first_change() is None
    function()
    assert state.first_change() is not None
    state.put_back()
    assert function() == first + 1


def test_an_iterator_counts_as_changed() -> None:
    numbers = itertools.count()
    state = PythonState(code=[("loss_fn", lambda: next(numbers))])
    assert state.first_change() == "an iterator in numbers of loss_fn"
