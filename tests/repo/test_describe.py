"""One version: the distributions of its weights, its layers, and their activations for an input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regatta import network
from regatta.cli.output.version_text import tables
from regatta.errors import NotFoundError, UsageError
from regatta.repo import Repo
from regatta.web import version_page


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 60), nn.ReLU(), nn.Linear(60, 3))
    graph = network.from_torch(net, torch.zeros(1, 1, 8, 8))
    with Repo.init(tmp_path) as made:
        states = {epoch: {n: v * epoch for n, v in net.state_dict().items()} for epoch in (1, 2)}
        made.commit("net", states, network=graph, metrics={"loss": [2.0, 1.0]}, files={"a.txt": b"a"}, git=False)
        made.commit("child", states[1], parents=["net"], git=False)
        yield made


def test_distributions_of_a_version(repo: Repo) -> None:
    found = {each.name: each for each in repo.distributions("net")}
    assert set(found) == {"0.weight", "0.bias", "3.weight", "3.bias", "5.weight", "5.bias"}
    large, small = found["3.weight"], found["0.bias"]
    assert (large.planes, large.all_planes) == (2, 4) and small.exact  # of what is small all is read
    values = repo.load("net")["3.weight"].astype("f8")
    assert large.mean.low <= values.mean() <= large.mean.high
    assert large.stored_bytes is not None and 0 < large.stored_bytes < large.bytes
    assert repo.distributions("net").to_pandas().shape[0] == 6
    assert "3.weight" in repo.distributions("net")._repr_html_()


def test_distributions_of_some_tensors_of_one_epoch(repo: Repo) -> None:
    (later,) = repo.distributions("net", names=["3.weight"], exact=True)
    (sooner,) = repo.distributions("net", 1, names=["3.weight"], exact=True)
    (again,) = repo.distributions("net@1:1", names=["3.weight"], exact=True)
    assert later.exact and later.norm.middle == pytest.approx(2 * sooner.norm.middle)
    assert again == sooner
    with pytest.raises(NotFoundError, match="no tensor"):
        repo.distributions("net", names=["3.wait"])


def test_a_version_without_weights_has_no_distributions(repo: Repo) -> None:
    repo.commit("plan", None, git=False)
    assert repo.distributions("plan") == []
    assert repo.portrait("plan").stored_bytes is None


def test_a_portrait_has_layers_distributions_and_relatives(repo: Repo) -> None:
    found = repo.portrait("net")
    assert found.expression == "CONV FULL{2}"
    assert [layer.kind for layer in found.layers] == [
        "INPUT", "CONV", "RELU", "FLATTEN", "FULL", "RELU", "FULL", "OUTPUT",
    ]  # fmt: skip
    assert found.layers[1].shape == (None, 4, 6, 6)
    assert [each.name for each in found.distributions][:2] == ["0.weight", "0.bias"]  # in the order of layers
    assert list(found.names.values()) == ["child@1"]
    assert found.layers.to_pandas().shape[0] == 8
    assert repo.portrait("net", look=False).distributions == []


def test_a_portrait_is_shown_in_a_notebook(repo: Repo) -> None:
    shown = repo.portrait("net")._repr_html_()
    assert "<summary>8 layers</summary>" in shown and "<summary>6 tensors</summary>" in shown
    assert "net@1" in shown and "CONV" in shown and "3.weight" in shown and "█" in shown
    repo.commit("<i>", {"<b>": np.ones(3)}, message="<u>", git=False)
    shown = repo.portrait("<i>")._repr_html_()
    assert "<b>" not in shown and "<i>" not in shown and "<u>" not in shown


def test_activations_are_those_of_the_module(repo: Repo) -> None:
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype("f4")
    found = repo.portrait("net", inputs={"": x}).activations
    graph = network.from_json(json.dumps(repo.network("net")))
    module = network.to_torch(graph, repo.load("net")).eval()
    with torch.no_grad():
        last = module(torch.from_numpy(x)).numpy()
    output = next(reversed(found.values()))
    assert output.distribution.mean.middle == pytest.approx(last.mean(), rel=1e-5)
    assert found["1"].zeros > 0.2 and found["1"].distribution.least.low == 0  # behind a ReLU
    assert found["0"].distribution.shape == (3, 4, 6, 6)
    assert [picture.shape for picture in found["0"].maps] == [(6, 6)] * 4
    np.testing.assert_array_equal(found[graph.inputs[0].id].maps[0], x[0, 0])


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"": np.zeros((1, 3, 8, 8), "f4")}, "does not run on an input of shape"),
        ({"y": np.zeros((1, 1, 8, 8), "f4")}, "the network takes"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(repo: Repo, inputs: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        repo.portrait("net", inputs=inputs)


def test_unusual_graphs_are_shown(repo: Repo) -> None:
    nodes = [
        {"id": "a", "kind": "ODD", "shape": "wide", "parameters": 7, "attributes": {"x": {"y": [1]}}},
        {
            "id": "b",
            "kind": "ODD",
            "shape": [1, "n"],
            "parameters": [{"name": "w"}, {"role": "r", "name": "w", "shape": 3}],
        },
    ]
    edges = [["a", "b"], {"source": "b", "target": "a"}]
    repo.commit("odd", None, network={"nodes": nodes, "edges": edges}, git=False)
    layers = repo.portrait("odd").layers
    assert [(layer.shape, layer.parameters, layer.sources) for layer in layers] == [
        (None, (), ("b",)), ((1, "n"), (), ("a",)),
    ]  # fmt: skip
    assert version_page.network_data(layers) is not None and list(tables(repo.portrait("odd")))


def test_a_network_that_cannot_be_run_has_no_activations(repo: Repo) -> None:
    repo.commit("g", {"w": np.zeros(3)}, network={"nodes": [{"id": "a", "kind": "ODD"}]}, git=False)
    with pytest.raises(UsageError, match="no network that can be run"):
        repo.portrait("g", inputs={"": np.zeros(3)})
    assert repo.portrait("g").expression is None and len(repo.portrait("g").layers) == 1
