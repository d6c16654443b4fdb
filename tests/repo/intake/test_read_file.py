"""How files are recognized, and which hostile files are refused before they do harm."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regatta.errors import DataError, NotFoundError, RegattaError, UsageError
from regatta.repo.intake.read_file import KINDS, recognize, shards
from regatta.repo.intake.training_logs import MAX_DEPTH, hyperparameters
from regatta.repo.intake.zip_weights import read_npz
from regatta.store.format.tensor_id import as_tensor


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def bits(values: dict[str, object]) -> dict[str, str]:
    return {name: as_tensor(name, value).id for name, value in values.items()}


def found_weights(path: Path) -> dict[str, str]:
    weights = recognize(path).weights
    assert weights is not None
    return {name: tensor.id for name, tensor in weights.tensors.items()}


def test_a_state_dict_is_read_as_weights(tmp_path: Path) -> None:
    state = {**module().state_dict(), "half": torch.ones(3, dtype=torch.bfloat16)}
    torch.save(state, tmp_path / "net-epoch12.pt")
    found = recognize(tmp_path / "net-epoch12.pt")
    assert found.kind == "weights" and found.weights is not None and found.weights.epoch == 12
    assert found_weights(tmp_path / "net-epoch12.pt") == bits(dict(state))
    assert not found.kept  # the store has them


def test_a_checkpoint_gives_its_model_and_reports_the_rest(tmp_path: Path) -> None:
    model = module()
    state = {"epoch": 7, "model_state_dict": model.state_dict(), "optimizer": {"lr": 0.1}}
    torch.save(state, tmp_path / "check.pth")
    found = recognize(tmp_path / "check.pth")
    assert found.weights is not None and found.weights.epoch == 7
    assert found.notes == ("found under 'model_state_dict'", "left out: optimizer")
    assert found_weights(tmp_path / "check.pth") == bits(dict(model.state_dict()))


def test_single_tensors_beside_a_state_dict_are_not_the_model(tmp_path: Path) -> None:
    """The checkpoints of PyTorch's own ImageNet example hold `best_acc1`; many hold the state of the generator."""
    model = module()
    state = {"state_dict": model.state_dict(), "best_acc1": torch.tensor(71.5), "rng": torch.get_rng_state()}
    torch.save(state, tmp_path / "check.pth")
    found = recognize(tmp_path / "check.pth")
    assert found.notes == ("found under 'state_dict'", "left out: best_acc1, rng")
    assert found_weights(tmp_path / "check.pth") == bits(dict(model.state_dict()))


def test_texts_in_json_lines_may_hold_other_separators_of_lines(tmp_path: Path) -> None:
    rows = [{"step": 1, "note": "one\u2028two\x85three", "loss": 0.5}, {"step": 2, "loss": 0.25}]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "log.jsonl").write_bytes(text.encode())
    assert recognize(tmp_path / "log.jsonl").metrics == {"loss": {1: 0.5, 2: 0.25}}


def test_a_state_dict_under_a_number_is_found(tmp_path: Path) -> None:
    torch.save({0: module().state_dict(), "lr": 0.1}, tmp_path / "ranks.pt")
    assert recognize(tmp_path / "ranks.pt").notes == ("found under '0'", "left out: lr")


def test_an_exported_program_gives_its_weights(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
    torch.export.save(torch.export.export(model, (torch.randn(2, 4),)), tmp_path / "net.pt2")
    assert found_weights(tmp_path / "net.pt2") == bits(dict(model.state_dict()))
    assert recognize(tmp_path / "net.pt2").kept


@pytest.mark.filterwarnings("ignore:No complete tensor")  # PyTorch's own, as it writes the file
def test_an_exported_program_of_transposed_weights(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3).eval()
    model.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3).t())
    torch.export.save(torch.export.export(model, (torch.randn(2, 4),)), tmp_path / "net.pt2")
    assert found_weights(tmp_path / "net.pt2") == bits(dict(model.state_dict()))


def write_onnx(path: Path, name: str = "/head/weight") -> np.ndarray:
    from onnx import TensorProto, helper, numpy_helper, save

    weight = np.arange(6, dtype="f4").reshape(3, 2)
    nodes = [helper.make_node("MatMul", ["x", name], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", [1, 3]), ("z", [1, 2]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, name)])
    save(helper.make_model(graph), path)
    return weight


def test_an_onnx_file_is_a_network_with_weights_under_the_same_names(tmp_path: Path) -> None:
    weight = write_onnx(tmp_path / "net.onnx")
    found = recognize(tmp_path / "net.onnx")
    assert found.kind == "network" and found.weights is not None and found.kept
    names = {p.name for node in found.network.nodes for p in node.parameters}
    assert names == set(found.weights.tensors) == {"head/weight"}  # no name begins at the root
    assert np.array_equal(found.weights.tensors["head/weight"].value(), weight)


def test_weights_inside_branches_loops_and_functions_of_onnx_are_read(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=(5, 5)).astype("f4") for name in ("outer", "kept", "inner", "deep", "held", "called")
    }
    tensors = {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}

    def value(name: str, kind: Any = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, None)

    deep = helper.make_graph(
        [helper.make_node("MatMul", ["a", "deep"], ["r"])], "deep", [], [value("r")], [tensors["deep"]]
    )
    then = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "inner"], ["a0"]), helper.make_node("MatMul", ["a0", "outer"], ["a"]),
            helper.make_node("If", ["yes"], ["result"], then_branch=deep, else_branch=deep),
        ],
        "then", [], [value("result")], [tensors["inner"]],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["result"])], "else", [], [value("result")])
    body = helper.make_graph(
        [
            helper.make_node("Constant", [], ["held"], value=tensors["held"]),
            helper.make_node("MatMul", ["state", "held"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body", [value("step", TensorProto.INT64), value("go", TensorProto.BOOL), value("state")],
        [value("on", TensorProto.BOOL), value("next")],
    )  # fmt: skip
    function = helper.make_function(
        "mine", "Twice", ["z"], ["w"],
        [
            helper.make_node("Constant", [], ["called"], value=tensors["called"]),
            helper.make_node("MatMul", ["z", "called"], ["w"]),
        ],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other),
            helper.make_node("Loop", ["", "yes", "y"], ["u"], body=body),
            helper.make_node("Twice", ["u"], ["v"], domain="mine"),
        ],
        "g", [value("x"), value("yes", TensorProto.BOOL)], [value("v")],
        [tensors["outer"], numpy_helper.from_array(np.zeros((20, 20), "f4"), "unused")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    save(helper.make_model(graph, opset_imports=opsets, functions=[function]), tmp_path / "net.onnx")
    found = recognize(tmp_path / "net.onnx")
    assert found.weights is not None
    names = {
        "outer": "outer", "inner": "y/then_branch/inner", "deep": "y/then_branch/result/then_branch/deep",
        "held": "u/body/held", "called": "v/Twice/called",
    }  # fmt: skip
    for own, name in names.items():
        assert found.weights.tensors[name].id == as_tensor(name, arrays[own]).id
    assert found.weights.parameters == 25 * (len(names) + 1)  # the inner If has its weight in both branches
    assert found.network is not None
    assert set(found.network.parameters) == set(found.weights.tensors)
    assert any("left out: unused (400 numbers)" in note for note in found.notes)
    assert any("inside Loop are not shown as layers" in note for note in found.notes)


def test_external_data_of_onnx_is_not_opened(tmp_path: Path) -> None:
    import onnx

    write_onnx(tmp_path / "net.onnx", "w")
    model = onnx.load(tmp_path / "net.onnx")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(DataError, match="is in another file"):
        recognize(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("log.csv", "epoch,loss,acc,phase\n1,0.5,0.8,a\n2,0.4,,b\n", {"loss": {1: 0.5, 2: 0.4}, "acc": {1: 0.8}}),
        ("log.csv", "epoch;loss\n3;0.5\n", {"loss": {3: 0.5}}),
        ("x.tsv", "step\tloss\n10\t1e-3\n", {"loss": {10: 0.001}}),
        ("history.csv", "loss\n2\n1\n", {"loss": {1: 2.0, 2: 1.0}}),
        ("x.jsonl", '{"step": 5, "f1": 0.5}\n\n{"step": 6, "f1": 0.75, "note": "x"}\n', {"f1": {5: 0.5, 6: 0.75}}),
        ("m.json", '[{"step": 1, "loss": 2}, {"step": 2, "loss": 1}]', {"loss": {1: 2.0, 2: 1.0}}),
        ("h.json", '{"loss": [2, 1], "acc": [0.1, 0.2]}', {"loss": {1: 2.0, 2: 1.0}, "acc": {1: 0.1, 2: 0.2}}),
    ],
)
def test_logs_are_read_as_metrics(tmp_path: Path, name: str, text: str, expected: object) -> None:
    (tmp_path / name).write_text(text)
    found = recognize(tmp_path / name)
    assert found.kind == "metrics" and found.metrics == expected and found.kept


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.json", '{"lr": 0.1, "opt": {"name": "adam", "betas": [0.9, 0.99]}}',
         {"lr": 0.1, "opt.name": "adam", "opt.betas": [0.9, 0.99]}),
        ("c.yaml", "lr: 0.1\nwhen: 2026-11-15\nbad: .nan\n", {"lr": 0.1, "when": "2026-11-15", "bad": "nan"}),
        ("c.toml", "lr = 0.1\n[data]\nname = 'digits'\n", {"lr": 0.1, "data.name": "digits"}),
        ("version.json", json.dumps({"format": 1, "id": "a", "name": "n", "number": 1, "metadata": {},
                                     "hyperparameters": {"lr": 3}}), {"lr": 3}),
    ],
)  # fmt: skip
def test_settings_are_read_as_hyperparameters(tmp_path: Path, name: str, text: str, expected: object) -> None:
    (tmp_path / name).write_text(text)
    found = recognize(tmp_path / name)
    assert found.kind == "hyperparameters" and found.hyperparameters == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.csv", b"x,y\n1,2\n"), ("x.json", b"{not json"), ("x.yaml", b"a: [1"), ("y.yaml", b"- 1\n"),
        ("x.csv", b"\xff\xfe\x00bad"), ("model.bin", b"just bytes"), ("notes", b"hi"), ("deep.json", b"[" * 100_000),
    ],
)  # fmt: skip
def test_other_content_is_kept_as_a_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert recognize(tmp_path / name).kind == "file"


def test_the_kind_of_a_file_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x,y\n1,2\n")
    assert recognize(tmp_path / "data.csv", "metrics").metrics == {"x": {1: 1.0}, "y": {1: 2.0}}
    torch.save(module().state_dict(), tmp_path / "net.pt")
    assert recognize(tmp_path / "net.pt", "file").kind == "file"
    with pytest.raises(UsageError, match="not read as network"):
        recognize(tmp_path / "net.pt", "network")
    with pytest.raises(UsageError, match="not added as 'weihgts'"):
        recognize(tmp_path / "net.pt", "weihgts")  # type: ignore[arg-type]
    assert set(KINDS) == {"weights", "network", "metrics", "hyperparameters", "file"}


def test_shards_are_one_snapshot_and_must_be_complete(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    assert shards(paths) == {paths[0]: paths}
    with pytest.raises(UsageError, match="1 of 2 parts"):
        shards(paths[1:])


# Strangers' files


class Harm:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch harmed",)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2), "x": Harm()}, tmp_path / "bad.pt")
    np.savez(tmp_path / "bad.npz", x=np.array([Harm()], object))
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Harm()))
    for name, reason in (("bad.pt", "more than tensors"), ("bad.npz", "Python objects"), ("old.pt", "since 1.6")):
        with pytest.raises(DataError, match=reason):
            recognize(tmp_path / name)
    assert not (tmp_path / "harmed").exists()


def test_decompression_bombs_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("w.npy", npy_header((2**25,)) + bytes(2**27))
    assert (tmp_path / "bomb.npz").stat().st_size < 2**20
    with pytest.raises(DataError, match="claims to unpack to"):
        recognize(tmp_path / "bomb.npz")
    torch.save({"w": torch.zeros(1000)}, tmp_path / "whole.pt")
    repacked(tmp_path / "whole.pt", tmp_path / "small.pt", zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="which PyTorch never does"):
        recognize(tmp_path / "small.pt")


def test_claimed_lengths_are_checked_against_the_file(tmp_path: Path) -> None:
    for shape in ((2**40,), (2**62, 4), (3,) * 40):
        with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
            archive.writestr("w.npy", npy_header(shape) + bytes(64))
        with pytest.raises(DataError, match="not an array"):
            read_npz(tmp_path / "w.npz")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(DataError):
        recognize(tmp_path / "w.safetensors")
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(DataError, match="header should have"):
        recognize(tmp_path / "x.safetensors")


def test_a_state_dict_that_claims_more_than_its_file_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1000)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        small = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in small if name.endswith("data/0"))
    small[name] = small[name][:40]
    with zipfile.ZipFile(tmp_path / "cut.pt", "w") as archive:
        for entry, content in small.items():
            archive.writestr(entry, content)
    with pytest.raises(RegattaError):
        recognize(tmp_path / "cut.pt")


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [{"as_int": 2**40}]}, {"sizes": [{"as_int": -1}]}, {"strides": [{"as_int": 2**40}]},
        {"storage_offset": {"as_int": 2**40}}, {"dtype": 99}, {"layout": 1}, {"sizes": "x"},
    ],
)  # fmt: skip
def test_exported_programs_with_false_metadata_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    meta = {"dtype": 7, "sizes": [{"as_int": 4}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    entry = {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {**meta, "layout": 7, **change}}
    write_exported(tmp_path / "p.pt2", entry)
    with pytest.raises(RegattaError):
        recognize(tmp_path / "p.pt2")


def test_exported_programs_read_only_their_own_entries(tmp_path: Path) -> None:
    meta = {"dtype": 7, "sizes": [{"as_int": 4}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    entry = {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {**meta, "layout": 7}}
    write_exported(tmp_path / "p.pt2", entry)
    assert len(found_weights(tmp_path / "p.pt2")) == 1
    for wrong in ({"path_name": "../../../etc/passwd"}, {"use_pickle": True}):
        write_exported(tmp_path / "p.pt2", {**entry, **wrong})
        with pytest.raises(DataError):
            recognize(tmp_path / "p.pt2")
    with zipfile.ZipFile(tmp_path / "q.pt2", "w") as archive:
        archive.writestr("p/serialized_state_dict.pt", b"old")
    with pytest.raises(DataError, match="without trusting"):
        recognize(tmp_path / "q.pt2")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        for path, kind in (
            (tmp_path / "pipe.csv", "a pipe"),
            (Path("/dev/zero"), "a device"),
            (tmp_path / "s", "a socket"),
        ):
            with pytest.raises(UsageError, match=f"It is {kind}"):
                recognize(path)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(NotFoundError, match="leads nowhere"):
        recognize(tmp_path / "link")


def test_settings_that_are_nested_without_limit_are_refused(tmp_path: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH + 2):
        deep = {"x": deep}
    with pytest.raises(DataError, match="nested deeper"):
        hyperparameters({"x": {**deep, "y": 1}} | deep, tmp_path)


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (64 - (10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def repacked(source: Path, target: Path, method: int) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


def write_exported(path: Path, entry: dict[str, object]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/data/weights/model_weights_config.json", json.dumps({"config": {"w": entry}}))
        archive.writestr("p/data/weights/weight_0", np.arange(4, dtype="f4").tobytes())
        archive.writestr("p/etc/passwd", bytes(16))


def test_sparse_tensors_in_a_file_are_refused(tmp_path: Path) -> None:
    from regatta.frameworks.torch.files import read_state_dict

    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    with pytest.raises(DataError, match="sparse"):
        read_state_dict(tmp_path / "sparse.pt", 10**6)
