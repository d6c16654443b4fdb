"""Evaluation from leading bytes gives the labels of full precision, and reports what they cost and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluated_models import Residual, answer, read, weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

import regatta
from regatta import network
from regatta.errors import DataError, NotFoundError, UsageError
from regatta.network.graph import Edge, Node, Parameter
from regatta.repo import Repo
from regatta.repo.evaluate import read_data
from regatta.repo.evaluate.progress import ahead

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    with Repo.init(tmp_path) as opened:
        yield opened


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 48), nn.ReLU(), nn.Linear(48, 10)
    )


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Any, Any]:
    """A small network that has learnt scikit-learn's digits, and the images that it has not seen."""
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype("f4").reshape(-1, 1, 8, 8), labels.astype(np.int64)
    torch.manual_seed(0)
    net = lenet()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(12):
        for at in range(0, 1400, 50):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                net(torch.from_numpy(x[at : at + 50])), torch.from_numpy(y[at : at + 50])
            )
            loss.backward()
            optimizer.step()
    return net, x[1400:], y[1400:]


def commit(repo: Repo, net: nn.Module, example: Any, values: Any = None, name: str = "model") -> str:
    graph = network.to_json(read(net, torch.as_tensor(example)[:1]))
    return repo.commit(name, weights(net) if values is None else values, network=graph).reference


def full(net: nn.Module, x: Any) -> Any:
    return answer(net, weights(net), x).argmax(1)


def test_labels_are_those_of_full_precision_from_fewer_bytes(repo: Repo, digits: Any) -> None:
    net, x, y = digits
    found = repo.evaluate(commit(repo, net, x), x, y)
    assert np.array_equal(found.labels, full(net, x))
    assert found.certain.all()
    assert found.accuracy == np.mean(full(net, x) == y) > 0.8
    assert found.fallback is None
    first = found.stages[0]
    assert first.certified > 0.85 * len(x)
    assert first.intervals > 0
    assert first.bytes < 0.5 * found.bytes_full
    assert found.mean_share < 0.55
    assert sum(stage.certified for stage in found.stages) == len(x)
    assert [stage.bytes for stage in found.stages] == sorted(stage.bytes for stage in found.stages)
    assert np.bincount(found.stage).tolist() == [stage.certified for stage in found.stages]


def test_bytes_are_those_of_the_streams_that_are_needed(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    reference = commit(repo, net, x)
    entries = {m.id: repo.store.entry(m.id) for m in repo.weights(reference).members.values()}
    found = repo.evaluate(reference, x, precision="full")
    assert found.bytes_full == found.bytes_read == sum(entry.stored_bytes for entry in entries.values())
    assert repo.evaluate(reference, x[:3], precision=2).bytes_read < 0.5 * found.bytes_full


def test_planes_of_a_delta_are_read_with_those_of_its_base(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    base = repo.evaluate(commit(repo, net, x), x, precision=2)
    nearby = {name: value + np.float32(1e-4) for name, value in weights(net).items()}
    reference = commit(repo, net, x, nearby)
    ids = {name: [repo.weights(f"model@{n}").members[name].id for n in (1, 2)] for name in nearby}
    repo.store.reencode({new: (6, old) for old, new in ids.values() if repo.store.entry(new).encoding})
    found = repo.evaluate(reference, x)
    assert np.array_equal(found.labels, answer(net, nearby, x).argmax(1))
    assert found.bytes_full > base.bytes_full
    assert found.stages[0].bytes < 0.55 * found.bytes_full
    net.load_state_dict({k: torch.from_numpy(v) for k, v in repo.load("model@1").items()})


def test_a_fixed_number_of_planes_reports_uncertain_labels(repo: Repo, digits: Any) -> None:
    net, x, y = digits
    reference, right = commit(repo, net, x), full(net, x)
    for planes in (1, 2, 3, 4, "3"):
        found = repo.evaluate(reference, x, y, precision=planes)  # type: ignore[arg-type]
        assert np.array_equal(found.labels[found.certain], right[found.certain])
        assert len(found.stages) == 1 + (planes == 4 and found.stages[0].certified < len(x))
        assert found.certain.all() == (sum(stage.certified for stage in found.stages) == len(x))
    assert found.precision == "3"
    assert repo.evaluate(reference, x, precision=4).certain.all()
    assert not repo.evaluate(reference, x, precision=1).certain.any()


def test_full_precision_computes_every_input_without_bounds(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    found = repo.evaluate(commit(repo, net, x), x, precision="full")
    assert np.array_equal(found.labels, full(net, x))
    assert found.share == found.mean_share == 1.0
    assert [(stage.computed, stage.certified) for stage in found.stages] == [(len(x), len(x))]
    assert found.accuracy is None


def test_a_budget_is_kept_and_open_labels_are_reported(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    reference, right = commit(repo, net, x), full(net, x)
    found = repo.evaluate(reference, x, budget=0.45)
    assert found.share <= 0.45
    assert np.array_equal(found.labels[found.certain], right[found.certain])
    assert (found.stage >= 0).tolist() == found.certain.tolist()
    whole = repo.evaluate(reference, x, budget=1.0)
    assert np.array_equal(whole.labels, right)
    assert whole.certain.all()


def test_the_best_k_are_a_set(repo: Repo, digits: Any) -> None:
    net, x, y = digits
    found = repo.evaluate(commit(repo, net, x), x[:60], y[:60], top_k=3)
    assert np.array_equal(found.labels, ahead(answer(net, weights(net), x[:60]), 3))
    assert found.labels.shape == (60, 3)
    assert found.accuracy == (found.labels == y[:60, None]).any(1).mean()


def test_a_softmax_at_the_end_changes_nothing(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    plain = repo.evaluate(commit(repo, net, x), x[:80])
    for last in (nn.Softmax(-1), nn.LogSoftmax(1)):
        found = repo.evaluate(commit(repo, nn.Sequential(*net, last), x), x[:80])
        assert np.array_equal(found.labels, plain.labels)
        assert found.stages[0].certified == plain.stages[0].certified


def test_ties_are_computed_and_go_to_the_first(repo: Repo) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 3))
    with torch.no_grad():
        net[2].weight[2], net[2].bias[2] = net[2].weight[1], net[2].bias[1]
        net[2].bias[1:] += 5
    x = torch.randn(7, 4).numpy()
    found = repo.evaluate(commit(repo, net, x), x)
    assert found.labels.tolist() == [1] * 7
    assert found.stages[-1].computed == 7
    assert found.share == 1.0
    assert repo.evaluate("model", x, top_k=2).labels.tolist() == [[1, 2]] * 7
    assert repo.evaluate("model", x, top_k=2).share < 1.0  # the two are ahead, in whatever order


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_weights_are_left_to_the_model(repo: Repo, bad: float) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    values = weights(net)
    values["2.weight"][0, 0] = bad
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")
    found = repo.evaluate(commit(repo, net, x, values), x)
    assert found.fallback == "'2.weight' has weights that are NaN or infinite"
    assert found.stages[-1].computed == 5
    assert np.array_equal(found.labels, ahead(answer(net, values, x), 1)[:, 0])


def test_nan_inputs_are_left_to_the_model(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    strange = x[:4].copy()
    strange[1, 0, 0, 0], strange[2, 0, 0, 0] = np.nan, np.inf
    found = repo.evaluate(commit(repo, net, x), strange)
    assert found.stage[[1, 2]].tolist() == [len(found.stages) - 1] * 2
    assert found.labels[[0, 3]].tolist() == full(net, x)[[0, 3]].tolist()


def test_a_layer_without_bounds_falls_back_and_is_reported(repo: Repo) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.inner(x)[0][:, -1])

    net, x = Recurrent(), torch.randn(6, 4, 3)
    found = repo.evaluate(commit(repo, net, x), x)
    assert found.fallback is not None
    assert "inner" in found.fallback
    assert "RNN" in found.fallback
    assert np.array_equal(found.labels, full(net, x.numpy()))
    assert found.share == 1.0
    assert found.certain.all()


def test_embeddings_take_whole_numbers(repo: Repo) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Embedding(30, 6), nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 5))
    x = torch.randint(0, 30, (50, 4)).numpy()
    reference = commit(repo, net, x)
    assert np.array_equal(repo.evaluate(reference, x).labels, full(net, x))
    assert np.array_equal(repo.evaluate(reference, x.astype("f8")).labels, full(net, x))
    with pytest.raises(DataError, match="fractions"):
        repo.evaluate(reference, x + 0.5)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_weights_of_other_widths(repo: Repo, kind: str) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), Residual(nn.Linear(16, 16)), nn.Linear(16, 4))
    x = torch.randn(60, 5)
    values = {name: value.to(getattr(torch, kind)) for name, value in net.state_dict().items()}
    reference = commit(repo, net, x, values)
    wide = torch.float64 if kind == "float64" else torch.float32
    net.to(wide).load_state_dict(values)
    found = repo.evaluate(reference, x.numpy())
    assert np.array_equal(found.labels, net(x.to(wide)).argmax(1).numpy())
    assert found.share < 1.0 if kind == "float64" else found.share == 1.0


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**31), st.integers(1, 2))
def test_small_networks_give_the_labels_of_full_precision(repo: Repo, seed: int, top_k: int) -> None:
    torch.manual_seed(seed)
    width = 40 + seed % 13
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.SiLU(), Residual(nn.Conv2d(3, 3, 1)), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(27, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 4),
    )  # fmt: skip
    x = torch.randn(9, 1, 6, 6)
    found = repo.evaluate(commit(repo, net, x, name=f"n{seed}"), x, top_k=top_k)
    right = ahead(answer(net, weights(net), x.numpy()), top_k)
    assert np.array_equal(found.labels.reshape(9, -1), right)
    assert found.stages[0].bytes < found.bytes_full
    assert found.certain.all()


def test_a_snapshot_can_be_chosen(repo: Repo, digits: Any) -> None:
    net, x, _ = digits
    other = lenet()
    graph = network.to_json(read(net, torch.from_numpy(x[:1])))
    repo.commit("two", {1: weights(other), 2: weights(net)}, network=graph)
    assert np.array_equal(repo.evaluate("two", x[:40]).labels, full(net, x[:40]))
    assert np.array_equal(repo.evaluate("two", x[:40], snapshot=1).labels, full(other, x[:40]))


def test_empty_input_is_not_an_error(repo: Repo, digits: Any) -> None:
    net, x, y = digits
    reference = commit(repo, net, x)
    for precision in ("auto", "full", 2):
        found = repo.evaluate(reference, x[:0], y[:0], precision=precision)  # type: ignore[arg-type]
        assert len(found.labels) == 0
        assert found.accuracy is None


def test_errors_name_the_problem(repo: Repo, digits: Any) -> None:
    net, x, y = digits
    reference = commit(repo, net, x)
    repo.commit("bare", weights(net))
    repo.commit("strange", weights(net), network={"nodes": [{"id": "a", "kind": "CONV"}], "edges": []})
    lacking = {name: value for name, value in weights(net).items() if name != "4.bias"}
    commit(repo, net, x, lacking, "lacking")
    with pytest.raises(UsageError, match="no network") as raised:
        repo.evaluate("bare", x)
    assert "network=" in str(raised.value)
    with pytest.raises(UsageError, match="cannot be run"):
        repo.evaluate("strange", x)
    with pytest.raises(DataError, match=r"do not have '4.bias'"):
        repo.evaluate("lacking", x)
    with pytest.raises(DataError, match=r"\(397, 64\).*\(1, 8, 8\)"):
        repo.evaluate(reference, x.reshape(-1, 64))
    assert np.array_equal(
        repo.evaluate(reference, x[:9, 0]).labels, full(net, x[:9])
    )  # an axis of length 1 may be left out
    with pytest.raises(DataError, match="396"):
        repo.evaluate(reference, x[1:], y)
    with pytest.raises(DataError, match="class numbers"):
        repo.evaluate(reference, x, y + 0.5)
    with pytest.raises(DataError, match="rows of numbers"):
        repo.evaluate(reference, np.array(["a", "b"]))
    for precision in ("half", 0, 9, True, 1.5):
        with pytest.raises(UsageError, match="precision"):
            repo.evaluate(reference, x, precision=precision)  # type: ignore[arg-type]
    for wrong in ({"top_k": 0}, {"top_k": 10}, {"budget": 1.5}):
        with pytest.raises(UsageError):
            repo.evaluate(reference, x, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        repo.evaluate("nobody", x)


def test_networks_without_classes_are_refused(repo: Repo) -> None:
    x = torch.randn(3, 2, 5, 5)
    commit(repo, nn.Conv2d(2, 3, 1), x, name="pixels")
    with pytest.raises(UsageError, match="output has the shape"):
        repo.evaluate("pixels", x)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.inner(a) + self.inner(b)

    graph = network.from_torch(Two(), (torch.zeros(1, 2), torch.zeros(1, 2)))
    repo.commit("pair", weights(Two()), network=network.to_json(graph))
    with pytest.raises(UsageError, match="2 inputs"):
        repo.evaluate("pair", x)


def test_data_comes_from_files(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.array([0, 1])
    np.savez(tmp_path / "both.npz", x=x, y=y)
    np.savez(tmp_path / "named.npz", x_test=x, y_test=y)
    np.savez(tmp_path / "one.npz", images=x)
    np.save(tmp_path / "plain.npy", x)
    for name, arguments, labelled in [
        ("both.npz", (), True),
        ("named.npz", ("x_test", "y_test"), True),
        ("one.npz", (), False),
        ("plain.npy", (), False),
    ]:
        inputs, labels = read_data(tmp_path / name, *arguments)
        assert np.array_equal(inputs, x)
        assert labelled == (labels is not None)
    with pytest.raises(DataError, match="x_test, y_test"):
        read_data(tmp_path / "named.npz")
    with pytest.raises(NotFoundError):
        read_data(tmp_path / "none.npz")
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=r"\.csv"):
        read_data(tmp_path / "data.csv")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "plain.npy").read_bytes()[:-9])
    for name in ("objects.npy", "cut.npy"):
        with pytest.raises(DataError, match="cannot be read"):
            read_data(tmp_path / name)


def test_the_result_can_be_displayed(repo: Repo, digits: Any) -> None:
    net, x, y = digits
    found = repo.evaluate(commit(repo, net, x), x[:20], y[:20])
    assert "2 leading planes" in found._repr_html_()
    assert found.stages.to_pandas()["open"].tolist()[0] == 20
    assert found.summary()["inputs"] == 20


def test_weights_with_the_axis_order_of_other_frameworks(repo: Repo) -> None:
    """Keras and ONNX keep matrices the other way round, and biases with axes of length 1."""
    rng = np.random.default_rng(3)
    kernel, bias = rng.normal(size=(20, 30)).astype("f4"), rng.normal(size=(1, 30)).astype("f4")
    parameters = (Parameter("weight@10", "kernel", (20, 30)), Parameter("bias@flat", "bias", (1, 30)))
    nodes = (
        Node("in", "INPUT", shape=(None, 20)),
        Node("full", "FULL", attributes={"in": 20, "out": 30}, parameters=parameters),
        Node("out", "OUTPUT"),
    )
    graph = network.Network(nodes, (Edge("in", "full"), Edge("full", "out")))
    repo.commit("turned", {"kernel": kernel, "bias": bias}, network=network.to_json(graph))
    x = rng.normal(size=(60, 20)).astype("f4")
    found = repo.evaluate("turned", x)
    assert np.array_equal(found.labels, (x @ kernel + bias).argmax(1))
    assert found.stages[0].certified > 0
    assert np.array_equal(repo.evaluate("turned", x, precision="full").labels, found.labels)


def test_a_version_of_a_run_can_be_evaluated(tmp_path: Path) -> None:
    """Its weights are part of a state, and may still be a file of the run."""
    data = regatta.Dataset.digits(partitions=2, directory=tmp_path / "data")
    run = regatta.launch(
        data, regatta.search.grid(lr=[0.1], batch_size=[64]), _made, loss_fn=_loss, epochs=1, progress=False,
        cluster=regatta.Cluster.inline(), repo=tmp_path,
    )  # fmt: skip
    images, labels = load_digits(return_X_y=True)
    with Repo.open(tmp_path) as repo:
        version = repo.version(run.best["version"])
        values = repo.load(version)
        graph = network.to_json(read(_made({"lr": 0.1})[0], torch.zeros(1, 64)))
        copy = repo.commit("copy", values, network=graph)
        reference = version if version.network is not None else copy
        found = repo.evaluate(reference, images, labels)
        assert np.array_equal(found.labels, repo.evaluate(copy, images, precision="full").labels)
        assert found.stages[0].bytes < 0.6 * found.bytes_full


def _made(config: Any) -> Any:
    net = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"])


def _loss(model: Any, batch: Any, config: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_rms_normalisation_in_float64_has_the_epsilon_of_float64(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 64), nn.RMSNorm(64), nn.Linear(64, 4)).double()
    with torch.no_grad():
        module[0].weight.mul_(1e-4)
        module[0].bias.mul_(1e-4)
    x = torch.randn(40, 16, dtype=torch.float64)
    with Repo.init(tmp_path) as repo:
        repo.commit("rms", module.state_dict(), network=network.to_json(network.from_torch(module, x[:2])))
        found = repo.evaluate("rms", x.numpy())
    assert np.array_equal(found.labels, module(x).argmax(1).numpy())


def test_nan_ranks_first_as_in_pytorch() -> None:
    outputs = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, 0.0, torch.nan], [2.0, 2.0, 1.0], [0.0, -0.0, -1.0]])
    assert np.array_equal(ahead(outputs.numpy(), 1)[:, 0], outputs.argmax(1).numpy())
    assert np.array_equal(ahead(outputs.numpy(), 2), outputs.topk(2).indices.sort(1).values.numpy())
