"""How long a unit takes: a pilot's guess, corrected by every unit that finishes.

The logarithm of a unit's real over its guessed time is taken as (error of the model's pilot) + (slowness of the
worker) + noise. Both are learned together: each surprise is shared out in proportion to how uncertain either
still is (a scalar Kalman filter per model and per worker), which is a running mean that does not blame the model
for a slow worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from regatta.errors import UsageError
from regatta.plan.schedule.units import Kind, Unit

SECONDS_PER_ROW = 1e-3  # before anything was measured; only ratios matter then
EVAL_SHARE = 1 / 3  # an evaluation is a forward pass; training adds the backward pass, about twice as much


class Times(Protocol):
    """What the scheduler asks: seconds of a unit on a worker. It tells how long units really took."""

    @property
    def noise(self) -> float:
        """How far units stray from `seconds`: the deviation of the logarithm of real over estimated time."""
        ...

    def seconds(self, unit: Unit, worker: str) -> float: ...

    def observe(self, unit: Unit, worker: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Pilot:
    train: float  # seconds per row
    eval: float
    fixed: float = 0.0  # of a unit
    prepare: float = 0.0  # per row that is trained on, where each model has its data prepared for itself


class _Correction:
    """A learned logarithmic factor and how uncertain it still is."""

    __slots__ = ("value", "variance")
    FLOOR = 0.02**2  # never quite sure: speeds change over hours

    def __init__(self, deviation: float) -> None:
        self.value = 0.0
        self.variance = deviation**2

    def take(self, surprise: float, spread: float) -> None:
        gain = self.variance / spread
        self.value += gain * surprise
        self.variance = max(self.FLOOR, self.variance * (1 - gain))


class Estimates:
    """Seconds of units from pilots, corrected as units finish. A model without a pilot gets the mean of the others."""

    MODEL, WORKER, NOISE = 0.3, 0.3, 0.1  # deviations expected of pilots, of worker speeds, from unit to unit
    NEWS = 0.1  # a logarithm: groups that are so much faster or slower than was thought
    FORGET = 0.02  # the last fifty units or so tell how noisy times are

    def __init__(self, train_rows: Sequence[int], eval_rows: Sequence[int] = ()) -> None:
        self._rows = {"train": tuple(train_rows), "eval": tuple(eval_rows)}
        self._pilots: dict[str, Pilot] = {}
        self._models: dict[tuple[str, str], _Correction] = {}  # by kind and model
        self._workers: dict[str, _Correction] = {}
        self._mean: Pilot | None = None
        self.shared = False  # data is prepared once for all models: no unit pays for it
        self.hands: Callable[[str], float] = lambda model: 1.0  # so many times as fast as its pilot: by a group
        self._square = self.NOISE**2  # of surprises, a running mean that forgets

    @property
    def noise(self) -> float:
        return math.sqrt(self._square)

    def set_pilot(
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
                raise UsageError(f"{name} of the pilot of {model!r} is {value}; it must be zero or more seconds.")
        self._pilots[model] = Pilot(train_seconds_per_row, eval_seconds_per_row, fixed_seconds, prepare_seconds_per_row)
        self._models.pop(("train", model), None)
        self._models.pop(("eval", model), None)
        self._mean = None

    def set_joint(self, model: str, members: Sequence[str], gain: float, fixed_seconds: float = 0.0) -> None:
        """A model that stands for several: they are trained side by side, `gain` times as fast as one by one.

        In each unit that takes `fixed_seconds` more of each.
        """
        known = [self.pilot(member) for member in members]
        train, judged, fixed = (sum(parts) for parts in zip(*((p.train, p.eval, p.fixed) for p in known), strict=True))
        fixed += fixed_seconds * len(members)
        self.set_pilot(model, train / gain, judged, fixed, max(p.prepare for p in known))

    def set_hands(self, hands: Callable[[str], float]) -> None:
        """Groups are so many times as fast: if that is news, what models and workers were blamed for is forgotten."""
        wrong = [key for key in self._models if abs(math.log(hands(key[1]) / self.hands(key[1]))) > self.NEWS]
        self.hands = hands
        if wrong:
            self._workers.clear()
        for key in wrong:
            del self._models[key]
        self._mean = None

    def pilot(self, model: str) -> Pilot:
        """What is known of a model now: its pilot, corrected by its units; the mean of all where it has none."""
        known = self._pilots.get(model)
        return self._mean_pilot() if known is None else self._corrected(model, known)

    def rows(self, kind: Kind) -> int:
        return sum(self._rows[kind])

    def surprise(self, unit: Unit, seconds: float) -> float:
        """The logarithm of a unit's real time over what its pilot said."""
        base = self._base(unit)
        return math.log(seconds / base) if seconds > 0 and base > 0 else 0.0

    def seconds(self, unit: Unit, worker: str) -> float:
        return self._base(unit) * math.exp(self._value(unit, worker))

    def many(self, kind: Kind, model: str, partitions: Sequence[int], workers: Sequence[str]) -> list[float]:
        """The same for each partition and the worker beside it: those with equally many rows take equally long."""
        rows, own = self._rows[kind], self._models.get((kind, model))
        value = own.value if own else 0.0
        plain = math.exp(value)
        known = self._workers
        paces = {worker: math.exp(value + known[worker].value) for worker in workers if worker in known}
        alike = {rows[j]: j for j in partitions}
        bases = {count: self._base(Unit(kind, model, 1, j)) for count, j in alike.items()}
        return [bases[rows[j]] * paces.get(worker, plain) for j, worker in zip(partitions, workers, strict=True)]

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        if unit.model not in self._pilots:
            self._adopt(unit, worker, seconds)
            return
        base = self._base(unit)
        if seconds <= 0 or base <= 0:  # nothing to learn from: a clock too coarse, an empty partition
            return
        model = self._models.setdefault((unit.kind, unit.model), _Correction(self.MODEL))
        pace = self._workers.setdefault(worker, _Correction(self.WORKER))
        surprise = math.log(seconds / base) - model.value - pace.value
        self._square += self.FORGET * (surprise**2 - self._square)
        spread = model.variance + pace.variance + self.NOISE**2
        model.take(surprise, spread)
        pace.take(surprise, spread)
        self._mean = None

    def _base(self, unit: Unit) -> float:
        pilot = self._pilots.get(unit.model) or self._mean_pilot()
        rate = self._per_row(pilot) if unit.kind == "train" else pilot.eval
        return self._rows[unit.kind][unit.partition] * rate / self.hands(unit.model) + pilot.fixed

    def _per_row(self, pilot: Pilot) -> float:
        return pilot.train if self.shared else pilot.train + pilot.prepare

    def _value(self, unit: Unit, worker: str) -> float:
        model = self._models.get((unit.kind, unit.model))
        pace = self._workers.get(worker)
        return (model.value if model else 0.0) + (pace.value if pace else 0.0)

    def _adopt(self, unit: Unit, worker: str, seconds: float) -> None:
        """The first unit of a model that had no pilot is its pilot."""
        rows = self._rows[unit.kind][unit.partition]
        if seconds <= 0 or rows <= 0:
            return
        pace = self._workers.get(worker)
        rate = seconds / rows * math.exp(-pace.value if pace else 0.0)
        train = rate if unit.kind == "train" else rate / EVAL_SHARE
        self.set_pilot(unit.model, train, train * EVAL_SHARE)

    def _mean_pilot(self) -> Pilot:
        if self._mean is None:
            known = [self._corrected(model, pilot) for model, pilot in self._pilots.items()]
            count = len(known)
            self._mean = (
                Pilot(
                    sum(p.train for p in known) / count,
                    sum(p.eval for p in known) / count,
                    sum(p.fixed for p in known) / count,
                    sum(p.prepare for p in known) / count,
                )
                if known
                else Pilot(SECONDS_PER_ROW, SECONDS_PER_ROW * EVAL_SHARE)
            )
        return self._mean

    def _corrected(self, model: str, pilot: Pilot) -> Pilot:
        train, evaluation = self._models.get(("train", model)), self._models.get(("eval", model))
        factor = math.exp(train.value if train else 0.0)
        return Pilot(
            pilot.train * factor,
            pilot.eval * math.exp(evaluation.value if evaluation else 0.0),
            pilot.fixed,
            pilot.prepare * factor,
        )


class KnownTimes:
    """Times that are simply given, for simulations: by (model, partition), or (model, partition, worker)."""

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
        """What is given stays as it is."""
