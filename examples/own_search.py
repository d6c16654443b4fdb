"""A search of one's own: a few learning rates at random, then always another one close to the best so far.

python own_search.py
"""

from random import Random

import torch

import regatta
from regatta.search import Train


class Climb:
    def __init__(self, first, total):
        self.first, self.total = first, total

    def describe(self):
        return {"kind": "climb", "first": self.first, "total": self.total}

    def start(self, goal):
        self.goal, self.random = goal, Random(goal.seed)
        self.asked, self.done = 0, []
        return [self.train(10 ** self.random.uniform(-4, -1)) for _ in range(self.first)]

    def hear(self, report):
        if report.epoch < self.goal.epochs and not report.failed:
            return []
        self.done.append((report.failed, self.goal.rank(report.metrics), report.values["lr"]))
        if self.asked == self.total:
            return []
        _, _, best = min(self.done)
        return [self.train(best * 2 ** self.random.uniform(-1, 1))]

    def train(self, lr):
        self.asked += 1
        return Train({"lr": lr, "hidden": 32, "batch_size": 32}, self.goal.epochs)


def model_fn(config):
    net = torch.nn.Sequential(
        torch.nn.Linear(64, config["hidden"]), torch.nn.ReLU(), torch.nn.Linear(config["hidden"], 10)
    )
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model, batch, config):
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


sweep = regatta.Sweep(
    regatta.Dataset.digits(partitions=2), Climb(first=3, total=8), model_fn, loss_fn=loss_fn, epochs=2
)

if __name__ == "__main__":
    print(sweep.launch().best)
