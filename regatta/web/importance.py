"""Which hyperparameters the metric depended on: a share for each, from Optuna's fANOVA or from a random forest.

Both learn the metric from the values and ask how much of its variation each value explains; neither knows more than the
configurations that were tried. So the answer says how many these were, and is no answer when they are too few.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regatta.web.scales import Axis

if TYPE_CHECKING:
    import optuna

    from regatta.journal.record import ConfigRecord, RunRecord

FEWEST = 8  # configurations, below which shares would be noise
NEARLY_ALL = 0.9
MOST = 200  # for fANOVA, whose time grows faster than their number
FANOVA = "fANOVA (Optuna)"
FOREST = "permutation importance of a random forest (scikit-learn)"


@dataclass(frozen=True)
class Importance:
    """Shares that sum to 1, by name, largest first; without a method there are none, and `text` says why."""

    text: str
    method: str | None = None
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sample:
    """The configurations that can be compared: each with its values, by axis, and what it came to."""

    axes: Sequence[Axis]
    rows: list[list[Any]]
    targets: list[float]
    text: str


def importance(record: RunRecord, axes: Sequence[Axis]) -> Importance:
    """How much of the metric each axis explains."""
    sample = _comparable(record, axes)
    if isinstance(sample, str):
        return Importance(sample)
    if importlib.util.find_spec("optuna") is not None:
        step = math.ceil(len(sample.rows) / MOST)
        method, shares = (
            FANOVA + (f" of one in {step} of them, from best to worst" if step > 1 else ""),
            _by_fanova(sample, step),
        )
    else:
        method, shares = FOREST, _by_forest(sample)
    whole = sum(shares.values())
    if whole <= 0:
        return Importance("No value explains any of the differences between the configurations.")
    ranked = dict(sorted(((name, share / whole) for name, share in shares.items()), key=lambda item: -item[1]))
    return Importance(sample.text, method, ranked)


def _comparable(record: RunRecord, axes: Sequence[Axis]) -> _Sample | str:
    """Configurations by their best value up to an epoch that nearly all reached, or why there are none to compare."""
    if len(record.configs) < 2:
        return "There is nothing to compare a single configuration with."
    fresh = [config for config in record.configs.values() if config.parent is None]
    whole = [axis for axis in axes if all(axis.name in config.values for config in fresh)]
    if not whole:
        return "No hyperparameter varied that all configurations have."
    epoch = _common_epoch(fresh)
    values = {config.id: _value(record, config, epoch) for config in fresh}
    found = [(record.configs[config], value) for config, value in values.items() if value is not None]
    if len(found) < FEWEST:
        return f"Too few configurations to say: {len(found)} have a number to compare, and it takes {FEWEST}."
    rows = [[config.values[axis.name] for axis in whole] for config, _ in found]
    targets, outliers = _without_outliers([value for _, value in found], record.mode)
    if max(targets) <= min(targets):
        return f"All configurations came to the same {record.metric}."
    short, children = len(fresh) - len(found), len(record.configs) - len(fresh)
    remarks = {
        f"From {len(found)} configurations, by their best {record.metric} up to epoch {epoch}": True,
        f"{short} others did not come so far or have no number": short,
        f"{children} that began from another's state are left out": children,
        f"values far beyond the others ({outliers}) count as less far": outliers,
        "values that only some have are left out": len(whole) < len(axes),
    }
    return _Sample(whole, rows, targets, "; ".join(text for text, holds in remarks.items() if holds) + ".")


def _common_epoch(configs: Sequence[ConfigRecord]) -> int:
    """The last epoch that nearly all came to. Later ones have only those that a search let go on: a choice by the very
    metric that is to be explained."""
    reached = sorted((config.epoch for config in configs if config.epoch), reverse=True)
    return reached[math.ceil(NEARLY_ALL * len(reached)) - 1] if reached else 0


def _value(record: RunRecord, config: ConfigRecord, epoch: int) -> float | None:
    if config.epoch < epoch:
        return None
    values = [config.reports[e].get(record.metric, math.nan) for e in config.reports if e <= epoch]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return min(finite) if record.mode == "min" else max(finite)


def _without_outliers(values: list[float], mode: str) -> tuple[list[float], int]:
    """One model that diverged would be all that there is to explain: values far on the bad side are drawn in."""
    import numpy as np

    low, high = (float(q) for q in np.quantile(values, [0.25, 0.75]))
    far = 3 * (high - low)
    drawn = [min(value, high + far) if mode == "min" else max(value, low - far) for value in values]
    return drawn, sum(a != b for a, b in zip(values, drawn, strict=True))


def _by_fanova(sample: _Sample, step: int) -> dict[str, float]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study()
    finally:
        optuna.logging.set_verbosity(level)
    order = sorted(range(len(sample.rows)), key=lambda i: sample.targets[i])
    study.add_trials([_trial(sample, i) for i in order[::step]])
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {sample.axes[int(number)].name: float(share) for number, share in found.items()}


def _trial(sample: _Sample, row: int) -> optuna.trial.FrozenTrial:
    """Optuna's word for a configuration; axes go by number, since their names may be anything."""
    import optuna

    params: dict[str, Any] = {}
    ranges: dict[str, optuna.distributions.BaseDistribution] = {}
    for number, (axis, value) in enumerate(zip(sample.axes, sample.rows[row], strict=True)):
        if axis.kind == "words":
            ranges[str(number)] = optuna.distributions.CategoricalDistribution(tuple(range(len(axis.words))))
            params[str(number)] = axis.words.index(axis.word(value))
        else:
            log = axis.kind == "log"
            ranges[str(number)] = optuna.distributions.FloatDistribution(axis.low, axis.high, log=log)
            params[str(number)] = float(value)
    return optuna.trial.create_trial(params=params, distributions=ranges, value=sample.targets[row])


def _by_forest(sample: _Sample) -> dict[str, float]:
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    columns = [[axis.place(row[number]) for row in sample.rows] for number, axis in enumerate(sample.axes)]
    x, y = np.array(columns).T, np.array(sample.targets)
    forest = RandomForestRegressor(n_estimators=100, random_state=0).fit(x, y)
    found = permutation_importance(forest, x, y, n_repeats=10, random_state=0)
    return {axis.name: max(0.0, float(m)) for axis, m in zip(sample.axes, found.importances_mean, strict=True)}
