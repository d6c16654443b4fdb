"""Pack-aware Hyperband against the same search unpacked: R=81, eta=3, the 1,056 configurations of the paper's Table 3.

MLP-3 (three hidden layers of 512) on real CIFAR-10 images. One unit of R is 1,200 images instead of an epoch of 50,000.
All ways train the same configurations with the same batches from the same weights, and every one of them must find the
same losses to the last bit. The paper's three groupings go bracket after bracket, as the paper does; so does ours once,
and once with all brackets in one pool. Ours goes by what the pack has measured so far, on steps of the search itself.

    REGATTA_BENCH_DATA=folder python benchmarks/bench_pack_hyperband.py
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pack_models import need_gpu
from report import Bar, report
from torch import nn

import regatta.pack
from regatta.pack import Rates, capturable
from regatta.plan.papers.pack_grouping import (
    PackingCandidate,
    at_random,
    by_batch_size,
    by_rate,
    measured_seconds,
    nearest,
)

R, ETA = 81, 3
UNIT = int(os.environ.get("REGATTA_BENCH_UNIT", "1200"))  # images that stand for one epoch
LIMIT = 32  # members that the memory limit of all groupings holds
SPACE: dict[str, Sequence[Any]] = {
    "batch_size": list(range(20, 75, 5)),
    "optimizer": ["Adam", "SGD", "Adagrad", "Momentum"],
    "lr": [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
    "activation": ["Sigmoid", "LeakyReLU", "Tanh", "ReLU"],
}
Config = dict[str, Any]


def images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    path = Path(os.environ.get("REGATTA_BENCH_DATA", "")) / "cifar10_small.npz"
    if not path.exists():
        raise SystemExit("Set REGATTA_BENCH_DATA to a folder with cifar10_small.npz.")
    with np.load(path) as held:
        x, y, a, b = (torch.from_numpy(held[name]).cuda() for name in ("x_train", "y_train", "x_test", "y_test"))
    flat = [part.reshape(len(part), -1).float().div_(127.5).sub_(1) for part in (x, a)]
    return flat[0], y.long().reshape(-1), flat[1], b.long().reshape(-1)


def build(config: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    act = getattr(nn, config["activation"])
    sizes = [3072, 512, 512, 512]
    with torch.device("cuda"):  # drawn on the device, for all ways alike
        layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), act())]
        model = nn.Sequential(*layers, nn.Linear(512, 10))
    name, lr, parameters = config["optimizer"], config["lr"], model.parameters()
    made = {
        "Adam": lambda: torch.optim.Adam(parameters, lr=lr),
        "SGD": lambda: torch.optim.SGD(parameters, lr=lr),
        "Adagrad": lambda: torch.optim.Adagrad(parameters, lr=lr),
        "Momentum": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    }[name]()
    return model, capturable(made)


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@functools.cache
def batches_of(rows: int, size: int, epoch: int) -> list[np.ndarray]:
    taken = np.random.default_rng(epoch).permutation(rows)
    return [taken[start : start + size] for start in range(0, rows - size + 1, size)]


def steps_at(level: int, config: Config) -> int:
    """Steps after which a configuration has had this many units."""
    return int(-(-level * UNIT // config["batch_size"]))


class Plain:
    """The search unpacked: one model after another, nothing of ours but the form of the optimizers."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.models: dict[int, list[Any]] = {}

    def train(self, wanted: list[tuple[int, Config]], level: int) -> None:
        for key, config in wanted:
            if key not in self.models:
                self.models[key] = [*build(config), 0]
            model, optimizer, done = self.models[key]
            size, rows = config["batch_size"], len(self.data[0])
            until, per_epoch = steps_at(level, config), rows // size
            for k in range(done, until):
                taken = torch.from_numpy(batches_of(rows, size, k // per_epoch)[k % per_epoch]).cuda()
                optimizer.zero_grad(set_to_none=True)
                loss_fn(model, (self.data[0][taken], self.data[1][taken])).backward()
                optimizer.step()
            self.models[key][2] = until

    def model(self, key: int) -> nn.Module:
        return self.models[key][0]

    def drop(self, keys: list[int]) -> None:
        for key in keys:
            del self.models[key]


class Packed:
    """The search with packs: a grouping says which models train together."""

    def __init__(
        self, data: Any, grouping: Callable[[list[PackingCandidate], Rates], list[list[PackingCandidate]]]
    ) -> None:
        self.data, self.grouping = data, grouping
        self.pack = regatta.pack.Pack("cuda")
        self.members: dict[int, Any] = {}

    def train(self, wanted: list[tuple[int, Config]], level: int) -> None:
        for key, config in wanted:
            if key not in self.members:
                size = config["batch_size"]
                order = functools.partial(lambda size, rows, epoch: batches_of(rows, size, epoch), size)
                self.members[key] = self.pack.load(*build(config), loss_fn, size, order=order, name=str(key))
        left = {str(k): steps_at(level, c) - self.members[k].taken for k, c in wanted}
        candidates = [PackingCandidate(str(k), c, 1, left[str(k)], "mlp") for k, c in wanted]
        for group in self.grouping(candidates, self.pack.rates):
            self.pack.train(self.data, steps={self.members[int(c.name)]: c.steps for c in group})

    def model(self, key: int) -> nn.Module:
        return self.members[key].model

    def drop(self, keys: list[int]) -> None:
        for key in keys:
            self.pack.free(self.members.pop(key))


def brackets() -> list[tuple[int, list[tuple[int, Config]]]]:
    """(units of the first rung, the configurations) of every bracket, drawn without replacement."""
    every = [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]
    assert len(every) == 1056
    draw, found, key = random.Random(0), [], itertools.count()
    for s in range(4, -1, -1):
        count = -(-5 * ETA**s // (s + 1))
        found.append((R // ETA**s, [(next(key), config) for config in draw.sample(every, count)]))
    return found


def judged(way: Any, key: int, held_out: Any) -> float:
    model = way.model(key).eval()
    with torch.no_grad():
        loss = float(F.cross_entropy(model(held_out[0]), held_out[1]))
    model.train()
    return loss if np.isfinite(loss) else float("inf")


def search(way: Any, held_out: Any, at_once: bool) -> tuple[float, dict[tuple[int, int], float]]:
    """Seconds, and the loss of each configuration after each rung."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    found: dict[tuple[int, int], float] = {}
    made = brackets()
    for together in [made] if at_once else [[bracket] for bracket in made]:
        alive = {number: list(configs) for number, (_, configs) in enumerate(together)}
        level = min(first for first, _ in together)
        while level <= R:
            way.train([entry for configs in alive.values() for entry in configs], level)
            for number, configs in alive.items():
                if level >= together[number][0]:
                    alive[number] = _kept(way, configs, level, held_out, found)
            level *= ETA
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def _kept(way: Any, configs: list[Any], level: int, held_out: Any, found: dict[tuple[int, int], float]) -> list[Any]:
    for key, _ in configs:
        found[key, level] = judged(way, key, held_out)
    ranked = sorted(configs, key=lambda entry: (found[entry[0], level], entry[0]))
    keep = ranked[: len(ranked) // ETA] if level < R else []
    way.drop([key for key, _ in ranked if (key, _) not in keep])
    return keep


def by_measured_rate(found: list[PackingCandidate], rates: Rates) -> list[list[PackingCandidate]]:
    return by_rate(found, LIMIT, measured_seconds(rates.points("mlp")))


def main() -> None:
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.deterministic = True
    x, y, a, b = images()
    data, held_out = (x, y), (a, b)
    search_small = Plain(data)
    search_small.train([(0, {"batch_size": 20, "optimizer": "Adam", "lr": 1e-3, "activation": "ReLU"})], 1)  # warm
    ways: dict[str, tuple[Callable[[], Any], bool]] = {
        "unpacked, one after another": (lambda: Plain(data), False),
        "one after another, a graph each": (lambda: Packed(data, lambda found, _: [[c] for c in found]), False),
        "packed by batch size": (lambda: Packed(data, lambda found, _: by_batch_size(found, LIMIT)), False),
        "packed at random": (lambda: Packed(data, lambda found, _: at_random(found, LIMIT)), False),
        "packed by nearest neighbour": (lambda: Packed(data, lambda found, _: nearest(found, LIMIT, SPACE)), False),
        "packed by rate": (lambda: Packed(data, by_measured_rate), False),
        "packed by rate, all brackets at once": (lambda: Packed(data, by_measured_rate), True),
    }
    rows, losses, plain = [], {}, 0.0
    for name, (make, at_once) in ways.items():
        way = make()
        seconds, losses[name] = search(way, held_out, at_once)
        plain = plain or seconds
        same = sum(losses[name].get(key) == value for key, value in next(iter(losses.values())).items())
        total = len(next(iter(losses.values())))
        rows.append([name, seconds, plain / seconds, f"{same} of {total}"])
        print(rows[-1], flush=True)
        tiers = {m.tier for m in getattr(way, "members", {}).values()}
        print("  left over:", tiers, f"{torch.cuda.memory_reserved() / 1e9:.1f} GB", file=sys.stderr)
        del way
        torch.cuda.empty_cache()
    best = rows[-1][2]
    differing = sum(losses[n] != next(iter(losses.values())) for n in ways)
    report(
        "pack_hyperband",
        ["way", "seconds", "times as fast", "losses equal to unpacked, bit for bit"],
        rows,
        bars=[
            Bar("packed by rate, all brackets at once, over unpacked", best, 8.0, "at least"),
            Bar("ways whose losses differ from unpacked", differing, 0),
        ],
        notes={"R": R, "eta": ETA, "images_per_unit": UNIT, "configurations": 1056, "group_limit": LIMIT, "tf32": True},
    )


if __name__ == "__main__":
    main()
