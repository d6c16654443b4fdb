"""How long a unit takes: estimated from the model's profile, corrected by every unit that finishes.

The logarithm of a unit's measured over its estimated time is modelled as (error of the model's profile) + (slowness of
the worker) + noise. Both terms are learned together with one scalar Kalman filter per model and per worker. Each error
is divided between them in proportion to their uncertainty, so a slow worker does not make its models look slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from regatta.errors import UsageError
from regatta.plan.schedule.units import Unit, UnitKind

SECONDS_PER_ROW = 1e-3  # before anything was measured; only ratios matter then
EVAL_SHARE = 1 / 3  # an evaluation is a forward pass; training adds the backward pass, about twice the work


class Times(Protocol):
    """Estimates for the scheduler: the seconds of a unit on a worker. The scheduler reports measured times back."""

    @property
    def noise(self) -> float:
        """How much units deviate from `seconds`: the deviation of the logarithm of measured over estimated time."""
        ...

    def seconds(self, unit: Unit, worker: str) -> float: ...

    def observe(self, unit: Unit, worker: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class RowCosts:
    train: float  # seconds per row
    eval: float  # seconds per row
    fixed: float = 0.0  # seconds per unit
    prepare: float = 0.0  # seconds per training row, where the model's data is not prepared for all models at once


class _Correction:
    """A learned logarithmic factor and how uncertain it still is."""

    __slots__ = ("value", "variance")
    FLOOR = 0.02**2  # speeds change over hours, so a correction never becomes certain

    def __init__(self, deviation: float) -> None:
        self.value = 0.0
        self.variance = deviation**2

    def update(self, log_error: float, spread: float) -> None:
        gain = self.variance / spread
        self.value += gain * log_error
        self.variance = max(self.FLOOR, self.variance * (1 - gain))


class Estimates:
    """Seconds of units from profiles, corrected as units finish. A model without a profile gets the mean profile."""

    MODEL, WORKER, NOISE = 0.3, 0.3, 0.1  # expected deviations of profiles, of worker speeds, and between units
    NEWS = 0.1  # a change of the logarithm of a group's speedup beyond this invalidates the corrections
    FORGET = 0.02  # the noise is estimated from about the last fifty units

    def __init__(self, train_rows: Sequence[int], eval_rows: Sequence[int] = ()) -> None:
        self._rows = {"train": tuple(train_rows), "eval": tuple(eval_rows)}
        self._profiles: dict[str, RowCosts] = {}
        self._models: dict[tuple[str, str], _Correction] = {}  # by kind and model
        self._workers: dict[str, _Correction] = {}
        self._mean: RowCosts | None = None
        self.shared = False  # data is prepared once for all models, so no unit pays for it
        self.speedup: Callable[[str], float] = lambda model: 1.0  # of a model that a group trains, over its profile
        self._square = self.NOISE**2  # exponential mean of squared errors

    @property
    def noise(self) -> float:
        return math.sqrt(self._square)

    def set_profile(
        self,
        model: str,
        train_seconds_per_row: float,
        eval_seconds_per_row: float,
        fixed_seconds: float = 0.0,
        prepare_seconds_per_row: float = 0.0,
    ) -> None:
        given = {
            "train_seconds_per_row": train_seconds_per_row,
            "eval_seconds_per_row": eval_seconds_per_row,
            "fixed_seconds": fixed_seconds,
            "prepare_seconds_per_row": prepare_seconds_per_row,
        }
        for name, value in given.items():
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of the profile of {model!r} is {value}; it must be zero or more seconds.")
        self._profiles[model] = RowCosts(
            train_seconds_per_row, eval_seconds_per_row, fixed_seconds, prepare_seconds_per_row
        )
        self._models.pop(("train", model), None)
        self._models.pop(("eval", model), None)
        self._mean = None

    def set_pack(self, model: str, members: Sequence[str], gain: float, fixed_seconds: float = 0.0) -> None:
        """Set the profile of a pack, whose members train together `gain` times as fast as one after another.

        Each member adds `fixed_seconds` to each unit.
        """
        known = [self.profile(member) for member in members]
        train, judged, fixed = (sum(parts) for parts in zip(*((p.train, p.eval, p.fixed) for p in known), strict=True))
        fixed += fixed_seconds * len(members)
        self.set_profile(model, train / gain, judged, fixed, max(p.prepare for p in known))

    def set_speedup(self, speedup: Callable[[str], float]) -> None:
        """Set the speedup of groups. Where it changes much, the corrections learned so far are dropped."""
        wrong = [key for key in self._models if abs(math.log(speedup(key[1]) / self.speedup(key[1]))) > self.NEWS]
        self.speedup = speedup
        if wrong:
            self._workers.clear()
        for key in wrong:
            del self._models[key]
        self._mean = None

    def profile(self, model: str) -> RowCosts:
        """The profile of a model, corrected by its units; the mean of all profiles where it has none."""
        known = self._profiles.get(model)
        return self._mean_profile() if known is None else self._corrected(model, known)

    def rows(self, kind: UnitKind) -> int:
        return sum(self._rows[kind])

    def log_error(self, unit: Unit, seconds: float) -> float:
        """The logarithm of a unit's measured time over the time that its profile predicts."""
        base = self._base(unit)
        return math.log(seconds / base) if seconds > 0 and base > 0 else 0.0

    def seconds(self, unit: Unit, worker: str) -> float:
        model, pace = self._models.get((unit.kind, unit.model)), self._workers.get(worker)
        return self._base(unit) * math.exp((model.value if model else 0.0) + (pace.value if pace else 0.0))

    def seconds_of_many(
        self, kind: UnitKind, model: str, partitions: Sequence[int], workers: Sequence[str]
    ) -> list[float]:
        """The seconds of a unit on each partition and its worker. Partitions of equal size take equally long."""
        rows, own = self._rows[kind], self._models.get((kind, model))
        value = own.value if own else 0.0
        plain = math.exp(value)
        known = self._workers
        paces = {worker: math.exp(value + known[worker].value) for worker in workers if worker in known}
        alike = {rows[j]: j for j in partitions}
        bases = {count: self._base(Unit(kind, model, 1, j)) for count, j in alike.items()}
        return [bases[rows[j]] * paces.get(worker, plain) for j, worker in zip(partitions, workers, strict=True)]

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        if unit.model not in self._profiles:
            self._profile_from_unit(unit, worker, seconds)
            return
        base = self._base(unit)
        if seconds <= 0 or base <= 0:  # the clock is too coarse, or the partition is empty: there is nothing to learn
            return
        model = self._models.setdefault((unit.kind, unit.model), _Correction(self.MODEL))
        pace = self._workers.setdefault(worker, _Correction(self.WORKER))
        log_error = math.log(seconds / base) - model.value - pace.value
        self._square += self.FORGET * (log_error**2 - self._square)
        spread = model.variance + pace.variance + self.NOISE**2
        model.update(log_error, spread)
        pace.update(log_error, spread)
        self._mean = None

    def _base(self, unit: Unit) -> float:
        profile = self._profiles.get(unit.model) or self._mean_profile()
        if unit.kind == "eval":
            rate = profile.eval
        else:
            rate = profile.train if self.shared else profile.train + profile.prepare
        return self._rows[unit.kind][unit.partition] * rate / self.speedup(unit.model) + profile.fixed

    def _profile_from_unit(self, unit: Unit, worker: str, seconds: float) -> None:
        """Take the first unit of a model without a profile as its profile."""
        rows = self._rows[unit.kind][unit.partition]
        if seconds <= 0 or rows <= 0:
            return
        pace = self._workers.get(worker)
        rate = seconds / rows * math.exp(-pace.value if pace else 0.0)
        train = rate if unit.kind == "train" else rate / EVAL_SHARE
        self.set_profile(unit.model, train, train * EVAL_SHARE)

    def _mean_profile(self) -> RowCosts:
        if self._mean is None:
            known = [self._corrected(model, profile) for model, profile in self._profiles.items()]
            known = known or [RowCosts(SECONDS_PER_ROW, SECONDS_PER_ROW * EVAL_SHARE)]
            self._mean = RowCosts(
                sum(p.train for p in known) / len(known),
                sum(p.eval for p in known) / len(known),
                sum(p.fixed for p in known) / len(known),
                sum(p.prepare for p in known) / len(known),
            )
        return self._mean

    def _corrected(self, model: str, profile: RowCosts) -> RowCosts:
        train, evaluation = self._models.get(("train", model)), self._models.get(("eval", model))
        factor = math.exp(train.value if train else 0.0)
        return RowCosts(
            profile.train * factor,
            profile.eval * math.exp(evaluation.value if evaluation else 0.0),
            profile.fixed,
            profile.prepare * factor,
        )


class KnownTimes:
    """Times that are given, for simulations: by (model, partition), or (model, partition, worker)."""

    def __init__(
        self,
        train: Mapping[tuple[str, int] | tuple[str, int, str], float],
        evals: Mapping[tuple[str, int] | tuple[str, int, str], float] | None = None,
        noise: float = 0.0,
    ) -> None:
        self.noise = noise
        self._tables = {"train": dict(train), "eval": dict(evals or {})}

    def seconds(self, unit: Unit, worker: str) -> float:
        table = self._tables[unit.kind]
        found = table.get((unit.model, unit.partition, worker), table.get((unit.model, unit.partition)))
        if found is None:
            raise UsageError(
                f"No time is known for {unit} on {worker!r}.",
                hint="Give one for (model, partition), or for (model, partition, worker).",
            )
        return found

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """Known times do not change."""
