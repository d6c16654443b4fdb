"""Small problems for the tests of rules: unit times as lists, one row per model."""

from __future__ import annotations

from collections.abc import Sequence

from hopper_invariants import RecordedHopper, check_hopper

from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.simulate import Schedule, SimulatedUnit, simulate, spread_partitions
from regatta.plan.schedule.units import Unit

Matrix = Sequence[Sequence[float]]


def known(times: Matrix, noise: float = 0.0) -> KnownTimes:
    return KnownTimes({(f"m{i}", j): t for i, row in enumerate(times) for j, t in enumerate(row)}, noise=noise)


def hopper_for(
    times: Matrix,
    rule: str,
    *,
    workers: int = 0,
    epochs: int = 1,
    effort: int | None = 0,
    noise: float = 0.0,
    later: int = 0,
) -> RecordedHopper:
    """A partition per worker unless there are fewer workers; nothing is planned ahead unless an effort is given.

    The last models, as many as come `later`, are known but not added.
    """
    partitions = len(times[0])
    hopper = RecordedHopper(partitions, estimates=known(times, noise), rule=rule, effort=effort, solver_seconds=5.0)
    for worker, held in spread_partitions(partitions, workers or partitions).items():
        hopper.add_worker(worker, *held)
    for model in range(len(times) - later):
        hopper.add_model(f"m{model}", epochs)
    return hopper


def schedule_of(times: Matrix, rule: str, **options: int) -> Schedule:
    hopper = hopper_for(times, rule, **options)
    schedule = simulate(hopper, known(times))
    check_hopper(hopper)
    return schedule


def bound_of(times: Matrix) -> float:
    """One partition per worker, one epoch."""
    return max(*(sum(column) for column in zip(*times, strict=True)), *(sum(row) for row in times))


def units_by_worker(schedule: Schedule) -> list[str]:
    """A schedule as lines, by worker: `w0: m1 0-3, m0 3-5`."""
    by_worker: dict[str, list[SimulatedUnit]] = {}
    for row in sorted(schedule.rows, key=lambda row: (row.worker, row.start)):
        by_worker.setdefault(row.worker, []).append(row)
    return [
        f"{worker}: " + ", ".join(f"{row.unit.model} {row.start:g}-{row.end:g}" for row in rows)
        for worker, rows in by_worker.items()
    ]


def two_workers(evals: int = 0, rule: str = "longest", models: int = 2) -> RecordedHopper:
    """Two partitions, one each; evaluation partition 0 lies with both, 1 with w1."""
    times = KnownTimes(
        {(f"m{i}", j): 1.0 for i in range(9) for j in range(2)}, {(f"m{i}", j): 0.5 for i in range(9) for j in range(2)}
    )
    hopper = RecordedHopper(2, evals, estimates=times, rule=rule, effort=0)
    hopper.add_worker("w0", [0], range(min(evals, 1)))
    hopper.add_worker("w1", [1], range(evals))
    for model in range(models):
        hopper.add_model(f"m{model}", 2)
    return hopper


def train(model: str, epoch: int, partition: int) -> Unit:
    return Unit("train", model, epoch, partition)
