"""The keys that programs may rely on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun

from regatta.cli.main import main
from regatta.cli.output import json_documents
from regatta.format import json_value

RUN_KEYS = {
    "name", "status", "error", "started", "seconds", "metric", "mode", "configurations", "units", "best", "folder",
    "seed", "epochs", "rule", "search", "dataset", "cluster", "versions",
}  # fmt: skip
CONFIG_KEYS = {"account", "parent_epoch", 
    "id", "values", "status", "epoch", "epochs", "parent", "best", "last", "reports", "error", "traceback",
}  # fmt: skip
RESOURCE_KEYS = {"journal", "journal_bytes", "workers", 
    "wall", "train", "eval", "pilot", "hop", "save", "load", "idle", "bytes_hopped", "hops", "units",
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs = tmp_path / ".regatta" / "runs"
    FakeRun(name="first").write(runs)
    FakeRun(name="second", fails=(3,), nans=(5,)).write(runs)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    document: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert document["version"] == 1
    return document


def test_keys_of_show(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "show", "second")
    assert set(document) == {"version", "run", "progress", "configurations", "resources", "notes"}
    assert set(document["run"]) == RUN_KEYS
    assert document["run"]["folder"] == str(here / ".regatta" / "runs" / "second")
    assert all(set(config) == CONFIG_KEYS for config in document["configurations"])
    assert set(document["resources"]) == RESOURCE_KEYS
    best = document["configurations"][0]
    assert document["run"]["best"] == {"config": best["id"], **best["best"]}
    assert best["reports"][-1]["metrics"]["loss"] == best["last"]


def test_nan_becomes_null(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "show", "second")
    lost = [c for c in document["configurations"] if c["status"] == "done" and c["last"] is None]
    assert len(lost) == 1
    assert lost[0]["best"]["epoch"] == 1


def test_the_newest_run_is_the_default(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "show")["run"]["name"] == "second"


def test_show_one_configuration(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ident = next(iter(FakeRun(name="first").record().configs))
    document = ask(capsys, "show", "first", ident[:6])
    assert set(document) == {"version", "run", "configuration"}
    assert set(document["configuration"]) == CONFIG_KEYS
    assert document["configuration"]["id"] == ident


def test_keys_of_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "runs")
    assert [run["name"] for run in document["runs"]] == ["first", "second"]
    summary = RUN_KEYS - {"folder", "seed", "epochs", "rule", "search", "dataset", "cluster", "versions"}
    assert all(set(run) == summary for run in document["runs"])


def test_a_run_that_reported_nothing_has_no_best() -> None:
    record = FakeRun().record()
    for config in record.configs.values():
        config.reports.clear()
    assert json_documents.run_summary(record)["best"] is None


def test_plain_values_are_json() -> None:
    assert json_value({"a": (1, math.inf), "b": Path("x"), 3: [math.nan, True, None]}) == {
        "a": [1, None],
        "b": "x",
        "3": [None, True, None],
    }
