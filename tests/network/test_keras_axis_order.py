"""Networks read from Keras compute in PyTorch what Keras computes, for the inputs that the Keras model takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regatta.errors import RegattaError, UsageError
from regatta.network import from_json, from_keras, from_torch, to_json, to_torch
from regatta.network.shapes import infer_shapes
from regatta.network.torch.to_torch import outputs, watch, weights_of
from regatta.repo import Repo

keras = pytest.importorskip("keras")
layers = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # from Keras itself


def weights(model: Any) -> dict[str, Any]:
    return {variable.path: np.array(keras.ops.convert_to_numpy(variable.value)) for variable in model.weights}


def stirred(model: Any, seed: int = 0) -> Any:
    """Statistics, scales and shifts that are not those of a fresh layer."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        if "seed" not in variable.path and len(variable.shape) == 1:
            variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return model


def check(model: Any, seed: int = 0) -> None:
    stirred(model, seed)
    shape = [5 if size is None else size for size in model.inputs[0].shape[1:]]
    x = np.random.default_rng(seed).normal(size=(3, *shape)).astype("f4")
    expected = keras.ops.convert_to_numpy(model(x))
    network = from_json(to_json(from_keras(model)))
    inferred = infer_shapes(network)
    assert all(node.shape in (None, inferred.by_id[node.id].shape) for node in network.nodes if node.kind != "OUTPUT")
    module = to_torch(network, weights(model)).eval()
    with torch.no_grad():
        found = module(torch.from_numpy(x)).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for name, tensor in weights_of(module).items():
        np.testing.assert_array_equal(tensor.numpy(), weights(model)[name])


def sequential(shape: tuple[int, ...], *made: Any) -> Any:
    return keras.Sequential([keras.Input(shape), *made])


LAYERS: dict[str, Callable[[], Any]] = {
    "conv, flatten, dense": lambda: sequential((8, 6, 3), layers.Conv2D(5, 3), layers.Flatten(), layers.Dense(4)),
    "same, stride": lambda: sequential((7, 6, 3), layers.Conv2D(5, 3, padding="same", strides=2), layers.Flatten()),
    "groups, dilation": lambda: sequential((9, 8, 4), layers.Conv2D(6, 2, groups=2, dilation_rate=2), layers.Flatten()),
    "depthwise": lambda: sequential((6, 5, 3), layers.DepthwiseConv2D(3, depth_multiplier=2), layers.Flatten()),
    "depthwise 1d": lambda: sequential((9, 3), layers.DepthwiseConv1D(3, depth_multiplier=2, padding="same")),
    "conv 1d": lambda: sequential((9, 3), layers.Conv1D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(3)),
    "causal": lambda: sequential((9, 3), layers.Conv1D(4, 3, padding="causal", dilation_rate=2)),
    "conv 3d": lambda: sequential((4, 5, 6, 2), layers.Conv3D(3, 2), layers.MaxPooling3D(2), layers.Flatten()),
    "transposed": lambda: sequential((4, 5, 3), layers.Conv2DTranspose(2, 3, strides=2)),
    "transposed, same": lambda: sequential((4, 5, 3), layers.Conv2DTranspose(2, 4, strides=2, padding="same")),
    "max pool same": lambda: sequential((7, 6, 3), layers.MaxPooling2D(2, padding="same"), layers.Flatten()),
    "avg pool same": lambda: sequential((7, 6, 3), layers.AveragePooling2D(3, 2, padding="same"), layers.Flatten()),
    "pool 1d": lambda: sequential((9, 3), layers.AveragePooling1D(2), layers.Flatten(), layers.Dense(2)),
    "global avg": lambda: sequential((7, 6, 3), layers.GlobalAveragePooling2D(), layers.Dense(2)),
    "global max, kept": lambda: sequential((7, 6, 3), layers.GlobalMaxPooling2D(keepdims=True), layers.Dense(2)),
    "batch norm": lambda: sequential((7, 6, 3), layers.BatchNormalization(), layers.Flatten()),
    "batch norm 1d": lambda: sequential((7, 6), layers.BatchNormalization(), layers.Dense(2)),
    "batch norm, axis 1": lambda: sequential((7, 6, 3), layers.BatchNormalization(axis=1)),
    "batch norm, unscaled": lambda: sequential((6,), layers.BatchNormalization(scale=False), layers.Dense(2)),
    "group norm": lambda: sequential((7, 6, 4), layers.GroupNormalization(2), layers.Flatten()),
    "instance norm": lambda: sequential((7, 6, 4), layers.GroupNormalization(-1)),
    "layer norm": lambda: sequential((7, 6, 4), layers.LayerNormalization(), layers.Flatten()),
    "padding": lambda: sequential((5, 6, 3), layers.ZeroPadding2D(((1, 0), (2, 3))), layers.Conv2D(2, 3)),
    "upsampling": lambda: sequential((4, 3, 2), layers.UpSampling2D((2, 3)), layers.Flatten()),
    "reshape": lambda: sequential((6, 4, 2), layers.Reshape((4, -1)), layers.Dense(3)),
    "permute": lambda: sequential((6, 4, 2), layers.Permute((3, 1, 2)), layers.Flatten(), layers.Dense(3)),
    "softmax": lambda: sequential((6, 4, 2), layers.Conv2D(3, 2), layers.Softmax()),
    "channels first": lambda: sequential(
        (3, 7, 6), layers.ZeroPadding2D(1, data_format="channels_first"),
        layers.BatchNormalization(axis=1), layers.Reshape((-1, 9)), layers.Dense(2),
    ),
    "flatten channels first": lambda: sequential((3, 4, 5), layers.Flatten(data_format="channels_first")),
    "a number minus": lambda: functional(lambda x: 1.0 - x),
    "a number divided by": lambda: functional(lambda x: 2.0 / (x * x + 1.0)),
    "concat channels": lambda: functional(
        lambda x: layers.Flatten()(layers.Concatenate()([x, layers.Conv2D(4, 3, padding="same")(x)]))
    ),
    "concat rows": lambda: functional(lambda x: layers.Conv2D(2, 2)(layers.Concatenate(axis=1)([x, x + 1.0]))),
    "gelu op": lambda: functional(lambda x: keras.ops.gelu(x)),
    "gates": lambda: functional(
        lambda x: x * layers.Reshape((1, 1, 3))(layers.Dense(3, activation="tanh")(layers.GlobalMaxPooling2D()(x)))
    ),
}  # fmt: skip


def functional(made: Callable[[Any], Any]) -> Any:
    start = keras.Input((6, 5, 3))
    return keras.Model(start, made(start))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_keras_computes(name: str) -> None:
    check(LAYERS[name]())


def drawn(seed: int) -> Any:
    """A network of layers drawn at random, with branches."""
    rng = np.random.default_rng(seed)
    dims = int(rng.choice([1, 2, 2, 2, 3]))
    start = x = keras.Input((*rng.integers(5, 9, dims).tolist(), int(rng.integers(1, 4))))
    padding = lambda: str(rng.choice(["same", "valid"]))  # noqa: E731
    for _ in range(int(rng.integers(1, 5))):
        choice = int(rng.integers(8))
        room = min(x.shape[1:-1]) >= 3
        if choice <= 1 and room:
            conv = getattr(layers, f"Conv{dims}D")
            x = conv(int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 3)), padding())(x)
        elif choice == 2 and room:
            pool = getattr(layers, f"{rng.choice(['Max', 'Average'])}Pooling{dims}D")
            x = pool(2, padding=padding())(x)
        elif choice == 3:
            x = layers.BatchNormalization(axis=int(rng.choice([-1, 1])) if min(x.shape[1:]) > 1 else -1)(x)
        elif choice == 4:
            conv = getattr(layers, f"Conv{dims}D")
            x = layers.Concatenate(axis=int(rng.choice([-1, 1])))([x, conv(x.shape[-1], 1, activation="tanh")(x)])
        elif choice == 5:
            x = layers.Activation(str(rng.choice(["relu", "elu", "gelu", "silu", "sigmoid", "softsign"])))(x)
        elif choice == 6 and dims < 3:
            x = getattr(layers, f"DepthwiseConv{dims}D")(2, depth_multiplier=int(rng.integers(1, 3)), padding="same")(x)
        else:
            x = layers.Add()([x, layers.LayerNormalization()(x)])
    if rng.random() < 0.3:
        x = getattr(layers, f"Global{rng.choice(['Max', 'Average'])}Pooling{dims}D")()(x)
    else:
        x = layers.Flatten()(x)
    return keras.Model(start, layers.Dense(3)(x))


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_compute_what_keras_computes(seed: int) -> None:
    check(drawn(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 212))
def test_more_random_networks_compute_what_keras_computes(seed: int) -> None:
    check(drawn(seed), seed)


def test_inputs_in_another_order_of_axes_are_refused(tmp_path: Path) -> None:
    model = LAYERS["conv, flatten, dense"]()
    network, known = from_keras(model), weights(model)
    x = np.random.default_rng(0).normal(size=(4, 8, 6, 3)).astype("f4")
    with pytest.raises(UsageError, match=r"takes \(any, 8, 6, 3\)"):
        to_torch(network, known)(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    with Repo.init(tmp_path) as repo:
        repo.commit("net", known, network=to_json(network))
        expected = keras.ops.convert_to_numpy(model(x))
        for precision in ("full", "auto"):
            assert np.array_equal(repo.evaluate("net", x, precision=precision).labels, expected.argmax(1))
        with pytest.raises(RegattaError, match=r"\(8, 6, 3\)"):
            repo.evaluate("net", x.transpose(0, 3, 1, 2))


def test_the_outputs_of_layers_have_the_shapes_of_keras() -> None:
    model = LAYERS["conv, flatten, dense"]()
    network, seen = from_keras(model), {}
    watch(network, weights(model), [np.ones((2, 8, 6, 3), "f4")], lambda id, value: seen.update({id: value.shape}))
    assert set(seen) == set(network.by_id)
    for node in network.nodes:
        assert node.shape is None or seen[node.id] == (2, *node.shape[1:])


def test_models_that_cannot_be_run_are_refused() -> None:
    mixed = sequential((6, 6, 3), layers.Conv2D(2, 3), layers.ZeroPadding2D(1, data_format="channels_first"))
    with pytest.raises(UsageError, match="channels first and with channels last"):
        to_torch(from_keras(mixed))

    class Listed(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.inner(x)

    model = Listed()
    model(np.zeros((1, 4), "f4"))
    with pytest.raises(UsageError, match="subclassed Keras model"):
        to_torch(from_keras(model))
    odd = sequential((4, 5, 3), layers.Conv2DTranspose(2, 3, strides=2, padding="same"))
    with pytest.raises(UsageError, match="Conv2DTranspose"):
        to_torch(from_keras(odd))


def test_other_shapes_than_those_of_a_torch_network_are_our_errors() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(32, 2))
    network = from_torch(module, torch.zeros(1, 1, 6, 6))
    with pytest.raises(UsageError, match="does not run"):
        outputs(network, dict(module.state_dict()), np.zeros((2, 1, 7, 7), "f4"))
