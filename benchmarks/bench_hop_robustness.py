"""Hop schedules when times are not as estimated, when workers leave, and when partitions are replicated.

Makespan over what no schedule could beat, had it known the real times. Surprises: unit times that stray by 5, 10 or
30% from known means; pilots that are wrong by 30% per model and have to be unlearnt, in three epochs. Replicas: on
workers of unlike speed, against the bound of a linear program and against the bound without replicas. Outage: one
worker is away from 30% to 50% of the bound, without replicas; what it had in flight is lost and counted.

    python benchmarks/bench_hop_robustness.py      # about three minutes
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from hop_suites import KINDS, Instance, drawn
from report import Bar, report

from regatta.plan.bounds import lower_bound
from regatta.plan.estimates import Estimates, KnownTimes, Times
from regatta.plan.hop import Hopper
from regatta.plan.simulate import Outage, simulate, spread

SIZES = ((16, 8), (16, 16), (64, 16))
RULES = ("auto", "longest", "randomized")
SEEDS = 4
ROWS = 1000  # of a partition, for estimates per row


def hopper_of(instance: Instance, estimates: Times, rule: str, epochs: int = 1, replicas: int = 1) -> Hopper:
    workers = len(instance.speeds)
    hopper = Hopper(workers, estimates=estimates, rule=rule)
    for worker, held in spread(workers, workers, replicas=replicas).items():
        hopper.add_worker(worker, *held)
    for model in range(len(instance.costs)):
        hopper.add_model(f"m{model}", epochs)
    return hopper


def strayed(instance: Instance, deviation: float, seed: int, *, per_model: bool = False) -> list[list[float]]:
    """Real times: those of the instance, each off by a random factor."""
    draw = random.Random(seed)
    errors = [draw.lognormvariate(0.0, deviation if per_model else 0.0) for _ in instance.costs]
    spread_of_units = 0.03 if per_model else deviation
    return [
        [seconds * error * draw.lognormvariate(0.0, spread_of_units) for seconds in row]
        for row, error in zip(instance.times, errors, strict=True)
    ]


def known(times: list[list[float]], noise: float = 0.0) -> KnownTimes:
    return KnownTimes({(f"m{i}", j): t for i, row in enumerate(times) for j, t in enumerate(row)}, noise=noise)


def bound_of(times: list[list[float]]) -> float:
    return max(*(sum(column) for column in zip(*times, strict=True)), *(sum(row) for row in times))


def unit_noise(deviation: float) -> Callable[[Instance, str, int], float]:
    def run(instance: Instance, rule: str, seed: int) -> float:
        real = strayed(instance, deviation, seed)
        hopper = hopper_of(instance, known(instance.times, deviation), rule)
        return simulate(hopper, known(real)).makespan / bound_of(real)

    return run


def wrong_pilots(instance: Instance, rule: str, seed: int) -> float:
    """Three epochs, in which the scheduler learns what models and workers really take."""
    real = strayed(instance, 0.3, seed, per_model=True)
    estimates = Estimates([ROWS] * len(instance.speeds))
    for model, row in enumerate(instance.times):
        estimates.set_pilot(f"m{model}", statistics.fmean(row) / ROWS, 0.0)
    return simulate(hopper_of(instance, estimates, rule, epochs=3), known(real)).makespan / (3 * bound_of(real))


def surprises() -> tuple[list[list[object]], list[Bar]]:
    cases = {
        "units stray 5%": unit_noise(0.05),
        "units stray 10%": unit_noise(0.1),
        "units stray 30%": unit_noise(0.3),
        "pilots wrong by 30%": wrong_pilots,
    }
    rows: list[list[object]] = []
    bars = []
    for case, run in cases.items():
        for models, workers in SIZES:
            found = {
                rule: [run(drawn(kind, models, workers, s), rule, s) for kind in KINDS for s in range(SEEDS)]
                for rule in RULES
            }
            for rule, ratios in found.items():
                rows.append([case, f"{models}x{workers}", rule, statistics.fmean(ratios), max(ratios)])
            limit = 1.02 if models >= 2 * workers else 1.05
            bars.append(Bar(f"{case}, {models}x{workers}: auto, mean", statistics.fmean(found["auto"]), limit))
    return rows, bars


def replicas() -> tuple[list[list[object]], list[Bar]]:
    rows: list[list[object]] = []
    bars = []
    for models, workers in ((64, 8), (64, 16), (128, 16)):
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(SEEDS):
            instance = drawn("xx", models, workers, seed)
            places = [(j, w) for j in range(workers) for w in range(workers)]
            seconds = {(f"m{i}", j, f"w{w}"): row[w] for i, row in enumerate(instance.times) for j, w in places}
            times = KnownTimes(seconds)
            epochs = {f"m{i}": 1 for i in range(models)}
            bound = lower_bound(times, spread(workers, workers, replicas=3), epochs, workers).seconds
            for rule in ("auto", "backlog", "randomized"):
                makespan = simulate(hopper_of(instance, times, rule, replicas=3), times).makespan
                found.setdefault(rule, []).append((makespan / bound, makespan / instance.bound))
        for rule, pairs in found.items():
            over, against = zip(*pairs, strict=True)
            case = f"3 replicas ({statistics.fmean(against):.2f} of the time without)"
            rows.append([case, f"{models}x{workers}", rule, statistics.fmean(over), max(over)])
        ratios = [ratio for ratio, _ in found["auto"]]
        bars.append(Bar(f"3 replicas, {models}x{workers}: auto, mean", statistics.fmean(ratios), 1.05))
        bars.append(Bar(f"3 replicas, {models}x{workers}: auto, max", max(ratios), 1.10))
    return rows, bars


def outages() -> tuple[list[list[object]], list[Bar]]:
    """The excess over the bound with the outage, less what was in flight, in units of the bound."""
    rows: list[list[object]] = []
    bars = []
    for models, workers in ((64, 8), (64, 16)):
        for rule in RULES:
            ratios = []
            for seed in range(2 * SEEDS):
                instance = drawn("hx", models, workers, seed)
                away = Outage("w0", 0.3 * instance.bound, 0.5 * instance.bound)
                schedule = simulate(hopper_of(instance, instance.known(), rule), instance.known(), outages=[away])
                bound = max(instance.bound, sum(row[0] for row in instance.times) + 0.2 * instance.bound)
                ratios.append((schedule.makespan - schedule.lost) / bound)
            rows.append(["outage of a worker", f"{models}x{workers}", rule, statistics.fmean(ratios), max(ratios)])
            if rule == "auto":
                bars.append(Bar(f"outage, {models}x{workers}: auto, mean", statistics.fmean(ratios), 1.02))
    return rows, bars


def main() -> None:
    rows: list[list[object]] = []
    bars: list[Bar] = []
    for part in (surprises, replicas, outages):
        part_rows, part_bars = part()
        rows += part_rows
        bars += part_bars
    notes = {"seeds": SEEDS, "ratio": "makespan / bound on the real times"}
    report("hop_robustness", ["case", "models x workers", "rule", "mean", "max"], rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
