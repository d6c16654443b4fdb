"""Progressive evaluation: how many labels are certain from two bytes of each weight, and what the rest costs.

    REGATTA_BENCH_DATA=folder/with/mnist.npz python benchmarks/bench_eval.py

LeNet (two convolutions with pooling, two full connections) learns scikit-learn's digits and MNIST, is committed, and
the whole test sets are evaluated. Beside ours stands the test of the ModelHub paper (IV-D): intervals through it all,
and a label when the interval of one class lies above those of all others. Labels are compared with those of PyTorch.

A transformer (one block: GELU, LayerNorm, attention) learns the digits as sequences of rows. It is evaluated from two
bytes of each weight.

`one pass` are the bytes that one evaluation of the whole test set reads: those that its hardest input needs. `an input`
is what each input needs on its own, in the mean.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, report
from torch import nn

from regatta import network
from regatta.network.bounds import BoundedNetwork
from regatta.network.torch.to_torch import outputs
from regatta.repo import Repo
from regatta.repo.evaluate.evaluated_network import evaluated_network
from regatta.repo.evaluate.progress import _batches, judge
from regatta.repo.evaluate.progressive_weights import ProgressiveWeights

COLUMNS = [
    "data", "inputs", "accuracy", "bytes known", "paper's test", "interval margins", "ours", "wrong",
    "bytes of full",
]  # fmt: skip


def lenet(side: int) -> nn.Module:
    """The paper's, for 28 pixels; with smaller kernels for 8."""
    kernel, padding, features = (5, 0, 800) if side == 28 else (3, 1, 200)
    return nn.Sequential(
        nn.Conv2d(1, 20, kernel, padding=padding), nn.MaxPool2d(2), nn.Conv2d(20, 50, kernel, padding=padding),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(features, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


def digits() -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("f4").reshape(-1, 1, 8, 8), y[order].astype("i8")
    return x[360:], y[360:], x[:360], y[:360]


def mnist() -> tuple[Any, Any, Any, Any] | None:
    path = Path(os.environ.get("REGATTA_BENCH_DATA", "")) / "mnist.npz"
    if not path.is_file():
        print("REGATTA_BENCH_DATA is not set: only scikit-learn's digits are used.\n")
        return None
    with np.load(path) as file:
        x, y, test, truth = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    return (x[:, None] / 255).astype("f4"), y.astype("i8"), (test[:, None] / 255).astype("f4"), truth.astype("i8")


def train(net: nn.Module, x: Any, y: Any, epochs: int) -> None:
    inputs, labels, batch = torch.from_numpy(x), torch.from_numpy(y), 64 if len(x) < 5000 else 128
    steps = epochs * (len(x) // batch)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for at in range(0, len(x) - batch + 1, batch):
            chosen = order[at : at + batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()


def papers_test(bounded: BoundedNetwork, x: Any) -> int:
    """Inputs where the interval of one output lies above all others."""
    found = 0
    for _, passed in _batches(bounded, x):
        low, high = passed.logits.low, passed.logits.high.copy()
        best = low.argmax(1)
        rows = np.arange(len(best))
        high[rows, best] = -np.inf
        found += int((low[rows, best] > high.max(1)).sum())
    return found


def certified(repo: Repo, version: str, x: Any, labels: Any, name: str, accuracy: float) -> list[list[Any]]:
    """What is certain from two bytes of each weight, and then with the third byte of the first layer."""
    graph = evaluated_network(repo, repo.version(version))
    reading = ProgressiveWeights(repo.weights(version), repo.store, graph)
    reading.deepen(reading.names, 2)
    first = next(p.name for id in graph.order for p in graph.by_id[id].parameters)
    sure, rows = np.zeros(len(x), bool), []
    for known in ("2", "2, and 3 of the first layer"):
        bounded = BoundedNetwork(graph, reading.boxes)
        left = np.flatnonzero(~sure)
        found = judge(bounded, x[left], outputs(graph, reading.middle(), x[left]), 1)
        wrong = int((found.labels[:, 0] != labels[left])[found.sure].sum())
        sure[left[found.sure]] = True
        paper = papers_test(bounded, x) / len(x)
        shown = found.intervals / len(x) if not rows else "-"
        rows.append(
            [name, len(x), accuracy, known, paper, shown, sure.mean(), wrong, reading.bytes_read / reading.bytes_full]
        )
        reading.deepen([first])
    return rows


def measured(
    name: str, data: tuple[Any, Any, Any, Any], epochs: int, folder: Path
) -> tuple[list[list[Any]], list[Bar], dict[str, Any]]:
    torch.manual_seed(0)
    x, y, test, truth = data
    net = lenet(x.shape[-1])
    train(net, x, y, epochs)
    with torch.no_grad():
        labels = net.eval()(torch.from_numpy(test)).argmax(1).numpy()
    graph = network.to_json(network.from_torch(net, torch.from_numpy(test[:1])))
    with Repo.init(folder / name) as repo:
        version = repo.commit(name, net.state_dict(), network=graph).reference
        rows = certified(repo, version, test, labels, name, float((labels == truth).mean()))
        began = time.perf_counter()
        auto = repo.evaluate(version, test, truth)
        seconds = time.perf_counter() - began
        within = repo.evaluate(version, test, truth, budget=0.55)
    wrong = int((auto.labels != labels).sum())
    rows.append([name, len(test), auto.accuracy, "auto, an input", "-", "-", 1.0, wrong, auto.mean_share])
    rows.append([name, len(test), auto.accuracy, "auto, one pass", "-", "-", 1.0, wrong, auto.share])
    off = int((within.labels != labels)[within.certain].sum())
    rows.append([name, len(test), within.accuracy, "budget 0.55", "-", "-", within.certain.mean(), off, within.share])
    bars = [
        Bar(f"{name}: certain from 2 bytes", rows[0][6], 0.85, "at least"),
        Bar(f"{name}: with the third of the first layer", rows[1][6], 0.95, "at least"),
        Bar(f"{name}: wrong labels", sum(row[7] for row in rows), 0),
        Bar(f"{name}: bytes of full, an input", auto.mean_share, 0.55),
    ]
    notes = {"seconds": seconds, "stages": auto.stages.rows()}
    if name == "mnist":
        bars.append(Bar("mnist: bytes of full, one pass", auto.share, 0.55))
    return rows, bars, {name: notes}


class TransformerBlock(nn.Module):
    def __init__(self, features: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.query, self.key, self.value, self.out = (nn.Linear(features, features) for _ in range(4))
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, features = x.shape
        z, size = self.norm_1(x), features // self.heads
        parts = (part(z).view(batch, steps, self.heads, size) for part in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        shares = torch.softmax(q @ k.transpose(2, 3) / size**0.5, -1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(batch, steps, features))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self, features: int = 16, heads: int = 2, hidden: int = 32) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(8, features), nn.Parameter(0.1 * torch.randn(1, 8, features))
        self.block = TransformerBlock(features, heads, hidden)
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embed(x) + self.positions)).mean(1))


def transformer(folder: Path) -> tuple[list[list[Any]], list[Bar], dict[str, Any]]:
    """The labels of a transformer that are certain from two bytes of each weight."""
    torch.manual_seed(0)
    x, y, test, truth = (part[:, 0] if part.ndim == 4 else part for part in digits())
    net, inputs, labels = Transformer(), torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=0.05)
    for _ in range(20):
        for chosen in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        right = net.eval()(torch.from_numpy(test)).argmax(1).numpy()
    graph = network.to_json(network.from_torch(net, torch.from_numpy(test[:1])))
    with Repo.init(folder / "transformer") as repo:
        version = repo.commit("transformer", net.state_dict(), network=graph).reference
        began = time.perf_counter()
        found = repo.evaluate(version, test, truth, precision=2)
        seconds = time.perf_counter() - began
    wrong = int((found.labels != right)[found.certain].sum())
    sure = float(found.certain.mean())
    name = "digits, transformer"
    row = [name, len(test), found.accuracy, "2", "-", "-", sure, wrong, found.share]
    bars = [Bar(f"{name}: certain from 2 bytes", sure, 0.5, "at least"), Bar(f"{name}: wrong labels", wrong, 0)]
    return [row], bars, {name: {"seconds": seconds}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="over MNIST")
    options = parser.parse_args()
    rows: list[list[Any]] = []
    bars: list[Bar] = []
    notes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, data, epochs in (("digits", digits(), 20), ("mnist", mnist(), options.epochs)):
            if data is not None:
                found = measured(name, data, epochs, Path(place))
                rows, bars, notes = rows + found[0], bars + found[1], notes | found[2]
        found = transformer(Path(place))
        rows, bars, notes = rows + found[0], bars + found[1], notes | found[2]
    report("eval", COLUMNS, rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
