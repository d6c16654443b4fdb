from __future__ import annotations

import functools
import importlib.util
import logging
import math
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from regatta import search
from regatta.configuration import Scalar, canonical
from regatta.errors import MissingExtraError, UsageError
from regatta.search import Goal, Search, Stop, Train, stopping
from regatta.testing.search import SearchContract, SimulatedRun, answers, run_to_end

GOAL = Goal("loss", "min", 4, 0)
needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="Optuna is not installed")
needs_cmaes = pytest.mark.skipif(importlib.util.find_spec("cmaes") is None, reason="cmaes is not installed")


def bowl(values: Mapping[str, Any], epoch: int) -> float:
    return float((values["x"] - 0.3) ** 2 + 0.1 * math.log10(values["lr"] / 1e-2) ** 2 + 0.5 / epoch)


def optuna(**options: Any) -> search.optuna.OptunaSearch:  # type: ignore[name-defined]
    options = {"n": 8, "at_once": 3, **options}
    return search.optuna(x=search.uniform(-1, 1), lr=search.loguniform(1e-4, 1.0), **options)


@needs_optuna
class TestOptuna(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return search.optuna(
            n=12, at_once=5, act=["relu", "tanh", None], width=search.integers(1, 64, log=True), depth=3, x=[0.5, 0.1]
        )


@needs_optuna
class TestOptunaWithPruner(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        import optuna as package

        pruner = package.pruners.MedianPruner(n_startup_trials=1)
        return optuna(sampler="random", pruner=pruner, where=lambda c: c["x"] > 0)


@needs_optuna
class TestPatientOptuna(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return stopping(
            optuna(sampler=functools.partial(_package().samplers.TPESampler, n_startup_trials=2)), patience=1
        )


def _package() -> Any:
    return importlib.import_module("optuna")


@needs_optuna
@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", "nsgaii", pytest.param("cmaes", marks=needs_cmaes)])
def test_any_sampler_proposes_and_is_rebuilt_from_reports(sampler: str) -> None:
    check_sampler(sampler, n=20)


@needs_optuna
def test_a_custom_sampler_proposes_and_is_rebuilt_from_reports() -> None:
    check_sampler(lambda seed: _package().samplers.GPSampler(seed=seed, n_startup_trials=2), n=4)


def check_sampler(sampler: Any, n: int) -> None:
    procedure = optuna(sampler=sampler, n=n)
    run = run_to_end(procedure, GOAL, bowl)
    assert len(run.wanted) == len({canonical(values) for values in run.values.values()}) == n
    assert all(epoch == GOAL.epochs for epoch in run.reached.values())
    first = answers(procedure, GOAL, run.story)
    cut = len(run.story) // 2
    again = optuna(sampler=sampler, n=n)
    assert answers(again, GOAL, run.story[:cut]) == first[: cut + 1]
    assert [again.hear(report) for report in run.story[cut:]] == first[cut + 1 :]


@needs_optuna
def test_a_sampler_learns_from_reports() -> None:
    """Better than drawing at random, on a bowl; with the sign turned, as good at finding the top."""

    def best(sampler: str, mode: Any) -> float:
        sign = 1.0 if mode == "min" else -1.0
        found = []
        for seed in range(3):
            run = run_to_end(
                optuna(sampler=sampler, n=60, at_once=4), Goal("loss", mode, 1, seed), lambda v, e: sign * bowl(v, e)
            )
            found.append(min(sign * report.metrics["loss"] for report in run.story))
        return sum(found) / 3 - 0.5

    assert best("tpe", "min") < best("random", "min") / 2
    assert best("tpe", "max") == pytest.approx(best("tpe", "min"))


@needs_optuna
def test_the_number_in_training_is_limited() -> None:
    procedure = optuna(n=7, at_once=3)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    while run.open():
        assert len(run.open()) == min(3, 7 - len(run.wanted) + len(run.open()))
        config = run.open()[-1]
        run.act(procedure.hear(run.report(config, 1.0)))
    assert len(run.wanted) == 7


@needs_optuna
def test_the_study_records_how_each_trial_ended() -> None:
    states = _package().trial.TrialState
    procedure = optuna(n=4, at_once=4, sampler="random")
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    outcomes: dict[str, list[Any]] = dict(
        zip(
            run.open(),
            ([3.0, 1.0, 2.0, 2.5], [None], [math.nan, "missing", 5.0, math.nan], [math.nan] * 4),
            strict=True,
        )
    )
    for config, curve in outcomes.items():
        for outcome in curve:
            procedure.hear(run.report(config, outcome))
    found = [(trial.state, trial.value) for trial in procedure.study.trials]
    assert found == [(states.COMPLETE, 1.0), (states.FAIL, None), (states.COMPLETE, 5.0), (states.PRUNED, None)]
    assert procedure.study.trials[0].intermediate_values == {0: 3.0, 1: 1.0, 2: 2.0, 3: 2.5}


@needs_optuna
def test_a_pruner_stops_bad_configurations() -> None:
    pruner = _package().pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    procedure = optuna(n=3, at_once=1, sampler="random", pruner=pruner)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    for level in (1.0, 2.0):
        config = run.open()[0]
        for _ in range(GOAL.epochs):
            run.act(procedure.hear(run.report(config, level)))
    (config,) = run.open()
    assert procedure.hear(run.report(config, 9.0)) == []  # one epoch is allowed to anybody
    assert procedure.hear(run.report(config, 9.0)) == [Stop(config)]
    assert procedure.hear(run.report(config, 9.0)) == []  # what was on its way
    assert procedure.study.trials[2].state == _package().trial.TrialState.PRUNED


@needs_optuna
def test_repeated_proposals_are_trained_once() -> None:
    """Six configurations in all, which a sampler that draws at random hits again and again."""
    procedure = search.optuna({"a": [1, 2, 3], "b": ["x", "y"], "c": 7}, n=6, at_once=2, sampler="random")
    run = run_to_end(procedure, GOAL, lambda values, epoch: float(values["a"]))  # type: ignore[arg-type]
    assert len(run.values) == len({canonical(values) for values in run.values.values()}) == 6
    assert all(values["c"] == 7 for values in run.values.values())
    trials = procedure.study.trials
    assert len(trials) > 6
    assert all(trial.state == _package().trial.TrialState.COMPLETE for trial in trials)
    assert all(trial.value == trial.params["a"] for trial in trials)


@needs_optuna
def test_invalid_configurations_are_never_trained() -> None:
    procedure = optuna(n=10, where=lambda c: c["x"] > 0.99)  # more often than not 20 proposals in a row miss it
    run = run_to_end(procedure, GOAL, bowl)
    assert len(run.values) == 10
    assert all(values["x"] > 0.99 for values in run.values.values())  # type: ignore[operator]


@needs_optuna
def test_an_exhausted_sampler_ends_the_search() -> None:
    grid = {"x": [-0.5, 0.5]}
    procedure = search.optuna(
        x=search.uniform(-1, 1), n=10, at_once=1, sampler=lambda seed: _package().samplers.GridSampler(grid, seed=seed)
    )
    run = run_to_end(procedure, GOAL, lambda values, epoch: 1.0)
    assert {values["x"] for values in run.values.values()} == {-0.5, 0.5}


@needs_optuna
def test_proposals_follow_the_seed() -> None:
    def first(seed: int | None, run_seed: int) -> list[dict[str, Scalar]]:
        actions = optuna(seed=seed).start(Goal("loss", "min", 4, run_seed))
        return [action.config for action in actions if isinstance(action, Train)]

    assert first(None, 1) == first(1, 9) != first(None, 2)


@needs_optuna
def test_a_running_search_can_be_pickled() -> None:
    procedure = optuna(pruner=_package().pruners.MedianPruner())
    begun = procedure.start(GOAL)
    again = pickle.loads(pickle.dumps(procedure))
    assert again.study is None
    assert again.start(GOAL) == begun


@needs_optuna
def test_the_logging_of_optuna_is_not_changed(caplog: pytest.LogCaptureFixture) -> None:
    package = _package()
    level = package.logging.get_verbosity()
    package.logging.enable_propagation()
    with caplog.at_level(logging.DEBUG):
        run_to_end(optuna(), GOAL, bowl)
    package.logging.disable_propagation()
    assert caplog.records == []
    assert package.logging.get_verbosity() == level


@needs_optuna
def test_describes_what_it_does() -> None:
    def mine(seed: int) -> Any:
        return _package().samplers.RandomSampler(seed)

    described = search.optuna(n=2, lr=[0.1, 0.2], sampler=mine, pruner=_package().pruners.NopPruner()).describe()
    assert described == {
        "kind": "optuna",
        "n": 2,
        "sampler": "test_describes_what_it_does.<locals>.mine",
        "pruner": "NopPruner",
        "at_once": 16,
        "seed": None,
        "axes": {"lr": [0.1, 0.2]},
    }


@needs_optuna
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optuna(n=0), "optuna(n=0)"),
        (lambda: optuna(at_once=0), "optuna(at_once=0)"),
        (lambda: optuna(seed="x"), "optuna(seed='x')"),
        (lambda: optuna(sampler="tpee"), "Did you mean tpe?"),
        (lambda: optuna(sampler=_package().samplers.TPESampler()), "a sampler is made from a seed"),
        (lambda: optuna(sampler=lambda: None), "a sampler is made from a seed"),
        (lambda: optuna(sampler=lambda seed: seed).start(GOAL), "not an Optuna sampler"),
        (lambda: optuna(pruner="median"), "optuna(pruner='median')"),
        (lambda: search.optuna(n=3), "no axes"),
        (lambda: search.optuna(n=3, lr=[1, 2]), "only 2 different"),
        (lambda: search.optuna(n=2, a=[1, True]), "cannot tell apart: [1, True]"),
        (lambda: search.optuna(n=3, lr=[1, 2, 3], where=lambda c: c["lr"] > 1).start(GOAL), "only 2 valid"),
        (lambda: optuna(where=lambda c: False).start(GOAL), "<lambda> allowed only 0"),
    ],
)
def test_invalid_arguments(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "optuna", None)
    return


def test_without_optuna_the_extra_is_named(absent: None) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[optuna\]'"):
        search.optuna(n=2, lr=[0.1, 0.2])
