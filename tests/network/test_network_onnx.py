"""ONNX files as networks: one made here, hostile ones, and three from third parties."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_models import LeNet

from regatta.errors import DataError, NotFoundError
from regatta.network import expression, from_json, from_onnx, from_torch, structural_hash, to_json, to_torch

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx.reference.op_run import OpRun  # noqa: E402


class BatchNormalization(OpRun):  # type: ignore[misc]
    """As the operators' specification has it. The reference takes old files that state a momentum to be in training."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_: Any) -> tuple[Any]:
        across = (1, -1, *[1] * (x.ndim - 2))
        scale, bias, mean, var = (v.reshape(across) for v in (scale, bias, mean, var))
        return (((x - mean) / np.sqrt(var + epsilon) * scale + bias).astype(x.dtype),)


def lenet_file(path: Path, module: LeNet) -> Path:
    """LeNet as an exporter would write it: a Gemm that is transposed, a MatMul with an Add."""
    weights = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    weights["fc2.weight"] = np.ascontiguousarray(weights["fc2.weight"].T)
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    made = [
        helper.make_node("Conv", ["x", "conv1.weight", "conv1.bias"], ["a"], kernel_shape=[5, 5]),
        helper.make_node("MaxPool", ["a"], ["b"], **pool),
        helper.make_node("Conv", ["b", "conv2.weight", "conv2.bias"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], **pool),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "fc1.weight", "fc1.bias"], ["f"], transB=1),
        helper.make_node("Relu", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "fc2.weight"], ["h"]),
        helper.make_node("Add", ["h", "fc2.bias"], ["y"]),
    ]
    graph = helper.make_graph(
        made, "lenet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    graph = onnx.load(path).graph
    found = {tensor.name: tensor for tensor in graph.initializer}
    found |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    return {name: torch.from_numpy(np.array(numpy_helper.to_array(tensor))) for name, tensor in found.items()}


def test_an_onnx_network_equals_the_torch_network(tmp_path: Path) -> None:
    module = LeNet()
    path = lenet_file(tmp_path / "lenet.onnx", module)
    network = from_onnx(path)
    assert network.name == "lenet"
    assert expression(network) == "(CONV POOL){2} FULL{2}"
    assert structural_hash(network) == structural_hash(from_torch(module))
    assert network.parameters["fc1.weight"].shape == (500, 800)
    assert [n.shape for n in network.nodes if n.kind == "POOL"] == [(None, 20, 12, 12), (None, 50, 4, 4)]
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(to_torch(network, weights_of(path))(x), module(x), rtol=1e-5, atol=1e-5)


def test_external_weights_are_neither_needed_nor_opened(tmp_path: Path) -> None:
    path = lenet_file(tmp_path / "lenet.onnx", LeNet())
    whole = from_onnx(path)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    assert from_onnx(path) == whole


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"not a network", b"\x08\x08\x3a\x04\x0a\x02\x0a\xff"])
def test_files_that_are_not_onnx_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(DataError, match="ONNX"):
        from_onnx(path)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        from_onnx(tmp_path / "none.onnx")


def test_an_undefined_operand_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["nowhere"], ["y"])], "g", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "x.onnx")
    with pytest.raises(DataError, match="computes 'nowhere'"):
        from_onnx(tmp_path / "x.onnx")


@pytest.mark.parametrize("place", ["initializer", "constant", "branch", "function"])
def test_sparse_weights_are_refused_wherever_they_are(tmp_path: Path, place: str) -> None:
    values, places = numpy_helper.from_array(np.ones(1, "f4"), "thin"), numpy_helper.from_array(np.zeros(1, "i8"), "at")
    sparse = helper.make_sparse_tensor(values, places, [3, 3])
    constant = helper.make_node("Constant", [], ["thin"], sparse_value=sparse)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    relu = helper.make_node("Relu", ["thin"], ["y"])
    nodes, functions = [constant, relu], []
    if place == "initializer":
        nodes = [relu]
    if place == "branch":
        branch = helper.make_graph(nodes, "branch", [], [result])
        nodes = [helper.make_node("If", ["wanted"], ["y"], then_branch=branch, else_branch=branch)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    if place == "function":
        functions = [helper.make_function("own", "F", [], ["y"], nodes, opsets[:1])]
        nodes = [helper.make_node("F", [], ["y"], domain="own")]
    inputs = [helper.make_tensor_value_info("wanted", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [result], sparse_initializer=[sparse] * (place == "initializer"))
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets), tmp_path / "x.onnx")
    with pytest.raises(DataError, match="'thin' is sparse"):
        from_onnx(tmp_path / "x.onnx")


@pytest.mark.parametrize("numbers", [[np.nan], [np.inf]])
def test_sizes_that_are_no_numbers_are_not_folded(tmp_path: Path, numbers: list[float]) -> None:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["a"], ["b"], to=TensorProto.INT64), helper.make_node("Relu", ["a"], ["c"]),
         helper.make_node("Constant", [], ["text"], value_string="words"), helper.make_node("Relu", ["text"], ["d"])],
        "g", [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "bcd"],
        [numpy_helper.from_array(np.array(numbers, "f4"), "a")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "x.onnx")
    assert [node.get("type") for node in from_onnx(tmp_path / "x.onnx").nodes if node.kind == "OTHER"][:1] == ["Cast"]


def test_custom_operators_are_kept_as_other(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Sparkle", ["x"], ["y"], domain="mine", power=3, note="hi")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "x.onnx")
    other = from_onnx(tmp_path / "x.onnx").nodes[1]
    assert (other.kind, dict(other.attributes)) == ("OTHER", {"type": "Sparkle", "power": 3, "note": "hi"})


def third_party_models() -> list[Path]:
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    if found is None or found.origin is None:
        return []
    return sorted((Path(found.origin).parent / "models").glob("*.onnx"))


STRANGERS = {
    "ch_PP-OCRv4_det_infer": ("CONV{22} POOL CONV{4} POOL CONV{9} POOL CONV{3} POOL CONV{5}", (1, 3, 64, 64)),
    "ch_PP-OCRv4_rec_infer": (
        "CONV{22} POOL CONV{4} POOL CONV{7} POOL CONV{2} FULL{8} CONV{3} FULL", (2, 3, 48, 64),
    ),
    "ch_ppocr_mobile_v2.0_cls_infer": (
        "CONV{3} POOL CONV{11} (POOL CONV{5}){7} POOL CONV{4} POOL{2} FULL", (2, 3, 48, 64),
    ),
}  # fmt: skip


@pytest.mark.skipif(not third_party_models(), reason="needs the package rapidocr-onnxruntime")
@pytest.mark.parametrize("path", third_party_models(), ids=lambda path: path.stem)
def test_third_party_networks_are_read_completely_and_run(path: Path) -> None:
    network = from_onnx(path)
    said, shape = STRANGERS[path.stem]
    assert expression(network) == said
    assert not [node.id for node in network.nodes if node.kind == "OTHER"]
    assert from_json(to_json(network)) == network
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = ReferenceEvaluator(str(path), new_ops=[BatchNormalization]).run(None, {"x": x})[0]
    with torch.no_grad():
        got = to_torch(network, weights_of(path)).eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def inside_if(model: Any, path: Path) -> Path:
    """The whole of a network as a branch of If: half of its weights in the branch, the others around it."""
    graph = model.graph
    constants = [node for node in graph.node if node.op_type == "Constant"]
    around = {tensor.name for tensor in list(graph.initializer)[::2]} | {node.output[0] for node in constants[::2]}
    outputs = [value.name for value in graph.output]
    then = helper.make_graph(
        [node for node in graph.node if node.op_type != "Constant" or node.output[0] not in around], "then", [],
        list(graph.output), [tensor for tensor in graph.initializer if tensor.name not in around],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Constant", [], [outputs[0]], value=numpy_helper.from_array(np.zeros((1, 2), "f4")))],
        "else", [], list(graph.output),
    )  # fmt: skip
    made = helper.make_graph(
        [
            *(node for node in constants if node.output[0] in around),
            helper.make_node("If", ["wanted"], [f"{outputs[0]} of if"], then_branch=then, else_branch=other),
        ],
        "g", [*graph.input, helper.make_tensor_value_info("wanted", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info(f"{outputs[0]} of if", TensorProto.FLOAT, None)],
        [tensor for tensor in graph.initializer if tensor.name in around],
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=model.opset_import), path)
    return path


def float_weights(model: Any) -> dict[str, Any]:
    graph = model.graph
    found = {tensor.name: tensor for tensor in graph.initializer}
    found |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    arrays = {name: numpy_helper.to_array(tensor) for name, tensor in found.items()}
    return {name: array for name, array in arrays.items() if array.dtype == np.float32}


@pytest.mark.skipif(not third_party_models(), reason="needs the package rapidocr-onnxruntime")
@pytest.mark.parametrize("path", third_party_models(), ids=lambda path: path.stem)
def test_weights_inside_a_branch_are_parameters_of_the_network(path: Path, tmp_path: Path) -> None:
    model = onnx.load(path)
    network = from_onnx(inside_if(model, tmp_path / "if.onnx"))
    expected = sorted(array.shape for array in float_weights(model).values())
    found = [p.shape for p in network.parameters.values() if "else_branch" not in p.name and "int" not in p.name]
    assert all(found.count(shape) >= expected.count(shape) for shape in set(expected))
    branch = next(node for node in network.nodes if node.get("type") == "If")
    assert branch.get("then_branch").endswith("operators")
    assert {source.kind for source in map(network.by_id.get, network.sources[branch.id]) if source} >= {
        "INPUT",
        "WEIGHT",
    }
    assert from_json(to_json(network)) == network


def test_an_output_that_a_branch_uses_is_not_merged_with_the_bias_that_follows(tmp_path: Path) -> None:
    """The branch takes the product before the bias is added."""
    weight, bias = numpy_helper.from_array(np.eye(2, dtype="f4"), "w"), numpy_helper.from_array(np.ones(2, "f4"), "b")
    value = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Relu", ["product"], ["inner"])], "then", [], [value])
    other = helper.make_graph([helper.make_node("Neg", ["product"], ["inner"])], "else", [], [value])
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Add", ["product", "b"], ["sum"]),
            helper.make_node("If", ["wanted"], ["y"], then_branch=then, else_branch=other),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2]),
            helper.make_tensor_value_info("wanted", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "sum")], [weight, bias],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "x.onnx")
    network = from_onnx(tmp_path / "x.onnx")
    branch = next(node for node in network.nodes if node.get("type") == "If")
    assert "FULL" in {network.by_id[source].kind for source in network.sources[branch.id]}
    assert [node.get("bias") for node in network.nodes if node.kind == "FULL"] == [False]
