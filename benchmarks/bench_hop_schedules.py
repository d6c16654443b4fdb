"""Simulated makespan over the lower bound: our default with and without planning ahead, beside the other rules.

Two suites (375 and 450 instances, see hop_suites.py), one epoch, unit times known; and every homogeneous problem of 1
to 32 models on 2 to 16 workers, with one and with two partitions per worker. Each schedule is made by the real
scheduler on a simulated clock. Plan times are CPU seconds.

    python benchmarks/bench_hop_schedules.py [--few]      # about four minutes; --few: every tenth instance
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable

from hop_suites import Instance, grid, off_grid
from report import Bar, report

from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.hopper import MAX_EFFORT_DECISIONS, Hopper
from regatta.plan.schedule.simulate import simulate, spread_partitions

METHODS = {
    "auto": ("auto", MAX_EFFORT_DECISIONS),
    "dispatch": ("auto", 0),
    "randomized": ("randomized", 0),
    "lrm": ("lrm", 0),
    "longest": ("longest", 0),
    "match": ("match", 0),
}


def ratio(instance: Instance, method: str) -> tuple[float, float]:
    """Makespan over bound, and the CPU seconds that planning took."""
    rule, effort = METHODS[method]
    hopper = instance.hopper(rule, effort)
    begin = time.process_time()
    _ = hopper.chosen_rule
    seconds = time.process_time() - begin
    return simulate(hopper, instance.known()).makespan / instance.bound, seconds


def run_suite(name: str, instances: Iterable[Instance]) -> tuple[list[list[object]], dict[str, list[float]]]:
    ratios: dict[str, dict[str, list[float]]] = {method: {} for method in METHODS}
    plan: list[float] = []
    for instance in instances:
        for method in METHODS:
            found, seconds = ratio(instance, method)
            ratios[method].setdefault(instance.kind, []).append(found)
            if method == "auto":
                plan.append(seconds)
    rows: list[list[object]] = []
    totals = {}
    for method, by_kind in ratios.items():
        totals[method] = [value for values in by_kind.values() for value in values]
        for kind, values in [*by_kind.items(), ("all", totals[method])]:
            rows.append([name, kind, method, len(values), *summary(values)])
    return rows, {**totals, "plan seconds": plan}


def summary(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [statistics.fmean(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1]]


def homogeneous(step: int) -> list[float]:
    """The dispatch rule alone on every homogeneous problem, by models, workers and partitions per worker."""
    found = []
    for models in range(1, 33, step):
        for workers in range(2, 17):
            for each in (1, 2):
                found.append(_equal_units(models, workers, workers * each))
    return found


def _equal_units(models: int, workers: int, partitions: int) -> float:
    times = KnownTimes({(f"m{i}", j): 1.7 for i in range(models) for j in range(partitions)})
    hopper = Hopper(partitions, estimates=times, effort=0)
    for worker, held in spread_partitions(partitions, workers).items():
        hopper.add_worker(worker, *held)
    for model in range(models):
        hopper.add_model(f"m{model}", 1)
    bound = max(models * partitions / workers, partitions) * 1.7
    return simulate(hopper, times).makespan / bound


def main() -> None:
    few = "--few" in sys.argv
    every = 10 if few else 1
    rows: list[list[object]] = []
    bars = []
    for name, instances in (("grid", list(grid())), ("off-grid", list(off_grid()))):
        suite_rows, totals = run_suite(name, instances[::every])
        rows += suite_rows
        mean, p95, worst = summary(totals["auto"])
        bars += [Bar(f"{name}: auto, mean", mean, 1.003), Bar(f"{name}: auto, 95th percentile", p95, 1.01)]
        bars += [Bar(f"{name}: auto, max", worst, 1.05)]
        bars += [Bar(f"{name}: longest planning, CPU s", max(totals["plan seconds"]), 1.0)]
        mean, _, worst = summary(totals["dispatch"])
        bars += [Bar(f"{name}: dispatch alone, mean", mean, 1.01), Bar(f"{name}: dispatch alone, max", worst, 1.12)]
    equal = homogeneous(4 if few else 1)
    rows.append(["homogeneous", "hh", "dispatch", len(equal), *summary(equal)])
    bars.append(Bar("homogeneous: dispatch alone, max", round(max(equal), 9), 1.0))
    notes = {"effort": MAX_EFFORT_DECISIONS, "few": few, "ratio": "makespan / max(worker load, model total)"}
    columns = ["suite", "kind", "method", "instances", "mean", "p95", "max"]
    report("hop_schedules_few" if few else "hop_schedules", columns, rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
