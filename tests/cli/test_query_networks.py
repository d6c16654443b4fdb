"""`query` with slices and constructs as people type them: what was made, as a table, JSON and CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regatta import network
from regatta.cli.main import main
from regatta.repo import Repo

CONSTRUCT = 'construct b from a where a.name = "mlp" mutate a["2"].set(out in [3, :n])'


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    with Repo.init(tmp_path) as repo:
        repo.commit("mlp", net.state_dict(), network=network.from_torch(net, torch.zeros(1, 8)), git=False)
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_was_made_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", CONSTRUCT, "--set", "n=4", "--wide"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["version", "parent", "changes", "parameters", "new"]
    assert lines[1].split("  ")[0] == "mlp-b@1" and "out of 2 set to 3 (was 2)" in lines[1]
    assert lines[2].split("  ")[0] == "mlp-b@2" and "2.weight, 2.bias" in lines[2]
    assert main(["query", CONSTRUCT, "--set", "n=4", "--csv"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1] == 'mlp-b@1,mlp@1,out of 2 set to 3 (was 2),75,"2.weight, 2.bias"'
    assert "2 of 2 models are versions already" in said.err
    with Repo.open() as repo:
        assert repo.version("mlp-b@1").metadata["parameters"] == {"n": 4}


def test_what_was_made_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "query", CONSTRUCT, "--set", "n=4", "--seed", "7")["made"]
    assert [row["version"] for row in made] == ["mlp-b@1", "mlp-b@2"]
    assert made[0]["parent"] == "mlp@1"
    with Repo.open() as repo:
        first = repo.load("mlp-b@1")
        assert repo.version("mlp-b@1").metadata["seed"] == 7
    assert main(["query", CONSTRUCT, "--set", "n=4", "--seed", "8"]) == 0
    with Repo.open() as repo:
        second = repo.load("mlp-b@3")
    assert (first["0.weight"] == second["0.weight"]).all() and (first["2.weight"] != second["2.weight"]).any()


def test_an_explanation_makes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "query", CONSTRUCT, "--set", "n=4", "--explain")["explain"]
    assert found["models_to_make"] == 2
    assert [model["changes"] for model in found["model"]] == [
        ["out of 2 set to 3 (was 2)"], ["out of 2 set to 4 (was 2)"],
    ]  # fmt: skip
    with Repo.open() as repo:
        assert len(repo.versions()) == 1


def test_nothing_to_make_and_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", CONSTRUCT.replace('"mlp"', '"nobody"'), "--set", "n=4"]) == 0
    assert "nothing was made" in capsys.readouterr().err
    assert main(["query", CONSTRUCT, "--set", "n=4", "--max-models", "1"]) == 2
    assert "makes 2 models of 1; 1 is the limit" in capsys.readouterr().err
    with Repo.open() as repo:
        assert len(repo.versions()) == 1
