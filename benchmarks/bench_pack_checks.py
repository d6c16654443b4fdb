"""What the comparisons of later steps cost: packs on a GPU with and without them, in calls of several lengths.

Each call of `train` is a unit of a run, so its steps are those of a partition: 64 steps of 64 rows are 4,096 rows, 256
are 16,384. The same pack takes turns with and without comparisons, and the median of the ratios counts.

    python benchmarks/bench_pack_checks.py [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics

import torch
from pack_models import CNN, MLP, ROWS, TINY, Family, adam, loaded, need_gpu, timed
from report import Bar, report

import regatta.pack
from regatta.pack.checks import members_to_check
from regatta.pack.cuda_graphs import graph_tier
from regatta.pack.stacked import stacked_tier

PACKS = ((MLP, 32), (CNN, 32), (TINY, 256))
STEPS, TURNS = (64, 256, 1024), 12
COUNTED = 256  # steps a call


def cost(family: Family, members: int, steps: int, device: str) -> tuple[float, float]:
    """Milliseconds for a step of all members with comparisons, and how many times as long as without."""
    pack = regatta.pack.Pack(device)
    rows = torch.arange(steps * family.batch, device=device) % ROWS
    data = tuple(part[rows] for part in family.data(device))
    loaded(pack, family, members, adam, device)
    pack.train(data, steps=40)
    pack.train(data, steps=steps)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS):
        for checked in (True, False) if turn % 2 else (False, True):
            chosen = members_to_check if checked else lambda *_: []
            graph_tier.members_to_check = stacked_tier.members_to_check = chosen  # type: ignore[attr-defined]
            seconds[checked].append(timed(lambda: pack.train(data, steps=steps), device, repeats=1))
    graph_tier.members_to_check = stacked_tier.members_to_check = members_to_check  # type: ignore[attr-defined]
    ratios = [with_them / without for with_them, without in zip(seconds[True], seconds[False], strict=True)]
    return 1e3 * statistics.median(seconds[True]) / steps, statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    if device == "cuda":
        need_gpu()
        torch.backends.cudnn.deterministic = True
    rows, bars = [], []
    for family, members in PACKS:
        for steps in STEPS:
            milliseconds, ratio = cost(family, members, steps, device)
            rows.append([family.name, members, steps, milliseconds, ratio])
            print(*rows[-1], flush=True)
            if steps == COUNTED:
                name = f"{members} of {family.name}: time with comparisons, over the time without"
                bars.append(Bar(name, ratio, 1.02))
    columns = ["family", "members", "steps of a call", "ms for a step of all", "over the time without"]
    report("pack_checks", columns, rows, bars=bars)


if __name__ == "__main__":
    main()
