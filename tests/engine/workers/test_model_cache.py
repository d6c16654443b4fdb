"""Compiled models are cached from unit to unit, within limits, and processes limit their threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from regatta import Cluster, Dataset, Sweep, search
from regatta.engine.workers.training import model_cache
from regatta.engine.workers.training.model_cache import CachedModel, ModelCache
from regatta.frameworks import load_framework
from regatta.frameworks.jax.framework import assemble
from regatta.frameworks.numpy import SGD


def cached_model(size: int = 1, **unsaved_values: Any) -> CachedModel:
    return CachedModel(
        load_framework("jax"), assemble(({"w": jnp.ones(2)}, optax.sgd(0.1)), "cpu"), unsaved_values, bytes=size
    )


def test_a_cached_model_is_taken_once() -> None:
    found, mine = ModelCache(), cached_model()
    found.put("a", mine)
    assert found.take("b") is None
    assert found.take("a") is mine
    assert found.take("a") is None


def test_the_least_recently_used_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "MAX_MODELS", 2)
    found = ModelCache()
    for name in "abc":
        found.put(name, cached_model())
    assert [name for name in "abc" if found.take(name)] == ["b", "c"]


def test_the_total_size_of_states_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "MAX_STATE_BYTES", 10)
    found = ModelCache()
    for name, size in (("a", 6), ("b", 4), ("c", 5), ("huge", 11)):
        found.put(name, cached_model(size))
    assert not any(map(found.take, ("a", "b", "c", "huge")))
    found.put("b", cached_model(4))
    found.put("c", cached_model(6))
    assert all(map(found.take, "bc"))


def wide_model(config: dict[str, Any]) -> Any:
    jax.config.update("jax_enable_x64", config["wide"])
    return {"w": jnp.ones(3)}, optax.sgd(0.1)


def typed_loss(params: Any, batch: Any, config: dict[str, Any]) -> Any:
    values = jnp.linspace(0.0, 1.0, 3)  # of the default type
    assert values.dtype == (np.float64 if config["wide"] else np.float32)
    return ((batch[0] @ params["w"] - values.sum()) ** 2).mean()


def test_a_model_that_changes_settings_of_the_process_is_not_kept(tmp_path: Path) -> None:
    """Its next unit needs them again, and so does the step that is compiled for it."""
    rows = np.ones((24, 3), np.float32)
    data = Dataset.from_arrays(rows, rows[:, 0], partitions=2, eval_fraction=0.25, directory=tmp_path / "data")
    configs = [{"wide": wide, "batch_size": 3} for wide in (True, False)]
    sweep = Sweep(
        data, search.configs(configs), wide_model, loss_fn=typed_loss, epochs=2, repo=tmp_path,
        cluster=Cluster.inline(1, device="cpu"),
    )  # fmt: skip
    run = sweep.launch(progress=False)
    assert [config.error for config in run.record.configs.values()] == [None, None]
    assert [run.weights(config)["w"].dtype for config in configs] == [np.float64, np.float32]
    assert not jax.config.jax_enable_x64


def test_a_model_with_changed_unsaved_values_is_not_kept() -> None:
    found = ModelCache()
    found.put("a", cached_model(steps=3))
    assert found.take("a") is None
    numpy = load_framework("numpy")
    found.put("b", CachedModel(numpy, numpy.assemble(({"w": np.ones(2)}, SGD(0.1)), "cpu"), {}, 1))
    assert found.take("b") is None


def test_a_sweep_compiles_each_configuration_once(tmp_path: Path) -> None:
    """On one worker: for the pilot, its rehearsal, every unit of every epoch and the evaluations together."""
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    data = Dataset.from_arrays(x, x.sum(1), partitions=2, eval_fraction=0.25, eval_partitions=1, directory=tmp_path)
    traces: list[bool] = []

    def loss_fn(params: Any, batch: Any, config: Any, training: bool) -> Any:
        traces.append(training)
        return ((batch[0] @ params["w"] - batch[1]) ** 2).mean()

    run = Sweep(
        data,
        search.grid(lr=[0.1, 0.01], batch_size=[8]),
        lambda config: ({"w": jnp.ones(3)}, optax.sgd(config["lr"])),
        loss_fn=loss_fn,
        epochs=3,
        cluster=Cluster.inline(1, device="cpu"),
        repo=tmp_path,
    ).launch(progress=False)
    assert all(config.status == "done" for config in run.record.configs.values())
    assert sorted(traces) == [False, False, True, True]


def test_threads_are_limited_before_anything_is_imported() -> None:
    code = (
        "import os; from regatta.frameworks.threads import count, limit_threads as limit;"
        "limit(1); assert count() == 1; import torch; assert torch.get_num_threads() == 1;"
        "limit(2); assert torch.get_num_threads() == 2;"
        "assert count() == 2; assert os.environ['TF_NUM_INTRAOP_THREADS'] == '2'"
    )
    clean = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name and name != "NPROC"}
    subprocess.run([sys.executable, "-c", code], check=True, env=clean)
