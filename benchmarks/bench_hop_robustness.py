"""Hop schedules when times are not as estimated, when workers leave, and when partitions are replicated.

Makespan over what no schedule could beat, had it known the real times.

- Surprises. Units that stray by 5, 10 or 30% from means that are known, or, "unforeseen", from what pilots said of the
  model alone, without a word on how far they stray; pilots that are wrong by 30% per model and have to be unlearnt,
  in one epoch and in three. A bar is for the worst of the three kinds of instances.
- Unlike workers. Three replicas, and partitions in proportion to speed: against the bound of a linear program, and
  against the bound of equal partitions without replicas. What the program allows is a matter of the drawn speeds.
- Outage. One worker is away from 30% to 50% of the bound, without replicas; what it had in flight is lost and counted.
- Away. One of eight workers, drawn at random, is away for 20% of the run from a random moment on, with two replicas:
  against the same run undisturbed. Where a single unit takes several percent of the run (16 or 32 models, one epoch)
  there is no bar: of 16 equal units per worker the outage takes 0.4 and what was in flight, and 17 rounds are 1.0625.

    python benchmarks/bench_hop_robustness.py      # about eight minutes of processor time
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from hop_suites import KINDS, Instance, drawn
from report import Bar, report

from regatta.plan.schedule.estimates import Estimates, KnownTimes, Times
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.lower_bounds import lower_bound
from regatta.plan.schedule.simulate import Outage, simulate, spread_partitions

SIZES = ((16, 8), (64, 16), (12, 8), (16, 16))
UNLIKE = ((64, 8), (64, 16), (128, 8), (128, 16), (256, 8), (256, 16))
AWAY = ((16, 1), (32, 1), (64, 1), (16, 3), (32, 3), (64, 3))  # models, epochs
RULES = ("auto", "longest", "randomized")
SEEDS = 4
ROWS = 1000  # of a partition, for estimates per row

UnitOption = tuple[list[list[object]], list[Bar]]


def hopper_of(
    instance: Instance, estimates: Times, rule: str, epochs: int = 1, replicas: int = 1, seed: int = 0
) -> Hopper:
    workers = len(instance.speeds)
    hopper = Hopper(workers, estimates=estimates, rule=rule, seed=seed)
    for worker, held in spread_partitions(workers, workers, replicas=replicas).items():
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


def learnt(epochs: int, *, per_model: bool) -> Callable[[Instance, str, int], float]:
    """With the engine's estimates, which start from one pilot per model and learn what models and workers take."""

    def run(instance: Instance, rule: str, seed: int) -> float:
        real = strayed(instance, 0.3, seed, per_model=per_model)
        estimates = Estimates([ROWS] * len(instance.speeds))
        for model, row in enumerate(instance.times):
            estimates.set_profile(f"m{model}", statistics.fmean(row) / ROWS, 0.0)
        makespan = simulate(hopper_of(instance, estimates, rule, epochs), known(real)).makespan
        return makespan / (epochs * bound_of(real))

    return run


SURPRISES = {
    "units stray 5%": unit_noise(0.05),
    "units stray 10%": unit_noise(0.1),
    "units stray 30%": unit_noise(0.3),
    "units stray 30%, unforeseen": learnt(1, per_model=False),
    "pilots wrong by 30%, one epoch": learnt(1, per_model=True),
    "pilots wrong by 30%, three epochs": learnt(3, per_model=True),
}


def surprise(case: str) -> UnitOption:
    rows: list[list[object]] = []
    bars = []
    for models, workers in SIZES:
        worst = 0.0
        for rule in RULES:
            by_kind = [[SURPRISES[case](drawn(k, models, workers, s), rule, s) for s in range(SEEDS)] for k in KINDS]
            ratios = [ratio for kind in by_kind for ratio in kind]
            rows.append([case, f"{models}x{workers}", rule, statistics.fmean(ratios), max(ratios)])
            if rule == "auto":
                worst = max(map(statistics.fmean, by_kind))
        limit = 1.02 if models >= 2 * workers else 1.05
        bars.append(Bar(f"{case}, {models}x{workers}: auto, mean of the worst kind", worst, limit))
    return rows, bars


def on_any_worker(instance: Instance, sizes: list[float] | None = None) -> KnownTimes:
    """Seconds of each unit on each worker; `sizes` of the partitions where they are not all one."""
    workers = range(len(instance.speeds))
    sizes = sizes or [1.0 for _ in workers]
    rows = enumerate(instance.times)
    return KnownTimes({(f"m{i}", j, f"w{w}"): row[w] * sizes[j] for i, row in rows for j in workers for w in workers})


def unlike_workers(models: int, workers: int) -> UnitOption:
    """Makespan over the linear program's bound, and what it and that bound are of the bound without replicas."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(2 * SEEDS):
        instance = drawn("xx", models, workers, seed)
        mean_speed = statistics.fmean(instance.speeds)
        for remedy, copies, sizes in (
            ("3 replicas", 3, None),
            ("partitions as speeds", 1, [speed / mean_speed for speed in instance.speeds]),
        ):
            times = on_any_worker(instance, sizes)
            holdings = spread_partitions(workers, workers, replicas=copies)
            bound = lower_bound(times, holdings, {f"m{i}": 1 for i in range(models)}, workers).seconds
            found.setdefault((remedy, "(bound)"), []).append((1.0, bound / instance.bound))
            for rule in ("auto", "backlog", "randomized") if copies > 1 else ("auto", "randomized"):
                makespan = simulate(hopper_of(instance, times, rule, 1, copies, seed), times).makespan
                found.setdefault((remedy, rule), []).append((makespan / bound, makespan / instance.bound))
    rows: list[list[object]] = []
    bars = []
    for (remedy, rule), pairs in found.items():
        over, against = zip(*pairs, strict=True)
        share = statistics.fmean(against)
        size = f"{models}x{workers}"
        rows.append([f"{remedy} ({share:.3f} of the bound without)", size, rule, statistics.fmean(over), max(over)])
        if rule == "auto":
            bars.append(Bar(f"{remedy}, {size}: auto, of the bound without, mean", share, 0.56))
            bars.append(Bar(f"{remedy}, {size}: auto, of the linear program, mean", statistics.fmean(over), 1.05))
            bars.append(Bar(f"{remedy}, {size}: auto, of the linear program, max", max(over), 1.10))
    return rows, bars


def away(kind: str) -> UnitOption:
    """One of eight workers, two replicas: makespan over that of the same rule undisturbed."""
    rows: list[list[object]] = []
    bars = []
    for models, epochs in AWAY:
        calm: dict[str, list[float]] = {}
        ratios: dict[str, list[float]] = {}
        for seed in range(SEEDS):
            for rule in ("auto", "randomized"):
                undisturbed, disturbed = with_one_away(drawn(kind, models, 8, seed), rule, epochs, seed)
                calm.setdefault(rule, []).append(undisturbed)
                ratios.setdefault(rule, []).append(disturbed / undisturbed)
        slower = statistics.fmean(r / a for r, a in zip(calm["randomized"], calm["auto"], strict=True))
        case = f"away for 20%, 2 replicas, {kind}, {epochs} epochs"
        for rule, label in (("auto", "auto"), ("randomized", f"randomized ({slower:.2f} of auto undisturbed)")):
            rows.append([case, f"{models}x8", label, statistics.fmean(ratios[rule]), max(ratios[rule])])
        if epochs > 1 or models >= 64:
            bars.append(Bar(f"{case}, {models}x8: auto, mean", statistics.fmean(ratios["auto"]), 1.05))
    return rows, bars


def with_one_away(instance: Instance, rule: str, epochs: int, seed: int) -> tuple[float, float]:
    draw = random.Random(seed)
    worker, moment = f"w{draw.randrange(len(instance.speeds))}", draw.uniform(0.0, 0.8)
    times = on_any_worker(instance)

    def run(*gone: Outage) -> float:
        return simulate(hopper_of(instance, times, rule, epochs, 2, seed), times, outages=gone).makespan

    undisturbed = run()
    return undisturbed, run(Outage(worker, moment * undisturbed, (moment + 0.2) * undisturbed))


def outages() -> UnitOption:
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
    parts: list[Callable[[], UnitOption]] = [partial(surprise, case) for case in SURPRISES]
    parts += [partial(unlike_workers, models, workers) for models, workers in UNLIKE]
    parts += [outages, *(partial(away, kind) for kind in KINDS)]
    rows: list[list[object]] = []
    bars: list[Bar] = []
    with ProcessPoolExecutor() as pool:
        for future in [pool.submit(part) for part in parts]:
            part_rows, part_bars = future.result()
            rows += part_rows
            bars += part_bars
    notes = {"seeds": SEEDS, "seeds, unlike workers": 2 * SEEDS, "ratio": "makespan / bound on the real times"}
    report("hop_robustness", ["case", "models x workers", "rule", "mean", "max"], rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
