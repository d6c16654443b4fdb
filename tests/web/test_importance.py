"""Importance of hyperparameters: found where it is known, and no answer where there is none."""

from __future__ import annotations

import importlib.util
import math
import random
from typing import Any

import pytest
from fake_run import FakeRun

from regatta.configuration import config_id
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.web.importance import FANOVA, FOREST, Importance, importance
from regatta.web.scales import axes_of


def record_of(configs: list[dict[str, Any]], losses: list[list[float]]) -> RunRecord:
    """A run with these configurations and their losses after each epoch."""
    record = FakeRun(configs=1, epochs=1).record()
    record.configs = {}
    for values, series in zip(configs, losses, strict=True):
        config = ConfigRecord(config_id(values), values, len(series))
        config.reports = {epoch: {"loss": loss} for epoch, loss in enumerate(series, 1)}
        record.configs[config.id] = config
    return record


def asked(record: RunRecord) -> Importance:
    return importance(record, axes_of(list(record.configs.values())))


def drawn(count: int) -> list[dict[str, Any]]:
    dice = random.Random(0)
    return [
        {"lr": 10 ** dice.uniform(-4, 0), "act": dice.choice(["relu", "tanh"]), "noise": dice.random()}
        for _ in range(count)
    ]


def loss(config: dict[str, Any]) -> float:
    return float((math.log10(config["lr"]) + 2) ** 2 + (1.5 if config["act"] == "tanh" else 0.0))


@pytest.fixture(params=["fanova", "forest"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both methods: the second is for those who do not have Optuna."""
    if request.param == "fanova":
        pytest.importorskip("optuna")
        return FANOVA
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "optuna" else found(name, *more)
    )
    return FOREST


def test_the_hyperparameters_that_determine_the_metric_are_found(method: str) -> None:
    configs = drawn(60)
    found = asked(record_of(configs, [[loss(config)] for config in configs]))
    assert found.method == method
    assert list(found.shares) == ["lr", "act", "noise"]
    assert found.shares["lr"] > 0.5
    assert sum(found.shares.values()) == pytest.approx(1)
    assert "60 configurations" in found.text


def test_a_diverged_configuration_is_clipped_as_an_outlier(method: str) -> None:
    configs = drawn(60)
    losses = [[loss(config)] for config in configs]
    losses[7] = [1e30]
    found = asked(record_of(configs, losses))
    assert next(iter(found.shares)) == "lr"
    assert "1 outlier clipped" in found.text


def test_too_many_configurations_are_thinned_and_reported() -> None:
    pytest.importorskip("optuna")
    configs = drawn(401)
    found = asked(record_of(configs, [[loss(config)] for config in configs]))
    assert found.method == f"{FANOVA} of one in 3 of them, from best to worst"
    assert found.shares["lr"] > 0.5


def test_configurations_are_compared_after_the_same_epoch() -> None:
    configs = drawn(30)
    losses = [[loss(config)] if n > 9 else [loss(config), -100.0] for n, config in enumerate(configs)]
    found = asked(record_of(configs, losses))
    assert "up to epoch 1" in found.text
    assert next(iter(found.shares)) == "lr"


@pytest.mark.parametrize(
    ("count", "losses", "said"),
    [
        (1, [[1.0]], "A single configuration"),
        (7, [[float(n)] for n in range(7)], "7 have a number to compare, and 8 are needed"),
        (9, [[math.nan]] * 5 + [[1.0]] * 4, "4 have a number"),
        (9, [[1.0]] * 9, "the same loss"),
    ],
)
def test_too_few_or_equal_results_give_no_importance(count: int, losses: list[list[float]], said: str) -> None:
    found = asked(record_of(drawn(count), losses))
    assert said in found.text
    assert found.method is None
    assert found.shares == {}


def test_configurations_without_anything_in_common_cannot_be_compared() -> None:
    found = asked(record_of([{f"v{n}": n} for n in range(10)], [[float(n)] for n in range(10)]))
    assert "No hyperparameter that all configurations have" in found.text


def test_configurations_with_parents_are_left_out() -> None:
    configs = drawn(30)
    record = record_of(configs, [[loss(config)] for config in configs])
    first = next(iter(record.configs))
    for config in list(record.configs.values())[20:]:
        config.parent = first
    found = asked(record)
    assert "From 20 configurations" in found.text
    assert "10 that started from the state of another one" in found.text
