"""Writes a network and its weights as an ONNX model for inference. `to_operators.py` translates each kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from regatta.errors import MissingExtraError, UsageError
from regatta.network.axis_order import in_torch_order
from regatta.network.graph import Network
from regatta.network.shapes import infer_shapes

if TYPE_CHECKING:
    import onnx


def to_onnx(network: Network, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """The model as an ONNX message. A layer that ONNX cannot express is a UsageError that names it."""
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "Writing ONNX files") from None
    from regatta.network.onnx.to_operators import TRANSLATIONS
    from regatta.network.onnx.writer import CannotExport, OnnxWriter

    network = infer_shapes(in_torch_order(network))
    writer = OnnxWriter(network, weights)
    for ident in network.order:
        node = network.by_id[ident]
        translate = TRANSLATIONS.get(node.kind)
        try:
            if translate is None:
                raise CannotExport(f"ONNX has no operator for {node.get('type') or node.kind}")
            writer.outputs[ident] = translate(writer, node, *(writer.outputs[s] for s in network.sources[ident]))
        except CannotExport as problem:
            raise UsageError(
                f"The layer {node.name or node.id!r} ({node.kind}) cannot be written as ONNX: {problem}.",
                hint="Check out .safetensors or .pt and export the model with its own framework.",
            ) from None
    model = writer.model()
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"The network is not valid as ONNX: {reason:.300}") from error
    return model
