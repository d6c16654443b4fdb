"""The importance of hyperparameters for the metric: a share for each, from Optuna's fANOVA or from a random forest.

Both learn the metric from the values, and compute how much of its variation each value explains. They know only the
configurations of the run, so the result says how many there were, and is empty if there were too few.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.format import count
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.web.scales import Axis

if TYPE_CHECKING:
    import optuna

MIN_CONFIGS = 8  # with fewer, shares would be noise
NEARLY_ALL = 0.9
MAX_FANOVA_CONFIGS = 200  # the time of fANOVA grows faster than their number
FANOVA = "fANOVA (Optuna)"
FOREST = "permutation importance of a random forest (scikit-learn)"


@dataclass(frozen=True)
class Importance:
    """Shares that sum to 1, by name, largest first. If there are none, `method` is None and `text` says why."""

    text: str
    method: str | None = None
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sample:
    """The comparable configurations: each with its values by axis, and its best metric."""

    axes: Sequence[Axis]
    rows: list[list[Any]]
    targets: list[float]
    text: str


def importance(record: RunRecord, axes: Sequence[Axis]) -> Importance:
    """The share of the metric's variation that each axis explains."""
    sample = _comparable(record, axes)
    if isinstance(sample, str):
        return Importance(sample)
    if importlib.util.find_spec("optuna") is not None:
        step = math.ceil(len(sample.rows) / MAX_FANOVA_CONFIGS)
        method = FANOVA + (f" of one in {step} of them, from best to worst" if step > 1 else "")
        shares = _by_fanova(sample, step)
    else:
        method, shares = FOREST, _by_forest(sample)
    whole = sum(shares.values())
    if whole <= 0:
        return Importance("No hyperparameter explains the differences between the configurations.")
    ranked = dict(sorted(((name, share / whole) for name, share in shares.items()), key=lambda item: -item[1]))
    return Importance(sample.text, method, ranked)


def _comparable(record: RunRecord, axes: Sequence[Axis]) -> _Sample | str:
    """Configurations by their best value up to an epoch that nearly all reached, or the reason why there are none."""
    if len(record.configs) < 2:
        return "A single configuration cannot be compared."
    fresh = [config for config in record.configs.values() if config.parent is None]
    whole = [axis for axis in axes if all(axis.name in config.values for config in fresh)]
    if not whole:
        return "No hyperparameter that all configurations have was varied."
    epoch = _common_epoch(fresh)
    values = {config.id: _value(record, config, epoch) for config in fresh}
    found = [(record.configs[config], value) for config, value in values.items() if value is not None]
    if len(found) < MIN_CONFIGS:
        return f"Too few configurations: {len(found)} have a number to compare, and {MIN_CONFIGS} are needed."
    rows = [[config.values[axis.name] for axis in whole] for config, _ in found]
    targets, outliers = _without_outliers([value for _, value in found], record.mode)
    if max(targets) <= min(targets):
        return f"All configurations reached the same {record.metric}."
    short, children = len(fresh) - len(found), len(record.configs) - len(fresh)
    remarks = {
        f"From {len(found)} configurations, by their best {record.metric} up to epoch {epoch}": True,
        f"{short} others stopped earlier or have no number": short,
        f"{children} that started from the state of another one are left out": children,
        f"{count(outliers, 'outlier')} clipped": outliers,
        "hyperparameters that only some have are left out": len(whole) < len(axes),
    }
    return _Sample(whole, rows, targets, "; ".join(text for text, holds in remarks.items() if holds) + ".")


def _common_epoch(configs: Sequence[ConfigRecord]) -> int:
    """The last epoch that nearly all configurations reached.

    Later epochs have only configurations that the search selected, by the metric that is to be explained.
    """
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
    """Clip values far on the bad side: otherwise one model that diverged would be all that there is to explain."""
    low, high = (float(q) for q in np.quantile(values, [0.25, 0.75]))
    far = 3 * (high - low)
    clipped = [min(value, high + far) if mode == "min" else max(value, low - far) for value in values]
    return clipped, sum(a != b for a, b in zip(values, clipped, strict=True))


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
    """A configuration as a trial of Optuna; axes are named by number, since their names may be any text."""
    import optuna

    params: dict[str, Any] = {}
    ranges: dict[str, optuna.distributions.BaseDistribution] = {}
    for number, (axis, value) in enumerate(zip(sample.axes, sample.rows[row], strict=True)):
        if axis.kind == "words":
            ranges[str(number)] = optuna.distributions.CategoricalDistribution(tuple(range(len(axis.words))))
            params[str(number)] = axis.words.index(str(value))
        else:
            log = axis.kind == "log"
            ranges[str(number)] = optuna.distributions.FloatDistribution(axis.low, axis.high, log=log)
            params[str(number)] = float(value)
    return optuna.trial.create_trial(params=params, distributions=ranges, value=sample.targets[row])


def _by_forest(sample: _Sample) -> dict[str, float]:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    columns = [[axis.place(row[number]) for row in sample.rows] for number, axis in enumerate(sample.axes)]
    x, y = np.array(columns).T, np.array(sample.targets)
    forest = RandomForestRegressor(n_estimators=100, random_state=0).fit(x, y)
    found = permutation_importance(forest, x, y, n_repeats=10, random_state=0)
    return {axis.name: max(0.0, float(m)) for axis, m in zip(sample.axes, found.importances_mean, strict=True)}
