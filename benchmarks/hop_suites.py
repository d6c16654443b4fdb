"""The instances on which hop schedules are compared: after section 4.4 of the Cerebro paper.

A unit takes (cost of the model) / (speed of the worker). Costs are drawn from the 35 image classification networks in
the table of github.com/albanie/convnet-burden (README at commit 9c7f31b, MFLOPs as printed: mean 5941.5, standard
deviation 5669.9, from 360 to 21000), speeds from the paper's four GPUs in TFLOPS. The kinds are hh: one cost, one
speed; hx: costs differ; xx: costs and speeds differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.simulate import spread_partitions

MFLOPS = {
    "alexnet": 727, "caffenet": 724, "squeezenet1-0": 837, "squeezenet1-1": 360, "vgg-f": 727, "vgg-m": 2000,
    "vgg-s": 3000, "vgg-m-2048": 2000, "vgg-m-1024": 2000, "vgg-m-128": 2000, "vgg-vd-16-atrous": 16000,
    "vgg-vd-16": 16000, "vgg-vd-19": 20000, "googlenet": 2000, "resnet18": 2000, "resnet34": 4000, "resnet-50": 4000,
    "resnet-101": 8000, "resnet-152": 11000, "resnext-50-32x4d": 4000, "resnext-101-32x4d": 8000,
    "resnext-101-64x4d": 16000, "inception-v3": 6000, "SE-ResNet-50": 4000, "SE-ResNet-101": 8000,
    "SE-ResNet-152": 11000, "SE-ResNeXt-50-32x4d": 4000, "SE-ResNeXt-101-32x4d": 8000, "SENet": 21000,
    "SE-BN-Inception": 2000, "densenet121": 3000, "densenet161": 8000, "densenet169": 3000, "densenet201": 4000,
    "mcn-mobilenet": 579,
}  # fmt: skip
TFLOPS = (12.1, 5.6, 11.3, 18.7)  # Titan Xp, K80, GTX 1080, P100
IMAGES = 60_000  # a partition; forward and backward count three times: the largest network takes minutes
KINDS = ("hh", "hx", "xx")
GRID = ((16, 4), (16, 8), (16, 16), (64, 16), (64, 64))  # models x workers


@dataclass(frozen=True)
class Instance:
    kind: str
    costs: tuple[float, ...]
    speeds: tuple[float, ...]

    @property
    def times(self) -> list[list[float]]:
        """Seconds by model and worker."""
        return [[cost * 1e6 * 3 * IMAGES / (speed * 1e12) for speed in self.speeds] for cost in self.costs]

    @property
    def bound(self) -> float:
        """The largest worker load or model total."""
        times = self.times
        loads = [sum(column) for column in zip(*times, strict=True)]
        return max(*loads, *(sum(row) for row in times))

    def known(self) -> KnownTimes:
        return KnownTimes({(f"m{i}", j): t for i, row in enumerate(self.times) for j, t in enumerate(row)})

    def hopper(self, rule: str, effort: int = 0, seed: int = 0) -> Hopper:
        workers = len(self.speeds)
        hopper = Hopper(workers, estimates=self.known(), rule=rule, effort=effort, seed=seed)
        for worker, held in spread_partitions(workers, workers).items():
            hopper.add_worker(worker, *held)
        for model in range(len(self.costs)):
            hopper.add_model(f"m{model}", 1)
        return hopper


def drawn(kind: str, models: int, workers: int, seed: int) -> Instance:
    draw = random.Random(f"{kind} {models}x{workers} {seed}")
    networks = list(MFLOPS.values())
    one_cost, one_speed = draw.choice(networks), draw.choice(TFLOPS)
    costs = [draw.choice(networks) if kind[1] == "x" else one_cost for _ in range(models)]
    speeds = [draw.choice(TFLOPS) if kind[0] == "x" else one_speed for _ in range(workers)]
    return Instance(kind, tuple(costs), tuple(speeds))


def grid(seeds: int = 25) -> Iterator[Instance]:
    """375 instances: three kinds, five sizes, 25 seeds."""
    for kind in KINDS:
        for models, workers in GRID:
            for seed in range(seeds):
                yield drawn(kind, models, workers, seed)


def off_grid(seeds: int = 150) -> Iterator[Instance]:
    """450 instances: 3 to 20 workers, half as many models as workers up to 80."""
    for kind in KINDS:
        for seed in range(seeds):
            draw = random.Random(f"off grid {kind} {seed}")
            workers = draw.randint(3, 20)
            yield drawn(kind, draw.randint((workers + 1) // 2, 80), workers, seed)
