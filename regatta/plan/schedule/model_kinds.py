"""Which models take about equally long: those of one build, with no gap between their times. Pure.

The kind of a model that was not profiled follows from its hyperparameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIND_GAP = 2.0  # a model of one build that takes this many times as long as the next faster one starts another kind
ALL_MODELS = "all models"


def split_by_time(seconds: Mapping[str, float]) -> list[list[str]]:
    """The models from fast to slow, in several lists where there is a gap between their times."""
    parts: list[list[str]] = []
    for name in sorted(seconds, key=lambda name: seconds[name]):
        if not parts or seconds[name] > KIND_GAP * seconds[parts[-1][-1]]:
            parts.append([])
        parts[-1].append(name)
    return parts


class LabelsByValues:
    """A label of each configuration, such as its build: as learned, or that of one with the same decisive values.

    A build names the structure under which models can be packed. A value is decisive if known labels would be mixed up
    without it. A wrong guess makes a pack slower, but never wrong.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, object], str]] = {}  # values and label, by configuration
        self._decisive: tuple[str, ...] = ()
        self._by_values: dict[tuple[str, ...], str] | None = None  # None: not computed since the last label

    def learn(self, name: str, values: Mapping[str, object], label: str) -> None:
        self._known[name] = values, label
        self._by_values = None

    def label_of(self, name: str, values: Mapping[str, object]) -> str:
        """The label of a configuration; empty where no known configuration tells it."""
        if name in self._known:
            return self._known[name][1]
        if self._by_values is None:
            self._decisive = self._find_decisive()
            self._by_values = {}
            for known, label in self._known.values():
                self._by_values.setdefault(_select(known, self._decisive), label)
        return self._by_values.get(_select(values, self._decisive), "")

    def _find_decisive(self) -> tuple[str, ...]:
        distinct: dict[str, set[str]] = {}
        for values, _ in self._known.values():
            for name, value in values.items():
                distinct.setdefault(name, set()).add(repr(value))
        fractional = {name for values, _ in self._known.values() for name, v in values.items() if isinstance(v, float)}
        # A few profiles may leave several explanations. Prefer batch_size, which always splits builds, and drop numbers
        # such as learning rates first, which never do.
        names = sorted(distinct, key=lambda k: (k == "batch_size", k not in fractional, -len(distinct[k]), k))
        for name in list(names):
            others = tuple(other for other in names if other != name)
            if self._tells_apart(others):
                names.remove(name)
        return tuple(names)

    def _tells_apart(self, names: tuple[str, ...]) -> bool:
        """Whether these values alone determine each known label."""
        found: dict[tuple[str, ...], str] = {}
        return all(found.setdefault(_select(values, names), label) == label for values, label in self._known.values())


def _select(values: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(repr(values.get(name)) for name in names)


@dataclass(frozen=True)
class TimedModel:
    """A profiled model: its hyperparameters, its build, and its seconds."""

    values: Mapping[str, object]
    build: str
    seconds: float


class ModelKinds:
    """The kind of each model: as profiled, or as its hyperparameters tell."""

    def __init__(self, profiled: Mapping[str, TimedModel]) -> None:
        self._builds, self._kinds = LabelsByValues(), LabelsByValues()
        by_build: dict[str, dict[str, float]] = {}
        for name, model in profiled.items():
            self._builds.learn(name, model.values, model.build)
            by_build.setdefault(model.build, {})[name] = model.seconds
        for build, seconds in by_build.items():
            for number, names in enumerate(split_by_time(seconds)):
                for name in names:
                    self._kinds.learn(name, profiled[name].values, f"kind {number} of build {build}")

    def labels_of(self, name: str, values: Mapping[str, object]) -> tuple[str, ...]:
        """The kind of a model, its build, and what all models share: those that are known, the narrowest first."""
        build = self._builds.label_of(name, values)
        found = (self._kinds.label_of(name, values), f"build {build}" if build else "")
        return (*filter(None, found), ALL_MODELS)
