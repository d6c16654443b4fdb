"""`regatta eval`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regatta import network
from regatta.cli.main import main
from regatta.repo import Repo

KEYS = {
    "version", "precision", "top_k", "inputs", "certain", "accuracy", "bytes_read", "bytes_full", "share", "mean_share",
    "fallback", "stages", "labels", "is_certain",
}  # fmt: skip
STAGE_KEYS = {"read", "bytes", "open", "intervals", "backward", "computed"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A repository with a model, one that has a layer without bounds, and one without a network; data beside them."""
    folder = tmp_path_factory.mktemp("eval")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 80), nn.ReLU(), nn.Linear(80, 5), nn.Softmax(-1)).eval()
    odd = nn.Sequential(nn.PReLU(), nn.Linear(8, 5)).eval()
    x = torch.randn(50, 8)
    with Repo.init(folder) as repo:
        for name, model in (("model", net), ("odd", odd)):
            graph = network.to_json(network.from_torch(model, x[:1]))
            repo.commit(name, {1: model.state_dict(), 2: model.state_dict()}, network=graph)
        repo.commit("bare", net.state_dict())
    labels = net(x).argmax(1).numpy()
    np.savez(folder / "data.npz", x=x.numpy(), y=labels)
    np.savez(folder / "other.npz", images=x.numpy(), truth=labels, more=labels)
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "wrong.npy", x.numpy()[:, :7])
    return folder, labels


@pytest.fixture
def here(made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(made[0])
    return made[1]


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["evaluation"]
    assert set(found) == KEYS
    assert all(set(stage) == STAGE_KEYS for stage in found["stages"])
    return found


def test_eval_prints_accuracy_and_bytes_read(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "model", "--data", "data.npz"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("model@1: 50 inputs, accuracy 1.0000\n")
    assert "2 leading planes" in out
    assert "a single input needs" in out
    assert "not certain" not in out


def test_json_has_labels_and_figures(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "model", "--data", "data.npz")
    assert found["labels"] == here.tolist()
    assert found["is_certain"] == [True] * 50
    assert found["accuracy"] == 1.0
    assert 0 < found["bytes_read"] <= found["bytes_full"]
    rough = document(capsys, "model", "--data", "x.npy", "--precision", "1")
    assert rough["accuracy"] is None
    assert rough["certain"] < 50
    assert rough["bytes_read"] < found["bytes_full"] / 2
    assert document(capsys, "model", "--data", "x.npy", "--precision", "full")["share"] == 1.0
    assert document(capsys, "model", "--data", "x.npy", "--top-k", "2", "--snapshot", "1")["labels"][0][1] < 5
    named = document(capsys, "model", "--data", "other.npz", "--x", "images", "--y", "truth")
    assert named["labels"] == found["labels"]


def test_a_budget_leaves_labels_open(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "model", "--data", "data.npz", "--budget", "0"]) == 0
    uncertain = 50 - document(capsys, "model", "--data", "data.npz", "--budget", "0")["certain"]
    main(["eval", "model", "--data", "data.npz", "--budget", "0"])
    assert uncertain == 0 or f"{uncertain} labels are not certain" in capsys.readouterr().out
    assert main(["eval", "model", "--data", "data.npz", "--precision", "1"]) == 0
    assert "labels are not certain" in capsys.readouterr().out


def test_a_fallback_is_reported(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "odd", "--data", "x.npy"]) == 0
    assert "All weights were read: layer '0' (PRELU)" in capsys.readouterr().err.replace('"', "'")


def test_eval_takes_a_version_after_an_epoch(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "model@1:1", "--data", "x.npy")["labels"] == here.tolist()
    assert main(["eval", "model:7", "--data", "x.npy"]) == 3
    assert "has no snapshot 7" in capsys.readouterr().err


def test_lists_of_numbers_are_on_one_line(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "model", "--data", "x.npy", "--json"]) == 0
    out = capsys.readouterr().out
    assert f'"labels": {here.tolist()},\n' in out
    assert len(out.splitlines()) < 60


def test_labels_are_written_to_a_file(here: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "model", "--data", "x.npy", "--labels", str(tmp_path / "labels.npy")]) == 0
    assert np.load(tmp_path / "labels.npy").tolist() == here.tolist()
    assert main(["eval", "model", "--data", "x.npy", "--labels", str(tmp_path / "labels.txt")]) == 2
    assert main(["eval", "model", "--data", "x.npy", "--labels", str(tmp_path / "no" / "labels.npy")]) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("bare", "--data", "x.npy"), 2, "network="),
        (("model", "--data", "wrong.npy"), 2, "(50, 7)"),
        (("model", "--data", "other.npz"), 2, "images, more, truth"),
        (("model", "--data", "none.npz"), 3, "no such file"),
        (("nobody", "--data", "x.npy"), 3, "nobody"),
        (("model", "--data", "x.npy", "--precision", "most"), 2, "auto, full"),
        (("model", "--data", "x.npy", "--top-k", "9"), 2, "9 best"),
        (("model",), 2, "--data"),
    ],
)
def test_wrong_arguments_are_errors(
    here: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    assert main(["eval", *words]) == code
    assert said in capsys.readouterr().err
