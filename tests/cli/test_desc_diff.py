"""`desc` and `diff` as people type them: tables, JSON, pages, exit codes."""

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


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 10))
    graph = network.from_torch(net, torch.zeros(1, 64))
    with Repo.init(tmp_path) as repo:
        repo.commit(
            "mlp", {e: {n: v * e for n, v in net.state_dict().items()} for e in (1, 2)}, network=graph, git=False,
            hyperparameters={"lr": 0.1, "width": 80}, metrics={"loss": [0.9, 0.4]}, files={"train.py": b"pass"},
            message="the first",
        )  # fmt: skip
        repo.commit("mlp", net.state_dict(), network=graph, hyperparameters={"lr": 0.2, "width": 80}, git=False)
        repo.commit("bare", None, git=False)
        repo.tag("mlp@1", "good")
    return tmp_path


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words, "--json"])
    found: dict[str, Any] = json.loads(out(capsys))
    return found


def test_desc_shows_everything_about_a_version(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["desc", "good"]) == 0
    said = out(capsys)
    for word in ("mlp@1", "[good]", "the first", "FULL{2}", "lr", "0.1", "loss", "train.py", "0.weight", "80×64"):
        assert word in said
    assert "epochs 1 to 2" in said and "2 of 4 bytes" in said
    assert any(bar in said for bar in "▁▂▃▄▅▆▇█")


def test_desc_prints_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "desc", "mlp@1")
    assert found["version"]["reference"] == "mlp@1" and found["version"]["tags"] == ["good"]
    assert found["version"]["hyperparameters"] == {"lr": 0.1, "width": 80}
    assert found["metrics"]["loss"]["values"] == [[1, 0.9], [2, 0.4]]
    assert found["network"]["expression"] == "FULL{2}"
    assert [layer["kind"] for layer in found["network"]["layers"]] == ["INPUT", "FULL", "RELU", "FULL", "OUTPUT"]
    tensors = {tensor["name"]: tensor for tensor in found["weights"]["tensors"]}
    low, high = tensors["0.weight"]["norm"]
    assert 0 < low < high and sum(tensors["0.weight"]["histogram"]["counts"]) == 80 * 64
    exact = document(capsys, "desc", "mlp@1", "--exact")["weights"]["tensors"][0]["norm"]
    assert exact[0] == exact[1] and low <= exact[0] <= high
    assert document(capsys, "desc", "mlp@1", "--no-weights")["weights"]["tensors"] == []


def test_desc_of_a_snapshot_and_of_a_version_without_weights(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (document(capsys, "desc", f"mlp@1:{epoch}", "--exact") for epoch in (1, 2))
    norms = [found["weights"]["tensors"][0]["norm"][0] for found in (one, two)]
    assert norms[1] == pytest.approx(2 * norms[0]) and one["weights"]["snapshot"] == "mlp@1:1"
    assert main(["desc", "bare"]) == 0
    assert "none" in out(capsys)


def test_desc_writes_a_page(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.zeros((2, 64), "f4"))
    np.savez("named.npz", input=np.zeros((2, 64), "f4"))
    assert main(["desc", "mlp", "--html", "page.html", "--input", "x.npy"]) == 0
    assert not out(capsys)
    text = (project / "page.html").read_text()
    assert (
        "0.weight" in text and "default-src 'none'" in text and "http://" not in text.replace("http://www.w3.org", "")
    )
    assert main(["desc", "mlp", "--input", "x.npy"]) == 2
    assert main(["desc", "mlp", "--html", "page.html", "--input", "none.npy"]) == 3
    (project / "bad.npy").write_bytes(b"nonsense")
    assert main(["desc", "mlp", "--html", "page.html", "--input", "bad.npy"]) == 2
    assert main(["desc", "mlp", "--html", "train.txt"]) == 0  # a file that is not there yet may be called anything
    assert main(["desc", "mlp", "--html", "x.npy"]) == 2


def test_diff_shows_differences_and_exits_with_1(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "mlp@1", "mlp@2"]) == 1
    said = out(capsys)
    assert "lr" in said and "0.2" in said and "0.weight" in said and "train.py" in said
    assert "width" not in said and "Network" not in said  # what is the same is left out
    assert main(["diff", "mlp@1", "mlp@2", "--all"]) == 1
    said = out(capsys)
    assert "width" in said and "Network" in said


def test_diff_names_a_version_without_a_network(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "bare", "mlp@1"]) == 1
    assert "bare@1 has no network recorded" in out(capsys)


def test_diff_of_equal_versions_exits_with_0(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "good", "mlp@1"]) == 0
    assert "do not differ" in out(capsys)
    assert main(["diff", "mlp@1:1", "mlp@1:2"]) == 1


def test_diff_prints_json_and_writes_a_page(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "diff", "mlp@1", "mlp@2", "bare")
    assert [side["label"] for side in found["versions"]] == ["mlp@1", "mlp@2", "bare@1"] and not found["same"]
    changes = {each["name"]: each for each in found["hyperparameters"]}
    assert changes["lr"]["values"] == [0.1, 0.2, None] and changes["lr"]["present"] == [True, True, False]
    tensor = found["comparisons"][0]["parameters"][0]
    assert tensor["what"] == "changed" and tensor["distance"][0] <= tensor["distance"][1]
    assert main(["diff", "mlp@1", "mlp@2", "--html", "diff.html"]) == 1
    assert "default-src 'none'" in (project / "diff.html").read_text()


def test_missing_versions_are_errors(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["desc", "mpl"]) == 3
    assert "mlp" in capsys.readouterr().err
    assert main(["diff", "mlp"]) == 2
    assert main(["diff", "mlp", "mlp:9"]) == 3
    assert "no snapshot 9" in capsys.readouterr().err


def test_commands_without_a_repository_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["desc", "x"]) == main(["diff", "x", "y"]) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("list",), ("list", "--csv"), ("list", "--md"), ("list", "--names"), ("log",), ("log", "--oneline"),
        ("desc", "net"), ("diff", "net@1", "net@2"), ("desc", "\x1b[31mnone"), ("tag", "--delete", "\x1b]0;x\x07"),
    ],
)  # fmt: skip
def test_texts_of_versions_do_not_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    escape = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e\r"
    with Repo.init(tmp_path) as repo:
        for number in range(2):
            values = {f"name{escape}": f"value{escape}{number}"}
            repo.commit(
                "net", {"w": np.zeros(3)}, message=f"a message {escape}", hyperparameters=values, git=False,
                metrics={f"metric{escape}": number},
            )  # fmt: skip
    main(list(words))
    said = capsys.readouterr()
    assert {each for each in said.out + said.err if not each.isprintable()} <= {"\n", "\t"}
    assert "value\\x1b[31m" in said.out or words[0] != "desc" or words[1] != "net"
