"""An `evaluate` against the same sweep written by hand in Python: equal weights, and what the query costs.

Small AlexNets are trained on handwritten digits, each with several learning rates, by workers in this process. By hand,
`model_fn` builds the network of a version and copies its weights, which were read once. Both run in turns. Times are of
the whole call: for `evaluate` from the text of the query to the versions of its run. The bar is on the time of the
processor, which other work on the machine hardly changes; the time that passed is beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from report import Bar, report
from torch import nn

import regatta
from regatta import Cluster, Dataset, Run, search
from regatta.network import from_json, from_torch, to_torch
from regatta.repo import Repo
from regatta.repo.catalog.networks import canonical_json

RATES = (0.1, 0.05, 0.02, 0.01)
MAX_RATIO = 1.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--models", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        repo = Repo.init(folder)
        for number in range(options.models):
            torch.manual_seed(number)
            net = alexnet(number)
            network = from_torch(net, torch.zeros(2, 1, 8, 8))
            repo.commit(f"alexnet-{number}", net.state_dict(), network=network, git=False)
        ways: dict[str, Callable[[str, int], Run]] = {
            "by hand": lambda name, epochs: by_hand(repo, name, epochs),
            "evaluate": lambda name, epochs: evaluated(repo, name, epochs),
        }
        for name, train in ways.items():
            train(f"warm-up-{name.replace(' ', '-')}", 1)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        states: dict[str, Any] = {}
        for turn in range(options.repeats):
            for name in sorted(ways, reverse=bool(turn % 2)):
                begun, spent = time.perf_counter(), time.process_time()
                run = ways[name](f"{name.replace(' ', '-')}-{turn}", options.epochs)
                times[name].append((time.process_time() - spent, time.perf_counter() - begun))
                states[name] = hashes(run)
        repo.close()
        os.chdir("/")
    processor, passed = ({name: statistics.median(each[kind] for each in found) for name, found in times.items()}
                         for kind in (0, 1))  # fmt: skip
    # Each turn is a pair, measured one right after the other.
    ratio = statistics.median(
        ours[0] / theirs[0] for ours, theirs in zip(times["evaluate"], times["by hand"], strict=True)
    )
    differing = sum(states["by hand"].get(unit) != digest for unit, digest in states["evaluate"].items())
    report(
        "dql_evaluate",
        ["way", "processor s", "passed s", "to by hand"],
        [[name, processor[name], passed[name], processor[name] / processor["by hand"]] for name in ways],
        bars=[
            Bar("units whose state differs", differing + abs(len(states["evaluate"]) - len(states["by hand"])), 0),
            Bar("evaluate to by hand, processor time", ratio, MAX_RATIO),
        ],
        peers=["torch"],
        notes={"repeats": options.repeats, "epochs": options.epochs, "models": options.models * len(RATES)},
    )


def alexnet(number: int) -> nn.Module:
    pools = (nn.MaxPool2d, nn.AvgPool2d)[number % 2]
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1), relu1=nn.ReLU(), pool1=pools(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1), relu2=nn.ReLU(), pool2=pools(2),
            conv3=nn.Conv2d(32, 48, 3, padding=1), relu3=nn.ReLU(), conv4=nn.Conv2d(48, 32, 3, padding=1),
            relu4=nn.ReLU(), conv5=nn.Conv2d(32, 32, 3, padding=1), relu5=nn.ReLU(), pool5=pools(2), flat=nn.Flatten(),
            fc6=nn.Linear(32, 64), relu6=nn.ReLU(), fc7=nn.Linear(64, 64), relu7=nn.ReLU(), fc8=nn.Linear(64, 10),
        )
    )  # fmt: skip


def evaluated(repo: Repo, name: str, epochs: int) -> Run:
    rates = ", ".join(map(str, RATES))
    text = f"""evaluate m from m where m.name like "alexnet-%"
    with config.input_data = "digits", config.epochs = {epochs}, config.visits = "seeded", config.momentum = 0.9
    vary config.base_lr in [{rates}] into "{name}" """
    return repo.query(text).launch(cluster=Cluster.inline(1), progress=False)


def by_hand(repo: Repo, name: str, epochs: int) -> Run:
    data = Dataset.digits(directory=repo.folder / "data" / "by-hand")
    models = {}
    for version in repo.versions(name="alexnet-*"):
        network = from_json(canonical_json(repo.network(version), "network"))
        models[version.id[:10]] = (
            network,
            {name: torch.as_tensor(w) for name, w in repo.weights(version).read().items()},
        )

    def model_fn(config: dict[str, Any]) -> Any:
        module = to_torch(*models[config["model"]])
        return module, torch.optim.SGD(module.parameters(), lr=config["base_lr"], momentum=config["momentum"])

    def as_images(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), 1, 8, 8)

    def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(as_images(x)), y)

    def eval_fn(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
        x, y = data
        return {"accuracy": float((model(as_images(x)).argmax(1) == y).float().mean())}

    values = {"loss": "cross_entropy", "optimizer": "sgd", "batch_size": 32, "momentum": 0.9, "input_data": "digits"}
    space = search.grid(model=list(models), base_lr=list(RATES), **{key: [value] for key, value in values.items()})
    return regatta.launch(
        data, space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=epochs, visits="seeded", name=name,
        cluster=Cluster.inline(1), repo=repo.folder, progress=False, framework="torch",
    )  # fmt: skip


def hashes(run: Run) -> dict[Any, str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


if __name__ == "__main__":
    main()
