"""Networks of a sweep's models, read without building any of their weights."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from regatta.frameworks.model_outlines import outlines
from regatta.network import from_json

CONFIGS: dict[str, dict[str, Any]] = {"a": {"width": 4}, "b": {"width": 4}, "c": {"width": 8}}


def build(config: dict[str, Any]) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 2)
    )


def test_equal_networks_are_read_once() -> None:
    found = outlines(build, CONFIGS, seconds=60.0)
    assert found["a"] is found["b"] and found["a"] != found["c"]
    kinds = [node.kind for node in from_json(found["a"]).nodes]
    assert kinds == ["INPUT", "FULL", "RELU", "FULL", "OUTPUT"]


def test_an_example_gives_shapes() -> None:
    threads = set(threading.enumerate())
    (text,) = outlines(build, {"c": {"width": 8}}, seconds=60.0, example=("float32", (3,))).values()
    assert [node.shape for node in from_json(text).nodes[:2]] == [(None, 3), (None, 8)]
    assert set(threading.enumerate()) <= threads


def test_no_weights_are_built_and_no_random_number_is_used() -> None:
    def huge(config: dict[str, Any]) -> torch.nn.Module:
        return torch.nn.Linear(2**20, 2**20)  # four terabytes

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert set(outlines(huge, {"x": {}}, seconds=60.0)) == {"x"}
    assert set(outlines(build, CONFIGS, seconds=60.0)) == set(CONFIGS)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("wrong", [lambda config: 1 / 0, lambda config: {"w": 1}, lambda config: torch.zeros(3).item()])
def test_models_that_cannot_be_read_have_no_network(wrong: Any) -> None:
    assert outlines(wrong, CONFIGS, seconds=60.0) == {}


def test_after_the_time_limit_other_models_have_no_network() -> None:
    assert outlines(build, CONFIGS, seconds=0.0) == {}
