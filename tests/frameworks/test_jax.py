"""JAX keeps the contract of a framework: pytrees, optimizers as Optax has them, keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_models import CLASSES, MODELS, WIDTH, affine, classify, mlp, pair

from regatta.errors import UsageError
from regatta.frameworks import framework_of, load_framework
from regatta.frameworks.base import Framework
from regatta.frameworks.jax import framework as jax_framework
from regatta.frameworks.jax.framework import Model, next_key, unit_key
from regatta.store.states.state_files import read_weights
from regatta.testing.frameworks import FrameworkContract, Setting, Subject, WrongBuilds

WHOLE = ("schedule", "dropout", "running mean", "layers")


def arrays(rows: int = 16) -> tuple[Any, ...]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, WIDTH)).astype(np.float32), generator.integers(0, CLASSES, rows)


def draw() -> float:
    return float(jax.random.uniform(next_key()))


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same few programs are compiled again for each test: let JAX keep them in a folder."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def made(name: str) -> Subject:
    model_fn, loss_fn = MODELS[name]
    setting = Setting(lambda: jax.config.jax_debug_nans, lambda to: jax.config.update("jax_debug_nans", to), True)
    return Subject(load_framework("jax"), model_fn, loss_fn, arrays(), draw, setting=setting)


class TestJax(FrameworkContract):
    @pytest.fixture(params=WHOLE)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        return made(request.param)


class TestMoreOfJax:
    """Compiling takes its time: of these, the states alone."""

    @pytest.mark.parametrize("name", [name for name in MODELS if name not in WHOLE])
    def test_hopping_does_not_change_later_training(self, name: str, tmp_path: Path) -> None:
        FrameworkContract().test_hopping_does_not_change_later_training(made(name), tmp_path)


class TestWrongJaxBuilds(WrongBuilds):
    @pytest.fixture
    def framework(self) -> Framework:
        return load_framework("jax")

    @pytest.fixture(
        params=[
            (None, "model_fn returned None"),
            ({}, "model_fn returned dict, where parameters belong"),
            ("model", "model_fn returned str"),
            (({"w": jnp.zeros(1)}, 0.1), r"model_fn returned \(parameters, float\)"),
            (({"w": jnp.zeros(1)}, optax.sgd), r"returned \(parameters, function\)"),
            (({"w": jnp.zeros(1), "f": jnp.tanh}, optax.sgd(0.1)), "among its leaves is"),
            ((optax.sgd(0.1), {"w": jnp.zeros(1)}), "where parameters belong"),
        ],
        ids=lambda pair: pair[1],
    )
    def wrong_build(self, request: pytest.FixtureRequest) -> tuple[Any, str]:
        return request.param  # type: ignore[no-any-return]


def test_a_unit_equals_a_plain_loop_of_jax() -> None:
    """What a reader of Optax's tutorial would write."""
    optimizer = optax.adam(optax.exponential_decay(0.05, 2, 0.9))
    with jax_framework.seeded(4):
        params = mlp()
    trainee = jax_framework.assemble((params, optimizer), "cpu")
    data = jax_framework.prepare(arrays(), "cpu")
    batches = [np.arange(0, 6), np.arange(6, 12), np.arange(12, 16)]

    def loss_fn(params: Any, batch: Any, config: Any, key: Any = None) -> Any:
        x = batch[0] + 0.01 * jax.random.normal(key, batch[0].shape)
        return classify(params, (x, batch[1]), config)

    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(params, batch, {}, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    x, y = arrays()
    for number, rows in enumerate(batches):
        key = jax.random.fold_in(unit_key(9), number)
        params, state, _ = step(params, state, (jnp.asarray(x[rows]), jnp.asarray(y[rows])), key)
    with jax_framework.seeded(9):
        jax_framework.train(trainee, data, batches, loss_fn, {})
    assert all(jax.tree_util.tree_leaves(jax.tree_util.tree_map(same_bits, params, trainee.model)))
    assert all(jax.tree_util.tree_leaves(jax.tree_util.tree_map(same_bits, state, trainee.whole.opt_state)))


def same_bits(one: Any, other: Any) -> bool:
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_step_is_compiled_once(tmp_path: Path) -> None:
    traces = []

    def counted(params: Any, batch: Any, config: Any) -> Any:
        traces.append(config)
        return classify(params, batch, config)

    trainee = jax_framework.assemble((mlp(), optax.adam(0.1)), "cpu")
    data = jax_framework.prepare(arrays(), "cpu")
    batches = [np.arange(0, 8), np.arange(8, 16)]
    for _ in range(3):
        jax_framework.train(trainee, data, batches, counted, {"lr": 1})
        jax_framework.save(trainee, tmp_path / "state")
        jax_framework.restore(trainee, jax_framework.read(tmp_path / "state"))
        jax_framework.evaluate(trainee, data, batches, counted, {"lr": 1})
    assert len(traces) == 2


def test_keys_depend_on_every_bit_of_the_seed() -> None:
    seeds = [1, 2, 1 + 2**32, 1 + 2**62]
    assert len({bytes(np.asarray(jax.random.key_data(unit_key(seed)))) for seed in seeds}) == len(seeds)


def test_containers_are_restored_from_a_fresh_build(tmp_path: Path) -> None:
    trainee = jax_framework.assemble((mlp(), optax.adam(0.1)), "cpu")
    jax_framework.save(trainee, tmp_path / "state")
    fresh = jax_framework.assemble((mlp(), optax.adam(0.1)), "cpu")
    jax_framework.restore(fresh, jax_framework.read(tmp_path / "state"))
    assert jax.tree_util.tree_structure(fresh.whole.opt_state) == jax.tree_util.tree_structure(trainee.whole.opt_state)
    assert type(fresh.whole.opt_state[0]).__name__ == "ScaleByAdamState"


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    jax_framework.save(jax_framework.assemble((mlp(), optax.adam(0.1)), "cpu"), tmp_path / "state")
    state = jax_framework.read(tmp_path / "state")
    with pytest.raises(UsageError, match=r"under optimizer.*only in the state: optimizer/0/count"):
        jax_framework.restore(jax_framework.assemble((mlp(), optax.sgd(0.1)), "cpu"), state)
    with pytest.raises(UsageError, match=r"under model.*only in the model: model/more"):
        jax_framework.restore(jax_framework.assemble(({**mlp(), "more": jnp.ones(1)}, optax.adam(1)), "cpu"), state)


def test_weights_are_named_by_their_paths(tmp_path: Path) -> None:
    params = mlp()
    jax_framework.save(jax_framework.assemble((params, optax.adam(0.1)), "cpu"), tmp_path / "state")
    weights = read_weights(tmp_path / "state")
    assert sorted(weights) == ["first/b", "first/w", "out/b", "out/w"]
    assert same_bits(weights["first/w"], params["first"]["w"])


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda out: out.mean(1), r"loss_fn returned shape \(16,\); it returns one number"),
        (lambda out: None, "loss_fn returned None"),
        (lambda out: "low", "loss_fn returned str"),
    ],
)
def test_a_wrong_loss_is_a_usage_error(loss: Any, text: str) -> None:
    trainee = jax_framework.assemble(pair({}), "cpu")
    data = jax_framework.prepare(arrays(), "cpu")
    with pytest.raises(UsageError, match=text):
        jax_framework.train(trainee, data, [np.arange(16)], lambda p, b, c: loss(b[0] @ p[0]), {})


def test_a_model_with_a_state_returns_the_new_one() -> None:
    trainee = jax_framework.assemble((Model(pair({})[0], jnp.zeros(1)), optax.sgd(0.1)), "cpu")
    data = jax_framework.prepare(arrays(), "cpu")
    with pytest.raises(UsageError, match=r"it is \(loss, new state\)"):
        jax_framework.train(trainee, data, [np.arange(16)], lambda m, b, c: affine(m.params, b, c), {})


def test_train_fn_assigns_its_new_state(tmp_path: Path) -> None:
    trainee = jax_framework.assemble((mlp(), optax.sgd(0.1)), "cpu")
    model, optimizer, _ = jax_framework.train_fn_arguments(trainee)
    gradients = jax.grad(classify)(model.params, arrays(), {})
    updates, model.opt_state = optimizer.update(gradients, model.opt_state, model.params)
    model.params = optax.apply_updates(model.params, updates)
    assert trainee.model is model.params


def test_data_may_have_types_that_jax_lacks() -> None:
    words = np.array(["a", "b", "c"])
    data = jax_framework.prepare({"x": np.arange(3.0), "words": words}, "cpu")
    assert data["words"] is words
    assert isinstance(data["x"], jax.Array)
    seen: list[Any] = []
    trainee = jax_framework.assemble(({"w": jnp.ones(())}, optax.sgd(0.1)), "cpu")

    def loss(params: Any, batch: Any, config: Any) -> Any:
        seen.append(batch["x"].shape)
        return (params["w"] * batch["x"]).mean()

    jax_framework.train(trainee, {"x": data["x"]}, [np.array([2, 0])], loss, {})
    assert seen == [(2,)]


def test_framework_of_distinguishes_jax_from_numpy() -> None:
    for built in (pair({}), mlp(), (mlp(), optax.sgd(0.1)), Model(mlp()), ({"w": np.ones(2)}, optax.sgd(0.1))):
        assert framework_of(built) is jax_framework
    assert framework_of({"w": np.ones(2)}) is load_framework("numpy")
