"""The planner's choice against every strategy by itself, over a grid of regimes: simulated makespans.

756 regimes: 1 to 256 models, 1 to 64 workers, tiny to large models, preparation of data cheap to dear; and 96 with
models of two sizes at once, with and without cores of their own for the preparation (`mixed`). Each strategy
has its best parameters by the formulas: `pack` the sizes of packs, `group` the width of groups. `plan, one width` is
what the planner would choose if all groups of a run had to have one width, for models of two sizes. Makespans are
played by the hop scheduler, without looking ahead, with truths that stray from the profile by 2%, models from their
kind by 5%, units by 5%; the planner plays with other noise, and does not know the truth.

    python benchmarks/bench_planner.py [--few]      # about ten minutes; --few: a quarter of the sizes
"""

from __future__ import annotations

import statistics
import sys

from report import Bar, report

from regatta.plan.papers.regimes import MODELS, SIZES, STRATEGIES, WORKERS, compare, grid, mixed
from regatta.plan.strategy.choose import RULES, team

NAMES = (*STRATEGIES, "plan")
NARROWER = "plan, one width"


def main() -> None:
    few = "--few" in sys.argv
    step = 2 if few else 1
    ratios: dict[str, dict[str, list[float]]] = {}
    worst: list[tuple[float, str]] = []
    for regime in (*grid(MODELS[::step], WORKERS[::step]), *mixed(WORKERS[:: 2 * step])):
        found = compare(regime)
        if regime.beside:
            found[NARROWER] = compare(regime, [rule for rule in RULES if rule is not team])["plan"]
        best = min(found[strategy] for strategy in STRATEGIES)
        worst.append((found["plan"] / best, str(regime)))
        for place in ("mixed" if regime.beside else regime.size, "all"):
            for name in NAMES if place == "all" else found:
                ratios.setdefault(place, {}).setdefault(name, []).append(found[name] / best)
    rows = [
        [place, name, len(values), statistics.fmean(values), max(values)]
        for place in (*SIZES, "mixed", "all")
        for name, values in ratios[place].items()
    ]
    mean = {name: statistics.fmean(values) for name, values in ratios["all"].items()}
    bars = [Bar("plan over the best single strategy, max", max(worst)[0], 1.05)]
    bars += [Bar(f"plan over {name}, by their means", mean["plan"] / mean[name], 0.999) for name in STRATEGIES]
    notes = {"worst": sorted(worst, reverse=True)[:10], "ratio": "makespan over that of the best single strategy"}
    report(
        "planner_few" if few else "planner",
        ["models", "strategy", "regimes", "mean", "max"],
        rows,
        bars=bars,
        notes=notes,
    )


if __name__ == "__main__":
    main()
