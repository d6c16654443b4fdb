"""Members to pack, the plain loop that each must equal, and a capture that needs no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from regatta.frameworks.torch import framework
from regatta.pack import Member, Pack, Rates
from regatta.pack.rates import PackTiming
from regatta.pack.state.member_state import same_bits

ROWS = 150
Made = tuple[nn.Module, torch.optim.Optimizer]


class AlwaysPays(Rates):
    """Packs are kept, however busy the machine is that measures them."""

    def get(self, key: Any) -> PackTiming:
        return PackTiming(together=1.0, in_turn=2.0)


def data(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    return torch.randn(rows, 12, generator=made), torch.randint(4, (rows,), generator=made)


def loss_fn(model: nn.Module, batch: Any, config: Any = None) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def mlp(seed: int, act: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0, width: int = 16) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, width), act(), nn.Dropout(dropout), nn.Linear(width, 4))


def adam(model: nn.Module, lr: float = 1e-2, **options: Any) -> Made:
    return model, torch.optim.Adam(model.parameters(), lr=lr, **options)


def sgd(model: nn.Module, lr: Any = 0.1, **options: Any) -> Made:
    return model, torch.optim.SGD(model.parameters(), lr=lr, **options)


def trained_alone(
    made: Made, batches: Sequence[Sequence[np.ndarray]], seed: int, given: Any = None, schedule: Any = None
) -> tuple[framework.TorchTrainee, list[float]]:
    """What a unit does: the framework's train verb, one call per list of batches, under one seed."""
    trainee = framework.assemble((*made, None if schedule is None else {"step": schedule}), "cpu")
    held = framework.prepare(given if given is not None else data(), "cpu")
    with framework.seeded(seed):
        losses = [framework.train(trainee, held, part, loss_fn, {})["loss"] for part in batches]
    return trainee, losses


def assert_same(member: Member, trainee: framework.TorchTrainee) -> None:
    """Every parameter, buffer and optimizer value, bit for bit."""
    ours = {"model": member.model.state_dict(), "optimizer": member.optimizer.state_dict()}
    assert trainee.optimizer is not None
    theirs = {"model": trainee.model.state_dict(), "optimizer": trainee.optimizer.state_dict()}
    one, other = flat(ours), flat(theirs)
    assert one.keys() == other.keys()
    different = [name for name in one if not _equal(one[name], other[name])]
    assert different == [], f"{member}: {different}"


def flat(tree: Any, place: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for name, part in tree.items() for k, v in flat(part, f"{place}/{name}").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, part in enumerate(tree) for k, v in flat(part, f"{place}/{i}").items()}
    return {place: tree}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return same_bits(one, other)
    return bool(one == other)


def epochs_of(member: Member, count: int, rows: int = ROWS) -> list[Sequence[np.ndarray]]:
    return [member.order(rows, epoch) for epoch in range(count)]


class Replayed:
    """A captured step that runs the function again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def replay(self) -> None:
        self.step()


class FakeGraphs:
    """Capture without a GPU: what was captured runs when it is replayed, as often as it is."""

    def __init__(self) -> None:
        self.captured = self.joined = 0

    def stream(self) -> object:
        return object()

    def on_stream(self, stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def fork(self, streams: Iterable[object]) -> None: ...

    def join(self, streams: Iterable[object]) -> None: ...

    def synchronize(self) -> None: ...

    def capture(self, stream: object, step: Callable[[], None]) -> Any:
        self.captured += 1
        return Replayed(step)

    def replay_many(self, parts: Sequence[tuple[Any, Any, int]], rounds: int) -> None:
        for _ in range(rounds):
            for _, step, count in parts:
                for _ in range(count):
                    step.replay()

    def stream_id(self, stream: object) -> int:
        return id(stream)

    def join_steps(self, branches: Sequence[Sequence[tuple[Any, int]]]) -> Any:
        self.joined += 1
        return Replayed(
            lambda: self.replay_many([(None, step, count) for branch in branches for step, count in branch], 1)
        )


class FreezingGraphs(FakeGraphs):
    """As a real graph, a replayed step computes with the constants of its capture: all that is not a tensor."""

    def capture(self, stream: object, step: Any) -> Any:
        self.captured += 1
        (member,) = step.__self__.track.members
        places = [*member.optimizer.param_groups, *(vars(module) for module in member.model.modules())]
        held = [{k: v for k, v in place.items() if isinstance(v, bool | int | float | str | tuple)} for place in places]

        def replay() -> None:
            present = [{name: place[name] for name in values} for place, values in zip(places, held, strict=True)]
            for place, values in zip(places, held, strict=True):
                place.update(values)
            try:
                step()
            finally:
                for place, values in zip(places, present, strict=True):
                    place.update(values)

        return Replayed(replay)


def graph_pack(graphs: FakeGraphs | None = None, **options: Any) -> Pack:
    return Pack("cpu", tiers=("graph", "alone"), graphs=graphs or FakeGraphs(), **options)
