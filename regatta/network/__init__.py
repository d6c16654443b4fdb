"""Networks as data: read from PyTorch, Keras and ONNX, compared, sliced, hashed, and built as runnable modules again.

Enters: a model or a file. Leaves: a `Network`, which holds no weights and needs no framework. The modules that read or
build one import their framework inside functions. Nothing here knows repositories, runs or the command line.
"""

from regatta.network.align import Alignment, align
from regatta.network.canonical import canonical, structural_hash
from regatta.network.expression import expression
from regatta.network.from_keras import from_keras
from regatta.network.graph import Edge, Network, Node, Parameter
from regatta.network.json_form import from_json, to_json
from regatta.network.kinds import KINDS
from regatta.network.onnx.from_onnx import from_onnx
from regatta.network.onnx.to_onnx import to_onnx
from regatta.network.shapes import infer_shapes
from regatta.network.torch.from_torch import from_torch
from regatta.network.torch.to_torch import load_weights, to_torch, weights_of

__all__ = [
    "KINDS",
    "Alignment",
    "Edge",
    "Network",
    "Node",
    "Parameter",
    "align",
    "canonical",
    "expression",
    "from_json",
    "from_keras",
    "from_onnx",
    "from_torch",
    "infer_shapes",
    "load_weights",
    "structural_hash",
    "to_json",
    "to_onnx",
    "to_torch",
    "weights_of",
]
