"""How versions differ: fields, networks aligned by their graphs, weights from their leading planes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regatta import network
from regatta.errors import NotFoundError, UsageError
from regatta.repo import Repo
from regatta.repo.diff import ABSENT, Difference
from regatta.repo.inspect import parameters
from regatta.repo.inspect.parameters import compare_weights
from regatta.repo.weights import Weights, _value
from regatta.store.format.manifest import ManifestEntry
from regatta.store.format.tensor_id import as_tensor
from regatta.store.reader import TensorReader


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    with Repo.init(tmp_path) as made:
        yield made


def layered(*layers: nn.Module) -> tuple[nn.Module, network.Network]:
    net = nn.Sequential(*layers)
    return net, network.from_torch(net, torch.zeros(1, 64))


@pytest.fixture
def two(repo: Repo) -> Repo:
    """A model and its successor: a layer more, which shifts the names of those behind it, and an output more."""
    torch.manual_seed(0)
    first, graph = layered(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    second, wider = layered(nn.Linear(64, 100), nn.ReLU(), nn.Dropout(0.2), nn.Linear(100, 12))
    known = {name: value.numpy() for name, value in first.state_dict().items()}
    grown = {**{name: value.numpy() for name, value in second.state_dict().items()}, "0.bias": known["0.bias"]}
    grown["0.weight"] = known["0.weight"] + np.float32(0.01)
    repo.commit(
        "mlp", known, network=graph, hyperparameters={"lr": 0.1, "seed": 1, "old": None}, message="first",
        metrics={"loss": [0.9, 0.5]}, files={"train.py": b"1", "same.txt": b"s"}, metadata={"data": "digits"},
        git=False,
    )  # fmt: skip
    repo.commit(
        "mlp", grown, network=wider, hyperparameters={"lr": 0.01, "seed": 1}, message="second", parents=["mlp@1"],
        metrics={"loss": [0.8, 0.3], "accuracy": [0.9]}, files={"train.py": b"2", "same.txt": b"s", "new.txt": b"n"},
        metadata={"data": "digits"}, git=False,
    )  # fmt: skip
    return repo


def named(differences: Any) -> dict[str, tuple[Any, ...]]:
    return {each.name: each.values for each in differences}


def test_fields_that_differ_are_listed(two: Repo) -> None:
    found = two.diff("mlp@1", "mlp@2")
    assert found.labels == ("mlp@1", "mlp@2") and not found.same
    assert named(found.hyperparameters.apart()) == {"lr": (0.1, 0.01), "old": (None, ABSENT)}
    assert named(found.hyperparameters)["seed"] == (1, 1)
    assert named(found.metadata.apart())["message"] == ("first", "second")
    assert named(found.metadata.apart())["parents"] == (ABSENT, ["mlp@1"])
    assert "data" not in named(found.metadata.apart())
    assert set(named(found.files.apart())) == {"train.py", "new.txt"}
    assert named(found.metrics.apart())["loss, lowest"] == (0.5, 0.3)
    assert named(found.metrics.apart())["accuracy, last"] == (ABSENT, 0.9)


def test_networks_are_aligned_and_weights_follow_their_layers(two: Repo) -> None:
    (comparison,) = two.diff("mlp@1", "mlp@2").comparisons
    layers = {(layer.what, layer.left, layer.right) for layer in comparison.network.layers if layer.what != "same"}
    assert layers == {("added", None, "2"), ("changed", "2", "3")}
    changed = next(layer for layer in comparison.network.layers if layer.what == "changed")
    assert changed.changes == {"out": (10, 12)}
    tensors = {tensor.name: tensor for tensor in comparison.parameters}
    assert tensors["0.bias"].what == "same" and tensors["0.bias"].planes == 0
    assert (tensors["2.weight"].what, tensors["2.weight"].right) == ("reshaped", "3.weight")
    assert tensors["2.weight"].shapes == ((10, 100), (12, 100)) and tensors["2.weight"].distance is None
    assert not {"added", "removed"} & {tensor.what for tensor in comparison.parameters}


def test_distances_are_bounded_from_two_planes_and_exact_on_demand(two: Repo) -> None:
    (rough,), (exact,) = (two.diff("mlp@1", "mlp@2", exact=e).comparisons for e in (False, True))
    for comparison, planes in ((rough, 2), (exact, 4)):
        tensor = next(each for each in comparison.parameters if each.name == "0.weight")
        assert tensor.planes == planes and tensor.distance is not None and tensor.norms[0] is not None
        left, right = two.load("mlp@1")["0.weight"], two.load("mlp@2")["0.weight"]
        truth = float(np.linalg.norm(left.astype("f8") - right.astype("f8")))
        assert tensor.distance.low <= truth * (1 + 1e-12) and tensor.distance.high >= truth * (1 - 1e-12)
        assert tensor.norms[0].low <= np.linalg.norm(left.astype("f8")) * (1 + 1e-12) <= tensor.norms[0].high * 1.001
        assert tensor.relative is not None and tensor.relative.low > 0
        assert tensor.moved is not None and tensor.histograms[0] is not None
        assert (planes == 4) == (tensor.distance.high - tensor.distance.low < 1e-9)


def test_only_leading_planes_are_read_and_equal_tensors_are_not(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    large = rng.normal(size=100_000).astype("f4")
    repo.commit("m", {"a": large, "b": large + 1}, git=False)
    repo.commit("m", {"a": large, "b": large + 2}, git=False)
    asked: list[tuple[int, int | None]] = []
    read = TensorReader.read

    def noted(self: TensorReader, requests: Any) -> Any:
        asked.extend((request.stop, request.planes) for request in requests)
        return read(self, requests)

    monkeypatch.setattr(TensorReader, "read", noted)
    (comparison,) = repo.diff("m@1", "m@2").comparisons
    assert asked == [(100_000, 2), (100_000, 2)]
    assert [tensor.what for tensor in comparison.parameters] == ["same", "changed"]


def test_weights_that_are_still_files_of_a_run_are_compared_with_stored_ones(repo: Repo) -> None:
    values = {name: np.random.default_rng(n).normal(size=9000).astype("f4") for n, name in enumerate("ab")}
    repo.commit("m", {"a": values["a"], "b": values["b"] * 2}, git=False)
    tensors = {name: as_tensor(name, value) for name, value in values.items()}

    def read(names: Sequence[str], planes: int | None) -> dict[str, Any]:
        return {name: _value(tensors[name], planes) for name in names}

    file = Weights({name: ManifestEntry("", "F32", (9000,)) for name in values}, read, "a file")
    for left, right in ((file, repo.weights("m")), (repo.weights("m"), file)):
        assert [each.what for each in compare_weights(left, right, {})] == ["same", "changed"]
    assert [each.what for each in compare_weights(file, file, {})] == ["same", "same"]


def test_large_tensors_are_compared_in_batches(two: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = two.diff("mlp@1", "mlp@2").as_json(everything=True), two.distributions("mlp@1")
    monkeypatch.setattr(parameters, "BATCH_ELEMENTS", 100)
    assert (two.diff("mlp@1", "mlp@2").as_json(everything=True), two.distributions("mlp@1")) == at_once


def test_a_version_does_not_differ_from_itself(two: Repo) -> None:
    found = two.diff("mlp@1", "mlp@1")
    assert found.same and not found.to_pandas().size
    assert "do not differ" in found._repr_html_()
    assert [tensor.what for tensor in found.comparisons[0].parameters] == ["same"] * 4


def test_snapshots_of_one_version_are_compared(repo: Repo) -> None:
    weights = {epoch: {"w": np.full(5, epoch, "f4")} for epoch in (1, 2, 3)}
    repo.commit("m", weights, metrics={"loss": [0.9, 0.5, 0.4]}, git=False)
    found = repo.diff("m:1", "m@1:3")
    assert found.labels == ("m@1:1", "m@1:3")
    assert named(found.metrics) == {"loss, last": (0.9, 0.4)}
    (tensor,) = found.comparisons[0].parameters
    assert tensor.distance is not None and tensor.distance.middle == pytest.approx(2 * 5**0.5)
    with pytest.raises(NotFoundError, match="no snapshot 7"):
        repo.diff("m:1", "m:7")


def test_a_name_with_a_colon_is_looked_up_as_a_name_first(repo: Repo) -> None:
    repo.commit("m:1", {"w": np.zeros(3)}, git=False)
    repo.commit("m", {1: {"w": np.ones(3)}}, git=False)
    assert repo.diff("m:1", "m@1:1").labels == ("m:1@1", "m@1:1")


def test_several_are_compared_with_the_first(two: Repo) -> None:
    two.commit("other", None, hyperparameters={"lr": 0.1}, git=False)
    found = two.diff("mlp@1", "mlp@2", "other")
    assert len(found.comparisons) == 2
    assert named(found.hyperparameters)["lr"] == (0.1, 0.01, 0.1)
    assert {tensor.what for tensor in found.comparisons[1].parameters} == {"removed"}
    assert {layer.what for layer in found.comparisons[1].network.layers} == {"removed"}


def test_unusual_graphs_are_compared_by_their_ids(repo: Repo) -> None:
    def graph(width: int, extra: str) -> dict[str, Any]:
        nodes = [{"id": "a", "kind": "X", "attributes": {"width": width}}, {"id": extra, "kind": "Y"}]
        return {"nodes": nodes, "edges": [["a", extra]]}

    repo.commit("g", network=graph(1, "b"), git=False)
    repo.commit("g", network=graph(2, "c"), git=False)
    layers = repo.diff("g@1", "g@2").comparisons[0].network.layers
    assert [(layer.what, layer.left or layer.right) for layer in layers] == [
        ("changed", "a"), ("removed", "b"), ("added", "c"),
    ]  # fmt: skip
    assert layers[0].changes == {"width": (1, 2)}


def test_differences_as_tables_json_and_notebooks(two: Repo) -> None:
    found = two.diff("mlp@1", "mlp@2")
    frame = found.to_pandas()
    assert list(frame.columns) == ["section", "name", "mlp@1", "mlp@2"]
    assert set(frame["section"]) == {"metadata", "hyperparameters", "metrics", "files"}
    tensors = found.comparisons[0].parameters.to_pandas()
    assert len(tensors) == 4 and tensors["distance_low"].notna().sum() == 1
    short, full = found.as_json(), found.as_json(everything=True)
    assert json.loads(json.dumps(short))["same"] is False
    assert len(full["comparisons"][0]["parameters"]) == 4 > len(short["comparisons"][0]["parameters"])
    shown = found._repr_html_()
    assert "hyperparameters" in shown and "2.weight" in shown and "same.txt" not in shown


def test_texts_are_escaped_in_notebooks(repo: Repo) -> None:
    for value in ("<script>1", "<script>2"):
        repo.commit("<b>", None, hyperparameters={"<i>": value}, message=value, git=False)
    shown = repo.diff("<b>@1", "<b>@2")._repr_html_()
    assert "<script>" not in shown and "<i>" not in shown and "<b>" not in shown


def test_values_are_compared_as_json_has_them() -> None:
    assert not Difference("x", (1, True)).same
    assert Difference("x", (1, 1.0)).same
    assert Difference("x", (float("nan"), float("nan"))).same
    assert not Difference("x", (None, ABSENT)).same


def test_diff_needs_two_versions(repo: Repo) -> None:
    with pytest.raises(UsageError, match="Give two versions or more"):
        repo.diff("m")
    with pytest.raises(NotFoundError):
        repo.diff("m", "n")
