"""Fewer models than workers: hopping, data-parallel groups, or both, over ratios of communication to computation.

Every number of models from 1 to p - 1 on 4, 8, 16 and 32 workers, ratios from 0.02 (NVLink) to 4 (Ethernet) for a group
of two, three epochs, played by the real hop scheduler over the groups, units straying by 2%. Our rule, `measured`, goes
by a ratio that was measured with an error of 5%. Beside it by name: hopping, data-parallel training over all workers,
HOHO and the p/2 rule of the Cerebro paper (section 12). The bar is against the better of hopping and groups: as many
as the models, or one of all workers; the last column is against the best of all widths that a simulate_strategy finds.

    python benchmarks/bench_groups_or_hops.py [--few]
"""

from __future__ import annotations

import random
import statistics
import sys
from functools import cache

from report import Bar, report

from regatta.plan.strategy.costs import ClusterSpec, ModelKind, Strategy, Workload
from regatta.plan.strategy.groups_or_hops import WIDTH_RULES, Communication
from regatta.plan.strategy.simulate import Noise, simulate_strategy

RATIOS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
STRAYS = Noise(models=0.0, units=0.02)
ERROR = 0.05
EPOCHS = 3


@cache
def rounds(models: int, groups: int) -> float:
    """The time of an epoch of all models over that of one model on one group."""
    work = Workload((ModelKind("model", models, EPOCHS, 1000.0),))
    plays = [simulate_strategy(work, ClusterSpec(groups), Strategy(), STRAYS, seed, effort=None) for seed in range(2)]
    return statistics.fmean(plays) / (EPOCHS * 1000.0)


def played(models: int, workers: int, width: int, communication: Communication) -> float:
    return rounds(models, workers // width) * (1 + communication.ratio(width)) / width


def compared(models: int, workers: int, ratio: float) -> dict[str, float]:
    """Times of the rules over the better of hopping and groups, and of ours over the best width there is."""
    draw = random.Random(f"{models} {workers} {ratio}")
    true, seen = Communication(ratio), Communication(ratio * draw.lognormvariate(0.0, ERROR))
    times = {name: played(models, workers, rule(models, workers, seen), true) for name, rule in WIDTH_RULES.items()}
    better = min(times["hops"], times["hoho"], times["data-parallel"])
    widths = {workers // groups for groups in range(1, workers + 1)}
    best = min(played(models, workers, width, true) for width in widths)
    return {name: time / better for name, time in times.items()} | {"regret": times["measured"] / best}


def main() -> None:
    few = "--few" in sys.argv
    rows: list[list[object]] = []
    everything: dict[str, list[float]] = {name: [] for name in (*WIDTH_RULES, "regret")}
    for workers in (4, 8) if few else (4, 8, 16, 32):
        for ratio in RATIOS:
            found = [compared(models, workers, ratio) for models in range(1, workers)]
            for name, values in everything.items():
                values += [ratios[name] for ratios in found]
            worst = [max(ratios[name] for ratios in found) for name in everything]
            rows.append([workers, ratio, statistics.fmean(ratios["measured"] for ratios in found), *worst])
    columns = [
        "workers",
        "ratio",
        "measured, mean",
        *(f"{name}, max" for name in WIDTH_RULES),
        "over the best width, max",
    ]
    bars = [Bar("measured over the better of hopping and groups, max", max(everything["measured"]), 1.03)]
    notes = {"means": {name: statistics.fmean(values) for name, values in everything.items()}}
    report("groups_or_hops_few" if few else "groups_or_hops", columns, rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
