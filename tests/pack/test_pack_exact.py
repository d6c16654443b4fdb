"""A member gets the same bits as by the framework's `train` alone, in every tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pack_cases import (
    ROWS,
    FakeGraphs,
    Made,
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

import regatta
from regatta.pack import Pack

pytestmark = pytest.mark.usefixtures("one_thread")

optim = torch.optim
OPTIMIZERS: dict[str, Callable[[int], Callable[[Any], optim.Optimizer]]] = {
    "sgd": lambda i: lambda p: optim.SGD(p, lr=0.05 * (i + 1)),
    "momentum": lambda i: lambda p: optim.SGD(p, lr=0.05, momentum=0.5 + 0.1 * i),
    "nesterov": lambda i: (
        lambda p: optim.SGD(p, lr=0.05 * (i + 1), momentum=0.9, nesterov=True, weight_decay=0.01 * (i + 1))
    ),
    "adam": lambda i: lambda p: optim.Adam(p, lr=1e-3 * (i + 1)),
    "adam, all its own": lambda i: (
        lambda p: optim.Adam(
            p, lr=1e-3 * (i + 1), betas=(0.8 + 0.02 * i, 0.9 + 0.02 * i), eps=1e-7 * (i + 1), weight_decay=0.1 * (i + 1)
        )
    ),
    "adamw": lambda i: lambda p: optim.AdamW(p, lr=1e-3 * (i + 1), weight_decay=0.01 * (i + 1)),
    "adagrad": lambda i: lambda p: optim.Adagrad(p, lr=0.01 * (i + 1), weight_decay=0.1),
    "rmsprop": lambda i: lambda p: optim.RMSprop(p, lr=1e-3 * (i + 1), alpha=0.9 + 0.02 * i),
    "rmsprop, momentum": lambda i: lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.5, weight_decay=0.1, eps=1e-7),
    "rmsprop, all its own": lambda i: lambda p: optim.RMSprop(p, lr=1e-3 * (i + 1), momentum=0.5 + 0.1 * i),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_stack_equals_its_members_alone(name: str, dropout: float) -> None:
    def make(i: int) -> Made:
        model = mlp(i, dropout=dropout)
        return model, OPTIMIZERS[name](i)(model.parameters())

    pack = Pack("cpu")
    members = [pack.load(*make(i), loss_fn, 16, seed=i) for i in range(4)]
    pack.train(data(), epochs=2)  # 150 rows: the last batch of an epoch has 6
    pack.train(data(), epochs=1)
    assert {placement.tier for placement in pack.plan()} == {"fused"}, pack.plan()
    for i, member in enumerate(members):
        trainee, losses = trained_alone(make(i), epochs_of(member, 3), seed=i)
        assert_same(member, trainee)
        assert member.mean_loss == losses[-1]
        assert (member.epoch, member.batch, member.taken) == (3, 0, 30)


def layers(seed: int) -> nn.Module:
    """Some layers have a kernel for all members, others run member by member."""
    torch.manual_seed(seed)
    norms = nn.LayerNorm(12), nn.GroupNorm(2, 4)
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    conv = nn.Conv1d(1, 4, 3, padding=1)
    return nn.Sequential(norms[0], nn.Unflatten(1, (1, 12)), conv, norms[1], nn.GELU(), nn.Flatten(), nn.Linear(48, 4))


def test_normalised_and_convolved_members_are_stacked_and_exact() -> None:
    pack = Pack("cpu")
    members = [pack.load(*adam(layers(i), 1e-3 * (1 + i)), loss_fn, 16) for i in range(5)]
    pack.train(data(), steps=18)
    assert {m.tier for m in members} == {"fused"}, pack.plan()
    for i, member in enumerate(members):
        trainee, _ = trained_alone(
            adam(layers(i), 1e-3 * (1 + i)), [[*member.order(ROWS, 0), *member.order(ROWS, 1)][:18]], 0
        )
        assert_same(member, trainee)


def batch_norm(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


CASES: dict[str, Callable[[], Made]] = {
    "wide": lambda: sgd(mlp(0, width=32)),
    "momentum": lambda: sgd(mlp(1, nn.Tanh), momentum=0.9),
    "batch norm": lambda: adam(batch_norm(2)),
    "adagrad": lambda: (m := mlp(3), torch.optim.Adagrad(m.parameters(), lr=0.1)),
    "tensor rate": lambda: sgd(mlp(4), lr=torch.tensor(0.2)),
}
BATCHES = dict(zip(CASES, (16, 20, 33, 7, 15), strict=True))


@pytest.mark.parametrize("graphs", [False, True])
def test_any_mix_is_exact_while_members_join_and_leave(graphs: bool) -> None:
    pack = graph_pack() if graphs else Pack("cpu")
    members, epochs = {}, dict.fromkeys(CASES, 0)

    def load(name: str, **more: Any) -> None:
        members[name] = pack.load(*CASES[name](), loss_fn, BATCHES[name], name=name, **more)

    def train(count: int) -> None:
        pack.train(data(), epochs=count)
        for member in pack.members:
            epochs[member.name] += count

    for name in ("wide", "momentum", "batch norm"):
        load(name)
    train(3)
    kept = {name: pack.free(name) for name in ("wide", "batch norm")}
    for name in ("adagrad", "tensor rate"):
        load(name)
    train(2)
    load("batch norm", state=kept["batch norm"])
    train(2)
    assert epochs == {"wide": 3, "momentum": 7, "batch norm": 5, "adagrad": 4, "tensor rate": 4}
    for name, member in members.items():
        trainee, _ = trained_alone(CASES[name](), epochs_of(member, epochs[name]), seed=0)
        assert_same(member, trainee)
    if graphs:
        assert [m.tier for m in pack.members] == ["graph"] * 4, pack.plan()


@pytest.mark.parametrize("graphs", [False, True])
def test_a_schedule_advances_with_every_step(graphs: bool) -> None:
    def make() -> tuple[Made, Any]:
        made = sgd(mlp(0), lr=torch.tensor(0.5) if graphs else 0.5)
        return made, torch.optim.lr_scheduler.ExponentialLR(made[1], 0.95)

    (model, optimizer), schedule = make()
    pack = graph_pack() if graphs else Pack("cpu")
    member = pack.load(model, optimizer, loss_fn, 16, schedule=schedule)
    pack.train(data(), epochs=2)
    assert member.tier == ("graph" if graphs else "alone")
    made, other = make()
    trainee, _ = trained_alone(made, epochs_of(member, 2), 0, schedule=other)
    assert_same(member, trainee)
    assert float(optimizer.param_groups[0]["lr"]) == float(made[1].param_groups[0]["lr"])
    assert schedule.last_epoch == other.last_epoch == 20


def test_stacked_members_with_schedules_of_their_own() -> None:
    def make(i: int) -> tuple[Made, Any]:
        made = adam(mlp(i))
        return made, torch.optim.lr_scheduler.ExponentialLR(made[1], 0.9 + 0.02 * i)

    pack = Pack("cpu")
    built = [make(i) for i in range(3)]
    members = [pack.load(*made, loss_fn, 10, schedule=schedule) for made, schedule in built]
    pack.train(data(), epochs=2)
    assert {m.tier for m in members} == {"fused"}, pack.plan()
    for i, member in enumerate(members):
        made, schedule = make(i)
        trainee, _ = trained_alone(made, epochs_of(member, 2), 0, schedule=schedule)
        assert_same(member, trainee)


def test_each_member_has_its_own_order_and_number_of_batches() -> None:
    pack = graph_pack()
    turned = pack.load(
        *sgd(mlp(0)), loss_fn, 10, order=lambda rows, epoch: [torch.arange(rows).numpy()[::-1][:10].copy()] * 5
    )
    other = pack.load(*sgd(mlp(0)), loss_fn, 30, steps=12)
    pack.train(data(), steps={turned: 25})
    pack.train(data(), steps=20)
    assert (turned.taken, turned.epoch, other.taken, other.done) == (45, 9, 12, True)
    pack.train(data(), samples=90)
    assert (turned.taken, other.taken) == (54, 12)
    trainee, _ = trained_alone(sgd(mlp(0)), [list(turned.order(ROWS, 0))[:1] * 54], 0)
    assert_same(turned, trainee)
    trainee, _ = trained_alone(sgd(mlp(0)), [[b for e in epochs_of(other, 3) for b in e][:12]], 0)
    assert_same(other, trainee)


def test_clipping_and_loss_scaling_are_per_member() -> None:
    def plain(seed: int, clip: float | None, scale: float | None) -> nn.Module:
        model, optimizer = sgd(mlp(seed))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
        x, y = data()
        for rows in (b for e in epochs_of(clipped, 2) for b in e):
            optimizer.zero_grad()
            loss = loss_fn(model, (x[rows], y[rows]))
            (scaler.scale(loss) if scaler else loss).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        return model

    pack = Pack("cpu")
    clipped = pack.load(*sgd(mlp(0)), loss_fn, 16, clip_norm=0.05)
    looser = pack.load(*sgd(mlp(1)), loss_fn, 16, clip_norm=0.6)
    scaled = pack.load(*sgd(mlp(0)), loss_fn, 16, scaler=torch.amp.GradScaler("cpu", init_scale=64.0))
    free = pack.load(*sgd(mlp(0)), loss_fn, 16)
    pack.train(data(), epochs=2)
    assert [m.tier for m in pack.members] == ["fused", "fused", "alone", "alone"], pack.plan()
    alone = plain(0, 0.05, None), plain(1, 0.6, None), plain(0, None, 64.0), plain(0, None, None)
    for member, model in zip((clipped, looser, scaled, free), alone, strict=True):
        for ours, theirs in zip(member.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert not torch.equal(clipped.model[0].weight, free.model[0].weight)


def test_data_of_another_partition_is_trained_on_without_a_new_capture() -> None:
    graphs = FakeGraphs()
    pack = graph_pack(graphs)
    member = pack.load(*sgd(mlp(0)), loss_fn, 15)
    parts = [tuple(t[start : start + 150] for t in data(600)) for start in (0, 150, 300, 450)]
    before = [tuple(t.clone() for t in part) for part in parts]
    captures = []
    for part in parts:
        pack.train(part, epochs=1)
        captures.append(graphs.captured)
    assert captures == [1, 2, 2, 2]  # the first data lies where the caller has it, then there is a buffer
    assert all(
        torch.equal(a, b) for one, other in zip(parts, before, strict=True) for a, b in zip(one, other, strict=True)
    )
    made = sgd(mlp(0))
    for epoch, part in enumerate(parts):
        trainee, _ = trained_alone(made, [member.order(150, epoch)], 0, given=part)
    assert_same(member, trainee)


def test_preprocessing_runs_once_for_all_members() -> None:
    calls = []

    def scale(given: Any) -> Any:
        calls.append(1)
        return given[0].float() / 255, given[1]

    raw = (torch.randint(256, (60, 12), dtype=torch.uint8), torch.randint(4, (60,)))
    pack = Pack("cpu", transform=scale)
    for i in range(3):
        pack.load(*sgd(mlp(i, width=8 + i)), loss_fn, 20)
    for _ in range(3):
        pack.train(raw, epochs=1)
    assert len(calls) == 1
    trainee, _ = trained_alone(sgd(mlp(0, width=8)), epochs_of(pack.members[0], 3, 60), 0, given=(raw[0] / 255, raw[1]))
    assert_same(pack.members[0], trainee)


def test_pack_is_a_public_name() -> None:
    assert regatta.Pack is Pack
