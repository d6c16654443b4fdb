"""Simulated makespan over the lower bound, on both suites: our default, with and without looking ahead, and the rules.

Planning is bounded by a count of simulated decisions; the seconds that it took are in the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
from hop_suites import KINDS, Problem, grid_suite, off_grid_suite
from report import Bar, report

EFFORT = 20_000  # simulated decisions per problem
RULES = ("randomized", "lrm", "longest", "match")


def main() -> None:
    suites = {"grid": list(grid_suite()), "off grid": list(off_grid_suite())}
    rows, bars = [], []
    for suite, problems in suites.items():
        planned, seconds = _planned(problems)
        dispatched = [problem.ratio("auto") for problem in problems]
        others = {rule: [problem.ratio(rule) for problem in problems] for rule in RULES}
        for kind in (*KINDS, "all"):
            chosen = [i for i, problem in enumerate(problems) if kind in ("all", problem.kind)]
            columns = [planned, dispatched, *others.values()]
            rows.append([suite, kind, len(chosen), *(_figures(column, chosen) for column in columns)])
        bars += [
            Bar(f"{suite}: planned, mean", float(np.mean(planned)), 1.003),
            Bar(f"{suite}: planned, 95th percentile", float(np.quantile(planned, 0.95)), 1.01),
            Bar(f"{suite}: planned, max", max(planned), 1.05),
            Bar(f"{suite}: longest planning, seconds", max(seconds), 1.0),
            Bar(f"{suite}: dispatch alone, mean", float(np.mean(dispatched)), 1.01),
            Bar(f"{suite}: dispatch alone, max", max(dispatched), 1.12),
        ]
    columns = ["suite", "kind", "problems", "auto, planned", "auto, dispatch alone", *RULES]
    notes = {"figures": "mean / 95th percentile / max of makespan over lower bound", "effort": EFFORT}
    report("hop_schedules", columns, rows, bars=bars, notes=notes)


def _planned(problems: Sequence[Problem]) -> tuple[list[float], list[float]]:
    ratios, seconds = [], []
    for problem in problems:
        hopper = problem.hopper(problem.times(), "auto", EFFORT)
        start = time.process_time()  # the machine may be shared
        hopper.assign()
        seconds.append(time.process_time() - start)
        ratios.append(problem.ratio("auto", EFFORT))
    return ratios, seconds


def _figures(values: Sequence[float], chosen: Iterable[int]) -> str:
    picked = [values[i] for i in chosen]
    return f"{np.mean(picked):.4f} / {np.quantile(picked, 0.95):.3f} / {max(picked):.3f}"


if __name__ == "__main__":
    main()
