"""LSTM, GRU and RNN layers as operators of ONNX, which orders gates, directions and axes in its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.network.graph import Node
from regatta.network.onnx.writer import CannotExport, OnnxWriter, Output

# The gates of PyTorch in the order of ONNX: input, output, forget, cell; update, reset, hidden.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
OPERATORS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def recurrent(w: OnnxWriter, node: Node, x: str, *states: str) -> Output:
    """The outputs of the last layer at each step, and the last states of all layers."""
    get = node.get
    function = get("function")
    if function not in GATES or states or get("projection") or not get("sequences"):
        raise CannotExport("start states, projections and cells are not written")
    if get("batch_first"):
        x = w.op("Transpose", x, perm=[1, 0, 2])
    ends: list[tuple[str, ...]] = []
    for layer in range(get("layers")):
        x, *last = _layer(w, node, x, layer)
        ends.append(tuple(last))
    if get("batch_first"):
        x = w.op("Transpose", x, perm=[1, 0, 2])
    finals = [parts[0] if len(parts) == 1 else w.op("Concat", *parts, axis=0) for parts in zip(*ends, strict=True)]
    return x, finals[0] if len(finals) == 1 else tuple(finals)


def _layer(w: OnnxWriter, node: Node, x: str, layer: int) -> tuple[str, ...]:
    get = node.get
    function, hidden, both = get("function"), get("hidden"), bool(get("bidirectional"))
    ends = [f"_l{layer}", f"_l{layer}_reverse"][: 1 + both]
    settings: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
    if function == "gru":
        settings["linear_before_reset"] = 1  # as PyTorch computes it
    if function == "rnn_relu":
        settings["activations"] = ["Relu"] * len(ends)
    weights = [_stacked(w, node, role, ends) for role in ("weight_ih", "weight_hh")]
    biases = [_stacked(w, node, role, ends) for role in ("bias_ih", "bias_hh")] if get("bias") else []
    operands = [w.put(node, f"{name}_{layer}", value) for name, value in zip(("W", "R"), weights, strict=True)]
    if biases:
        operands.append(w.put(node, f"B_{layer}", np.concatenate(biases, axis=1)))
    made = w.split_op(OPERATORS[function], 3 if function == "lstm" else 2, x, *operands, **settings)
    # [steps, directions, batch, hidden] becomes [steps, batch, directions * hidden]
    joined = w.op("Reshape", w.op("Transpose", made[0], perm=[0, 2, 1, 3]), w.constant([0, 0, len(ends) * hidden]))
    return (joined, *made[1:])


def _stacked(w: OnnxWriter, node: Node, role: str, ends: list[str]) -> NDArray[Any]:
    """The weights of all directions, with the gates in the order of ONNX."""
    gates = GATES[node.get("function")]
    parts = [np.split(w.needed(node, role + end), len(gates)) for end in ends]
    return np.stack([np.concatenate([part[gate] for gate in gates]) for part in parts])
