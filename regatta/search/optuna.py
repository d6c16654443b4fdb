"""Optuna's samplers and pruners, with many configurations at a time.

Optuna proposes configurations, and receives every epoch's metric and how each configuration ended. The study is in
memory; like every search, it is rebuilt from the reports. A configuration that Optuna proposes twice is trained once,
and one that `where` forbids is reported as pruned.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from regatta.configuration import Scalar, check_configuration, config_id
from regatta.errors import MissingExtraError, UsageError, nearest
from regatta.search.base import Action, Goal, Report, Stop, Train, check_count, check_seed
from regatta.search.domain import Domain, Where, function_name, make_domain
from regatta.search.spaces import Choice, Integers, Space
from regatta.seeds import derive_seed

SAMPLERS = {
    "tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler", "qmc": "QMCSampler", "random": "RandomSampler",
}  # fmt: skip
MAX_USELESS_PROPOSALS = 20  # after this many proposals in a row that cannot be trained, the next is drawn at random


@dataclass
class _OptunaTrials:
    """A configuration in training, and the Optuna trials that wait for its end."""

    trials: list[Any]
    value: float | None = None  # the best so far


@dataclass(frozen=True)
class _TrialEnd:
    state: str
    value: float | None = None


@dataclass
class _StudyRun:
    study: Any
    states: Any  # Optuna's TrialState
    domain: Domain
    distributions: dict[str, Any]
    goal: Goal
    n: int
    at_once: int
    seed: int
    open: dict[str, _OptunaTrials] = field(default_factory=dict)
    ended: dict[str, _TrialEnd] = field(default_factory=dict)
    exhausted: bool = False

    def fill(self) -> list[Action]:
        """New configurations until `at_once` are in training, or n in total."""
        actions: list[Action] = []
        while len(self.open) < self.at_once and len(self.open) + len(self.ended) < self.n and not self.exhausted:
            config, trial = self._next()
            self.open[config_id(config)] = _OptunaTrials([trial])
            actions.append(Train(config, self.goal.epochs))
        return actions

    def hear(self, report: Report) -> list[Action]:
        running = self.open.get(report.config)
        if running is None:
            return []
        actions: list[Action] = []
        if report.failed:
            self._end(report.config, _TrialEnd("FAIL"))
        else:
            pruned = self._report_metric(running, report)
            if report.epoch >= self.goal.epochs:
                self._end(report.config, _TrialEnd("PRUNED" if running.value is None else "COMPLETE", running.value))
            elif pruned:
                actions.append(Stop(report.config))
                self._end(report.config, _TrialEnd("PRUNED"))
        return [*actions, *self.fill()]

    def _report_metric(self, running: _OptunaTrials, report: Report) -> bool:
        """Report an epoch's metric to Optuna; returns whether the pruner stops the configuration."""
        value = float(report.metrics.get(self.goal.metric, float("nan")))
        no_number, _ = self.goal.rank(report.metrics)
        if not no_number:
            better = min if self.goal.mode == "min" else max
            running.value = value if running.value is None else better(running.value, value)
        for trial in running.trials:
            trial.report(value, report.epoch - 1)  # pruners count steps from 0
        return bool(running.trials[0].should_prune())

    def _end(self, config: str, ending: _TrialEnd) -> None:
        for trial in self.open.pop(config).trials:
            self._tell(trial, ending)
        self.ended[config] = ending

    def _tell(self, trial: Any, ending: _TrialEnd) -> None:
        self.study.tell(trial, ending.value, state=self.states[ending.state])

    def _next(self) -> tuple[dict[str, Scalar], Any]:
        """A new valid configuration and its trial: the next useful proposal, or one drawn at random."""
        for _ in range(MAX_USELESS_PROPOSALS):
            config, trial = self._propose()
            name = config_id(config)
            if not self.domain.allows(config):
                self._tell(trial, _TrialEnd("PRUNED"))  # samplers that use pruned trials learn to avoid the region
            elif name in self.open:
                self.open[name].trials.append(trial)
            elif name in self.ended:
                self._tell(trial, self.ended[name])
            else:
                return config, trial
        self.study.enqueue_trial(self._draw_untrained())
        return self._propose()

    def _propose(self) -> tuple[dict[str, Scalar], Any]:
        trial = self.study.ask(self.distributions)
        # Optuna does not propose the value of an axis that has only one.
        single = {name: axis.values[0] for name, axis in self.domain.axes.items() if isinstance(axis, Choice)}
        return check_configuration({name: trial.params.get(name, single.get(name)) for name in self.domain.axes}), trial

    def _draw_untrained(self) -> dict[str, Scalar]:
        """A configuration that was never trained; only the names for which Optuna chooses values."""
        known = self.open.keys() | self.ended.keys()
        random = Random(derive_seed(self.seed, "search", "optuna", len(known)))
        candidates = self.domain.draw(len(known) + 1, random, f"optuna(n={self.n})")
        fresh = next(config for config in candidates if config_id(config) not in known)
        return {name: fresh[name] for name in self.distributions}


class OptunaSearch:
    def __init__(
        self, n: int, sampler: str | Callable[..., Any], pruner: Any, at_once: int, seed: int | None, domain: Domain
    ) -> None:
        self._n, self._sampler, self._pruner, self._at_once = n, sampler, pruner, at_once
        self._seed, self._domain = seed, domain
        self._study_run: _StudyRun | None = None

    def __len__(self) -> int:
        return self._n

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_study_run": None}  # `start` makes a new one

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _study_run=None)  # earlier versions pickled it under another name

    @property
    def study(self) -> Any:
        """Optuna's study of the run, for its plots and importances; None before the start."""
        return self._study_run.study if self._study_run else None

    def describe(self) -> dict[str, Any]:
        sampler = self._sampler if isinstance(self._sampler, str) else function_name(self._sampler)
        pruner = None if self._pruner is None else type(self._pruner).__name__
        parameters = {"n": self._n, "sampler": sampler, "pruner": pruner, "at_once": self._at_once, "seed": self._seed}
        return {"kind": "optuna", **parameters, **self._domain.describe()}

    def start(self, goal: Goal) -> list[Action]:
        seed = goal.seed if self._seed is None else self._seed
        optuna = _package()
        count = self._domain.count()
        if count is not None and count < self._n:
            raise UsageError(f"optuna(n={self._n}): the space has only {count} valid configurations.")
        sampler = self._make_sampler(optuna, seed)
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
        try:
            study = optuna.create_study(
                study_name="regatta",  # some pruners assign trials to brackets by the study's name
                direction="minimize" if goal.mode == "min" else "maximize",
                sampler=sampler,
                pruner=optuna.pruners.NopPruner() if self._pruner is None else copy.deepcopy(self._pruner),
            )
        finally:
            optuna.logging.set_verbosity(level)
        kinds, axes = optuna.distributions, self._domain.axes
        distributions = {name: _distribution(kinds, axis) for name, axis in axes.items() if axis.size != 1}
        study_run = _StudyRun(
            study, optuna.trial.TrialState, self._domain, distributions, goal, self._n, self._at_once, seed
        )
        # A sampler with nothing left to propose stops the study, which Optuna allows only inside `optimize`.
        study.stop = lambda: setattr(study_run, "exhausted", True)
        self._study_run = study_run
        return study_run.fill()

    def hear(self, report: Report) -> list[Action]:
        if self._study_run is None:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # pruners average metrics that may be NaN
            return self._study_run.hear(report)

    def _make_sampler(self, optuna: Any, seed: int) -> Any:
        make, options = self._sampler, {}
        if isinstance(make, str):
            options = {"constant_liar": True} if make == "tpe" else {}  # it accounts for trials that still run
            make = getattr(optuna.samplers, SAMPLERS[make])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = make(seed=derive_seed(seed, "search", "optuna") % 2**32, **options)
        if not isinstance(sampler, optuna.samplers.BaseSampler):
            raise UsageError(f"optuna(sampler={function_name(make)}) made {sampler!r}, not an Optuna sampler.")
        return sampler


def optuna(
    space: Mapping[str, object] | None = None,
    *,
    n: int,
    sampler: str | Callable[..., Any] = "tpe",
    pruner: Any = None,
    at_once: int = 16,
    seed: int | None = None,
    where: Where | None = None,
    **axes: object,
) -> OptunaSearch:
    """n configurations that an Optuna sampler proposes, at most `at_once` of them in training.

    `sampler` is "tpe", "gp", "cmaes", "nsgaii", "qmc" or "random", or a callable that makes one from a seed: a class of
    `optuna.samplers`, `functools.partial` of one, `lambda seed: ...`. `pruner` is one of `optuna.pruners`; it receives
    the metric of every epoch. A configuration is ranked by its best epoch. `where(config)` says which combinations are
    valid.
    """
    check_count("optuna", "n", n)
    check_count("optuna", "at_once", at_once)
    check_seed("optuna", seed)
    package = _package()
    if isinstance(sampler, str):
        if sampler not in SAMPLERS:
            raise UsageError(
                f"There is no sampler {sampler!r}.",
                candidates=nearest(sampler, SAMPLERS),
                hint=f"Samplers: {', '.join(SAMPLERS)}; or give a class of optuna.samplers.",
            )
        if sampler == "cmaes" and importlib.util.find_spec("cmaes") is None:
            raise MissingExtraError("cmaes", "optuna", "The sampler 'cmaes'")
    elif not callable(sampler) or not _takes_seed(sampler):
        raise UsageError(
            f"optuna(sampler={sampler!r}): a sampler is made from a seed, so that a resumed run can make it again.",
            hint="Give the class, functools.partial(TPESampler, ...), or lambda seed: TPESampler(seed=seed, ...).",
        )
    if pruner is not None and not isinstance(pruner, package.pruners.BasePruner):
        raise UsageError(f"optuna(pruner={pruner!r}): give one of optuna.pruners, for example MedianPruner().")
    domain = make_domain("optuna", space, axes, where)
    for name, axis in domain.axes.items():
        if isinstance(axis, Choice) and len(set(axis.values)) < len(axis.values):
            raise UsageError(
                f"The axis {name!r} has values that Optuna cannot tell apart: {list(axis.values)!r}.",
                hint="Give values that are not equal as numbers, or as strings.",
            )
    domain.check_size(n, f"optuna(n={n})")
    return OptunaSearch(n, sampler, pruner, at_once, seed, domain)


def _package() -> Any:
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        raise MissingExtraError("optuna", "optuna", "search.optuna") from error


def _takes_seed(make: Callable[..., Any]) -> bool:
    parameters = inspect.signature(make).parameters
    return "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _distribution(kinds: Any, axis: Space) -> Any:
    if isinstance(axis, Choice):
        return kinds.CategoricalDistribution(axis.values)
    kind = kinds.IntDistribution if isinstance(axis, Integers) else kinds.FloatDistribution
    return kind(axis.low, axis.high, log=axis.log)
