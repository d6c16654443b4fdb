"""A warm start keeps the parent's weights and counters and takes the child's rate, in the frameworks that compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from regatta.engine.workers.training.warm_start import warm_start
from regatta.frameworks import load_framework

X, Y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
BATCHES = [np.arange(4), np.arange(4, 8)]


def trained_and_inherited(name: str, build: Any, loss_fn: Any, path: Path) -> tuple[Any, Any]:
    """A parent after two steps, and a child of another learning rate that began with its state."""
    framework = load_framework(name)
    parent, child = (framework.assemble(build(rate), "cpu") for rate in (0.4, 0.1))
    framework.train(parent, framework.prepare((X, Y), "cpu"), BATCHES, loss_fn, {"batch_size": 4})
    framework.save(parent, path)
    warm_start(framework, framework.assemble(build(0.4), "cpu"), child, path)
    return parent, child


def test_a_warm_start_in_keras(tmp_path: Path) -> None:
    import keras

    def build(rate: float) -> Any:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse")
        return model

    parent, child = trained_and_inherited("keras", build, None, tmp_path / "state")
    assert float(child.model.optimizer.learning_rate) == np.float32(0.1)
    assert int(child.model.optimizer.iterations) == 2
    for theirs, mine in zip(parent.model.get_weights(), child.model.get_weights(), strict=True):
        assert np.array_equal(theirs, mine)


def test_a_warm_start_in_jax(tmp_path: Path) -> None:
    import jax.numpy as jnp
    import optax

    def build(rate: float) -> Any:
        return {"w": jnp.ones((3, 2))}, optax.adam(rate)

    def loss_fn(params: Any, batch: Any, config: Any) -> Any:
        return ((batch[0] @ params["w"] - batch[1]) ** 2).mean()

    framework = load_framework("jax")
    parent, child = trained_and_inherited("jax", build, loss_fn, tmp_path / "state")
    assert np.array_equal(parent.model["w"], child.model["w"])
    framework.save(child, tmp_path / "child")
    assert (tmp_path / "child").read_bytes() == (tmp_path / "state").read_bytes(), "an Optax rate is no state"
