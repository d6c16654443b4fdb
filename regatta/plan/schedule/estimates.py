"""How long a unit takes: estimated from the model's profile, corrected by every unit that finishes.

A model that was not profiled is estimated by the mean of those of its kind: see `Estimates.profile`. Plans,
simulations, the hop scheduler and the time left all ask this one class.

The logarithm of a unit's measured over its estimated time is modelled as (error of the model's profile) + (slowness of
the worker) + noise. Both terms are learned together with one scalar Kalman filter per model and per worker. Each error
is divided between them in proportion to their uncertainty, so a slow worker does not make its models look slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from regatta.errors import UsageError
from regatta.plan.schedule.model_kinds import ALL_MODELS, ModelKinds, TimedModel
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
    """Seconds of units from profiles, corrected as units finish."""

    MODEL, WORKER, NOISE = 0.3, 0.3, 0.1  # expected deviations of profiles, of worker speeds, and between units
    NEWS = 0.1  # a change of the logarithm of a group's speedup beyond this invalidates the corrections
    FORGET = 0.02  # the noise is estimated from about the last fifty units

    def __init__(self, train_rows: Sequence[int], eval_rows: Sequence[int] = ()) -> None:
        self._rows = {"train": tuple(train_rows), "eval": tuple(eval_rows)}
        self._rows_known = True
        self._profiles: dict[str, RowCosts] = {}
        self._values: dict[str, Mapping[str, object]] = {}  # hyperparameters by model
        self._builds: dict[str, str] = {}  # of the models that were profiled: kinds are learned from them
        self._packs: set[str] = set()
        self._kinds: ModelKinds | None = None  # None: not learned since the last profile
        self._labels: dict[str, tuple[str, ...]] = {}  # the kind of each model, its build, and what all models share
        self._alike: dict[str, list[str]] = {}  # the single models with a profile, by label
        self._means: dict[str, RowCosts] = {}  # by label
        self._models: dict[tuple[str, str], _Correction] = {}  # by kind and model
        self._workers: dict[str, _Correction] = {}
        self.shared = False  # data is prepared once for all models, so no unit pays for it
        self.speedup: Callable[[str], float] = lambda model: 1.0  # of a model that a group trains, over its profile
        self._square = self.NOISE**2  # exponential mean of squared errors

    @classmethod
    def for_partitions(cls, train_rows: Sequence[int | None], eval_rows: Sequence[int | None]) -> Estimates:
        """Estimates for these partitions. Where the rows of one are not known, each partition counts as one row."""
        known = None not in (*train_rows, *eval_rows)
        found = cls(*([rows or 0 if known else 1 for rows in part] for part in (train_rows, eval_rows)))
        found._rows_known = known
        return found

    @property
    def noise(self) -> float:
        return math.sqrt(self._square)

    def add_model(self, model: str, values: Mapping[str, object]) -> None:
        """Set the hyperparameters of a model; they tell its kind where it was not profiled."""
        if self._values.get(model) == values:
            return
        self._values[model] = values
        self._labels.pop(model, None)
        if model in self._profiles:
            self._kinds = None

    def set_profile(
        self,
        model: str,
        train_seconds_per_row: float,
        eval_seconds_per_row: float,
        fixed_seconds: float = 0.0,
        prepare_seconds_per_row: float = 0.0,
        build: str = "",
    ) -> None:
        costs = (train_seconds_per_row, eval_seconds_per_row, fixed_seconds, prepare_seconds_per_row)
        self._set_costs(model, RowCosts(*costs))
        self._builds[model] = build
        self._kinds = None

    def set_measured_profile(self, model: str, profile: Mapping[str, Any]) -> None:
        """Set the profile of a model from what profiling measured: the fields of a `pilot` record of the journal."""
        train, evaluate = profile["train_seconds_per_row"], profile["eval_seconds_per_row"]
        fixed, prepare = profile["fixed_seconds"], profile.get("prepare_seconds_per_row", 0.0)
        eval_fixed = profile.get("eval_fixed_seconds")
        if eval_fixed is not None and profile["eval_rows"]:
            # The fixed seconds of a training unit are counted for every unit. An evaluation leaves no state and costs
            # less, so the difference is taken off its rows.
            evaluate = max(0.0, evaluate - (fixed - eval_fixed) / profile["eval_rows"])
        if not self._rows_known:
            train, prepare = train * profile["train_rows"], prepare * profile["train_rows"]
            evaluate *= profile["eval_rows"]
        self.set_profile(model, train, evaluate, fixed, prepare, profile.get("build", ""))

    def set_pack(self, model: str, members: Sequence[str], gain: float, fixed_seconds: float = 0.0) -> None:
        """Set the profile of a pack, whose members train together `gain` times as fast as one after another.

        Each member adds `fixed_seconds` to each unit.
        """
        known = [self.profile(member) for member in members]
        train, judged, fixed = (sum(parts) for parts in zip(*((p.train, p.eval, p.fixed) for p in known), strict=True))
        fixed += fixed_seconds * len(members)
        self._packs.add(model)  # single models are not estimated by packs
        self._set_costs(model, RowCosts(train / gain, judged, fixed, max(p.prepare for p in known)))

    def _set_costs(self, model: str, costs: RowCosts) -> None:
        given = {
            "train_seconds_per_row": costs.train,
            "eval_seconds_per_row": costs.eval,
            "fixed_seconds": costs.fixed,
            "prepare_seconds_per_row": costs.prepare,
        }
        for name, value in given.items():
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of the profile of {model!r} is {value}; it must be zero or more seconds.")
        self._profiles[model] = costs
        self._models.pop(("train", model), None)
        self._models.pop(("eval", model), None)

    def set_speedup(self, speedup: Callable[[str], float]) -> None:
        """Set the speedup of groups. Where it changes much, the corrections learned so far are dropped."""
        wrong = [key for key in self._models if abs(math.log(speedup(key[1]) / self.speedup(key[1]))) > self.NEWS]
        self.speedup = speedup
        if wrong:
            self._workers.clear()
        for key in wrong:
            del self._models[key]
        self._means.clear()

    def profile(self, model: str) -> RowCosts:
        """The profile of a model, corrected by its units; where it has none, the mean of the models like it."""
        known = self._profiles.get(model)
        return self._mean_profile(model) if known is None else self._corrected(model, known)

    def models_like(self, model: str) -> Sequence[str]:
        """The single models that tell the costs of a model: those of its kind, else of its build, else all."""
        label = self._narrowest_label(model)  # this may learn the kinds
        return self._alike.get(label, ())

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

    def mean_seconds(self, kind: UnitKind, model: str) -> float:
        """The mean seconds of the units of a model over all partitions, on a worker of usual speed."""
        rows, own = self._rows[kind], self._models.get((kind, model))
        return self._seconds_of_rows(kind, model, fmean(rows)) * math.exp(own.value if own else 0.0) if rows else 0.0

    def mean_pace(self) -> float:
        """How many times as long as usual units take on the workers that are known, on average."""
        return fmean(math.exp(pace.value) for pace in self._workers.values()) if self._workers else 1.0

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
        self._forget_means(unit.model)

    def _base(self, unit: Unit) -> float:
        return self._seconds_of_rows(unit.kind, unit.model, self._rows[unit.kind][unit.partition])

    def _seconds_of_rows(self, kind: UnitKind, model: str, rows: float) -> float:
        """The seconds of a unit with this number of rows, before corrections."""
        profile = self._profiles.get(model) or self._mean_profile(model)
        if kind == "eval":
            rate = profile.eval
        else:
            rate = profile.train if self.shared else profile.train + profile.prepare
        return rows * rate / self.speedup(model) + profile.fixed

    def _profile_from_unit(self, unit: Unit, worker: str, seconds: float) -> None:
        """Take the first unit of a model without a profile as its profile: the estimate, scaled to its time."""
        base = self._base(unit)
        if seconds <= 0 or base <= 0 or not self._rows[unit.kind][unit.partition]:
            return
        pace = self._workers.get(worker)
        factor = seconds / base * math.exp(-pace.value if pace else 0.0)
        mean = self._mean_profile(unit.model)
        costs = RowCosts(mean.train * factor, mean.eval * factor, mean.fixed * factor, mean.prepare * factor)
        self._set_costs(unit.model, costs)
        for label in self._labels_of(unit.model):
            self._alike.setdefault(label, []).append(unit.model)
        self._forget_means(unit.model)

    def _mean_profile(self, model: str) -> RowCosts:
        """The estimate of a model without a profile."""
        label = self._narrowest_label(model)
        if label not in self._means:
            known = [self._corrected(other, self._profiles[other]) for other in self._alike.get(label, ())]
            known = known or [RowCosts(SECONDS_PER_ROW, SECONDS_PER_ROW * EVAL_SHARE)]
            self._means[label] = RowCosts(
                fmean(p.train for p in known),
                fmean(p.eval for p in known),
                fmean(p.fixed for p in known),
                fmean(p.prepare for p in known),
            )
        return self._means[label]

    def _narrowest_label(self, model: str) -> str:
        """The narrowest label of a model that some model with a profile shares."""
        return next((label for label in self._labels_of(model) if self._alike.get(label)), ALL_MODELS)

    def _labels_of(self, model: str) -> tuple[str, ...]:
        kinds = self._learned_kinds()
        if model not in self._labels:
            values = self._values.get(model)
            self._labels[model] = (ALL_MODELS,) if values is None else kinds.labels_of(model, values)
        return self._labels[model]

    def _learned_kinds(self) -> ModelKinds:
        if self._kinds is None:
            rows, units = self.rows("train"), len(self._rows["train"])
            profiled = {}
            for name, build in self._builds.items():
                if name in self._values:
                    costs = self._profiles[name]
                    seconds = (costs.train + costs.prepare) * rows + costs.fixed * units
                    profiled[name] = TimedModel(self._values[name], build, seconds)
            self._kinds = ModelKinds(profiled)
            self._labels, self._alike, self._means = {}, {}, {}
            for name in self._profiles:
                if name not in self._packs:
                    for label in self._labels_of(name):
                        self._alike.setdefault(label, []).append(name)
        return self._kinds

    def _forget_means(self, model: str) -> None:
        if model not in self._packs:
            for label in self._labels_of(model):
                self._means.pop(label, None)

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
