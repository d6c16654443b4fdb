"""Keras models as networks that compare with those of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from network_models import LeNet

from regatta.errors import UsageError
from regatta.network import align, expression, from_json, from_keras, from_torch, structural_hash, to_json

keras = pytest.importorskip("keras")
layers = keras.layers


def lenet(outputs: int = 10) -> Any:
    return keras.Sequential([
        keras.Input((28, 28, 1)), layers.Conv2D(20, 5), layers.MaxPooling2D(2), layers.Conv2D(50, 5),
        layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(500, activation="relu"), layers.Dense(outputs),
    ])  # fmt: skip


def test_a_keras_network_equals_the_torch_network() -> None:
    network, other = from_keras(lenet()), from_torch(LeNet())
    assert expression(network) == "(CONV POOL){2} FULL{2}"
    assert structural_hash(network) == structural_hash(other)
    assert align(network, other).same
    assert [dict(pair.changes) for pair in align(from_keras(lenet(7)), other).changed] == [{"out": (7, 10)}]


def test_shapes_and_parameters_are_those_of_keras() -> None:
    model = lenet()
    network = from_keras(model)
    conv = next(node for node in network.nodes if node.kind == "CONV")
    assert conv.shape == (None, 24, 24, 20)
    assert [(p.role, p.shape) for p in conv.parameters] == [("weight@3201", (5, 5, 1, 20)), ("bias", (20,))]
    assert set(network.parameters) == {variable.path for variable in model.weights}


def test_a_functional_model_may_have_branches_and_nested_models() -> None:
    start = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same", strides=2)(start)
    x = layers.Add()([x, layers.ReLU(max_value=6)(layers.BatchNormalization()(x))]) + 1.0
    inner = keras.Sequential([keras.Input((8, 8, 8)), layers.Conv2D(8, 3, padding="same"), layers.Dropout(0.25)])
    x = inner(x)
    pooled = layers.Concatenate()([layers.GlobalAveragePooling2D()(x), layers.GlobalMaxPooling2D()(x)])
    network = from_keras(keras.Model(start, [layers.Dense(3, activation="softmax")(pooled), pooled]))
    assert [node.kind for node in network.nodes] == [
        "INPUT", "CONV", "NORM", "CLIP", "ADD", "ADD", "CONV", "DROPOUT", "POOL", "FLATTEN", "POOL", "FLATTEN",
        "CONCAT", "FULL", "SOFTMAX", "OUTPUT",
    ]  # fmt: skip
    assert network.nodes[1].get("padding") == (0, 0, 1, 1)  # "same" pads the end when the stride is 2
    assert network.nodes[5].get("value") == 1.0
    assert network.nodes[12].get("axis") == 1
    assert len(network.sources[network.order[-1]]) == 2
    assert from_json(to_json(network)) == network


def test_a_subclassed_model_is_read_as_its_layers() -> None:
    class Tagger(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = layers.Embedding(10, 4)
            self.tail = [layers.LSTM(8), layers.Dense(2)]

        def call(self, x: Any) -> Any:
            return self.tail[1](self.tail[0](self.embed(x)))

    model = Tagger()
    model(keras.ops.zeros((2, 5)))
    network = from_keras(model)
    assert expression(network) == "EMBED RNN FULL"
    assert len(network.parameters) == 6


def test_attention_and_norms_are_read() -> None:
    start = keras.Input((5, 16))
    x = layers.MultiHeadAttention(2, 8)(start, start)
    network = from_keras(keras.Model(start, layers.LayerNormalization()(x + start)))
    assert [node.kind for node in network.nodes] == ["INPUT", "ATTENTION", "ADD", "NORM", "OUTPUT"]
    assert network.nodes[1].get("heads") == 2


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="has not been built"):
        from_keras(keras.Sequential([layers.Dense(3)]))
    with pytest.raises(UsageError, match=r"keras\.Model"):
        from_keras([layers.Dense(3)])
