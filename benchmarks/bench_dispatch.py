"""The dispatch rule alone: homogeneous problems exactly at the bound, and the time of a decision."""

from __future__ import annotations

import statistics
import time

from hop_suites import Problem
from report import Bar, report

from regatta.plan.simulate import simulate

LARGE = (("longest", "hx"), ("match", "hh"), ("randomized", "hx"), ("auto", "hx"), ("auto", "hh"))
REPEATS = 3


def main() -> None:
    ratios = [Problem("homogeneous", "hh", s, p, 0).ratio("auto") for s in range(1, 33) for p in range(2, 17)]
    rows: list[list[object]] = [["auto", "hh, 1..32 x 2..16", len(ratios), max(ratios), "-", "-"]]
    bars = [Bar("homogeneous: worst makespan / bound", max(ratios), 1.0 + 1e-9)]
    for rule, kind in LARGE:
        problem = Problem("large", kind, 256, 64, 0)
        seconds = statistics.median(_decide(problem, rule) for _ in range(REPEATS))
        microseconds = seconds / (256 * 64) * 1e6
        rows.append([rule, f"{kind}, 256 x 64", 256 * 64, "-", microseconds, seconds])
        bars += [
            Bar(f"{rule}, {kind}: microseconds per decision", microseconds, 150.0),
            Bar(f"{rule}, {kind}: 256 x 64, seconds", seconds, 2.0),
        ]
    report("dispatch", ["rule", "problems", "units", "worst ratio", "us per decision", "seconds"], rows, bars=bars)


def _decide(problem: Problem, rule: str) -> float:
    """Processor seconds of a whole epoch: the state machine, the rule, and the simulator around them."""
    times = problem.times()
    hopper = problem.hopper(times, rule, 0)
    start = time.process_time()
    simulate(hopper, times, learn=False)
    return time.process_time() - start


if __name__ == "__main__":
    main()
