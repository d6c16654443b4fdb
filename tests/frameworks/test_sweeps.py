"""Whole sweeps with worker processes: every framework in one of them, and compiled Keras models in another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.data import batch_order, read_partition
from regatta.journal.run_record import ConfigRecord
from regatta.seeds import initial_seed, unit_seed

WIDTH, CLASSES, EPOCHS, SEED = 6, 3, 2, 7
FRAMEWORKS = ("torch", "keras", "jax", "numpy")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    generator = np.random.default_rng(3)
    y = generator.integers(0, CLASSES, 64)
    x = (generator.normal(size=(64, WIDTH)) + y[:, None]).astype(np.float32)
    folder = tmp_path_factory.mktemp("data")
    return Dataset.from_arrays(
        x, y, partitions=3, eval_fraction=0.25, eval_partitions=2, directory=folder, name="small"
    )


def mixed_model(config: dict[str, Any]) -> Any:
    """Imports inside, so that a worker learns of each framework with the first model of its kind."""
    if config["kind"] == "torch":
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, CLASSES))
        return net, torch.optim.Adam(net.parameters(), lr=config["lr"])
    if config["kind"] == "keras":
        import keras
        from keras import layers

        parts = [keras.Input((WIDTH,)), layers.Dense(8, "tanh"), layers.Dropout(0.2), layers.Dense(CLASSES)]
        return keras.Sequential(parts), keras.optimizers.Adam(config["lr"])
    if config["kind"] == "jax":
        import jax
        import optax

        from regatta.frameworks.jax.framework import next_key

        return {"w": jax.random.normal(next_key(), (WIDTH, CLASSES))}, optax.adam(config["lr"])
    from regatta.frameworks.numpy import SGD

    return {"w": np.random.normal(size=(WIDTH, CLASSES))}, SGD(config["lr"], momentum=0.9)


def mixed_loss(model: Any, batch: Any, config: dict[str, Any], training: bool, key: Any = None) -> Any:
    x, y = batch
    if config["kind"] == "torch":
        import torch

        assert model.training is training
        return torch.nn.functional.cross_entropy(model(x), y)
    if config["kind"] == "keras":
        import keras

        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=training), from_logits=True)
        return keras.ops.mean(losses)
    if config["kind"] == "jax":
        import jax
        import optax

        if training:
            x = x + 0.1 * jax.random.normal(key, x.shape)
        return optax.softmax_cross_entropy_with_integer_labels(x @ model["w"], y).mean()
    error = x @ model["w"] - np.eye(CLASSES)[y]
    return (error**2).mean(), {"w": x.T @ error / len(x)}


@pytest.fixture(scope="module")
def mixture(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Sweep(
        data,
        search.grid(kind=list(FRAMEWORKS), lr=[0.02], batch_size=[5]),
        mixed_model,
        loss_fn=mixed_loss,
        epochs=EPOCHS,
        seed=SEED,
        cluster=Cluster.local(2, threads=1),
        repo=tmp_path_factory.mktemp("repo"),
    ).launch(progress=False)


def values(record: ConfigRecord) -> dict[str, Any]:
    return dict(record.values)


def units(data: Dataset, config: ConfigRecord, epoch: int) -> Iterator[tuple[Any, Any, list[Any], int]]:
    """The partitions of an epoch as they were visited, with the batches and the seed of each unit."""
    for partition in config.visits(epoch):
        x, y = read_partition(data.train[partition].path)
        seed = unit_seed(SEED, values(config), epoch, partition)
        yield x, y, batch_order(len(x), values(config)["batch_size"], seed), seed


def test_all_frameworks_train_in_one_sweep(mixture: Run) -> None:
    assert {config.values["kind"] for config in mixture.record.configs.values()} == set(FRAMEWORKS)
    for config in mixture.record.configs.values():
        assert config.status == "done", config
        assert config.reports[EPOCHS]["loss"] < config.reports[1]["train_loss"]
        assert {unit.worker for unit in config.units if unit.kind == "train"} == {"w0", "w1"}


def test_jax_by_hops_equals_a_plain_loop_of_jax(mixture: Run, data: Dataset) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    from regatta.frameworks.jax.framework import unit_key

    config = mixture.find({"kind": "jax", "lr": 0.02, "batch_size": 5})
    key = jax.random.fold_in(unit_key(initial_seed(SEED, values(config))), 0)
    params: Any = {"w": jax.random.normal(key, (WIDTH, CLASSES))}
    optimizer = optax.adam(0.02)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
        gradients = jax.grad(mixed_loss)(params, batch, values(config), True, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for epoch in range(1, EPOCHS + 1):
        for x, y, batches, seed in units(data, config, epoch):
            for number, rows in enumerate(batches):
                batch = jnp.asarray(x[rows]), jnp.asarray(y[rows])
                params, state = step(params, state, batch, jax.random.fold_in(unit_key(seed), number))
        assert mixture.weights(config.id, epoch)["w"].tobytes() == np.asarray(params["w"]).tobytes()


def test_keras_by_hops_equals_a_plain_loop_of_keras(mixture: Run, data: Dataset) -> None:
    import random

    import tensorflow as tf

    config = mixture.find({"kind": "keras", "lr": 0.02, "batch_size": 5})
    random.seed(initial_seed(SEED, values(config)))
    model, optimizer = mixed_model(values(config))

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mixed_loss(model, (x, y), values(config), True)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True)
        )

    for epoch in range(1, EPOCHS + 1):
        for x, y, batches, _ in units(data, config, epoch):
            for rows in batches:
                step(x[rows], y[rows])
        weights = mixture.weights(config.id, epoch)
        for name, variable in zip(
            ("dense/kernel", "dense/bias", "seed_generator/seed_generator_state", "dense_1/kernel"),
            model.variables[:4],
            strict=True,
        ):
            assert weights[name].tobytes() == variable.value.numpy().tobytes(), name


def compiled_model(config: dict[str, Any]) -> Any:
    import keras
    from keras import layers

    parts = [keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3)]
    model = keras.Sequential([*parts, layers.Dense(CLASSES)])
    rate = keras.optimizers.schedules.ExponentialDecay(config["lr"], 5, 0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
    return model


def test_compiled_models_need_no_functions(data: Dataset, tmp_path: Path) -> None:
    import random

    run = Sweep(
        data,
        search.grid(lr=[0.05, 0.01], batch_size=[4]),
        compiled_model,
        framework="keras",
        metric="accuracy",
        epochs=EPOCHS,
        seed=SEED,
        cluster=Cluster.local(2, threads=1),
        repo=tmp_path,
    ).launch(progress=False)
    for config in run.record.configs.values():
        assert config.status == "done"
        assert config.reports[EPOCHS].keys() == {"loss", "accuracy", "train_loss", "train_accuracy"}
        random.seed(initial_seed(SEED, values(config)))
        model = compiled_model(values(config))
        for epoch in range(1, EPOCHS + 1):
            for x, y, batches, _ in units(data, config, epoch):
                for rows in batches:
                    model.train_on_batch(x[rows], y[rows])
        plain = {variable.value.numpy().tobytes() for variable in model.variables}
        assert {array.tobytes() for array in run.weights(config.id, EPOCHS).values()} == plain
