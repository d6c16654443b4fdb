"""100 unlike models on 20 to 160 simulated devices, epochs unknown: speedup over one device each.

Ten draws of the calibrated suite (regatta/plan/papers/fleet_suite.py) after section 6 of the FLEET paper (Guan et
al., MLSys 2020). The baseline takes models in a random order: its mean over 200 orders of each draw is the unit.
`water` changes a model only at the ends of its own epochs; `water, any time` at the end of any model's epoch, by a
checkpoint. FLEET-G and FLEET-L as published, FLEET-G also without its lockstep. The gap is the makespan over the
malleable bound, which knows all epochs.

    python benchmarks/bench_fleet.py [--few]      # about five minutes; --few: two draws
"""

from __future__ import annotations

import statistics
import sys

from report import Bar, report

from regatta.plan.fleet.nodes import Nodes
from regatta.plan.papers.fleet_suite import DEVICES, DEVICES_PER_NODE, SUITES, FleetProblem

BARS = dict(zip(DEVICES, (1.19, 1.42, 1.64, 1.85, 1.88, 2.2, 2.5, 2.8), strict=True))
METHODS: dict[str, tuple[str, int | None]] = {
    "water": ("water", 1),
    "water, any time": ("water", None),
    "water, no prior": ("water-again", None),
    "FLEET-G": ("fleet-g", None),
    "FLEET-G, own pace": ("fleet-g-own-pace", None),
    "FLEET-L": ("fleet-l", None),
    "longest first": ("longest-first", None),
    "homogeneous": ("homogeneous", None),
}


def measured(problems: list[FleetProblem], devices: int) -> dict[str, list[float]]:
    """By method: the mean speedup, the mean and the largest gap to the bound."""
    nodes = Nodes.uniform(devices, DEVICES_PER_NODE)
    baselines = [problem.baseline(nodes) for problem in problems]
    bounds = [problem.bound(nodes) for problem in problems]
    found = {"bound": [statistics.fmean(a / b for a, b in zip(baselines, bounds, strict=True)), 1.0, 1.0]}
    for method, (policy, stops) in METHODS.items():
        ends = [problem.run(policy, nodes, seed, stops).makespan for seed, problem in enumerate(problems)]
        gaps = [end / bound for end, bound in zip(ends, bounds, strict=True)]
        speedup = statistics.fmean(base / end for base, end in zip(baselines, ends, strict=True))
        found[method] = [speedup, statistics.fmean(gaps), max(gaps)]
    return found


def main() -> None:
    few = "--few" in sys.argv
    draws = 2 if few else 10
    rows: list[list[object]] = []
    bars = []
    for suite in SUITES:
        problems = [SUITES[suite](seed) for seed in range(draws)]
        for devices in DEVICES:
            found = measured(problems, devices)
            speedups = [found[method][0] for method in ("bound", *METHODS)]
            rows.append([suite, devices, *speedups, found["water"][1], found["water"][2], found["water, any time"][1]])
            if suite == "fleet":
                bars.append(Bar(f"{devices} devices: speedup of water", found["water"][0], BARS[devices], "at least"))
    columns = ["suite", "devices", "bound", *METHODS, "gap of water", "its max", "gap, any time"]
    notes = {
        "draws": draws,
        "baseline": "one device each, mean of 200 random orders",
        "paper's FLEET-G": "1.12 to 1.92",
    }
    report("fleet_few" if few else "fleet", columns, rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
