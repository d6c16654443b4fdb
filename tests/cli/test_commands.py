"""Each command on a real run: a linear model in NumPy, trained in this process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_run import FakeRun

from regatta.cli.main import main
from regatta.run import open_run

PROGRAM = """
import numpy as np
import regatta
from regatta.frameworks.numpy import SGD

def model_fn(config):
    if config["lr"] == 0:
        raise ValueError("a learning rate of nought learns nothing")
    return {"w": np.zeros(3)}, SGD(lr=config["lr"])

def loss_fn(weights, batch, config):
    x, y = batch
    error = x @ weights["w"] - y
    return float((error**2).mean()), {"w": 2 * x.T @ error / len(y)}

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 3))
data = regatta.Dataset.from_arrays(x, x @ np.array([1.0, -2.0, 0.5]), partitions=4, seed=0, name="line")
space = regatta.search.grid(lr=[0.1, 0.01], batch_size=[10])
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=2, cluster=regatta.Cluster.inline(2))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "line.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def ran(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["run", "line.py"]) == 0
    capsys.readouterr()
    return here


def test_run_prints_its_progress_and_the_leaderboard(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "line.py"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("line-1: done, 2 configurations, loss (lower is better)\nin all: batch_size=10\n")
    assert re.search(r"^wall +.* 2 workers$", shown.out, re.MULTILINE)
    assert "line-1: 2 configurations, 4 partitions, 2 epochs on 2 workers" in shown.err
    assert "line-1: done, " in shown.err
    assert "Kept in .regatta/runs/line-1" in shown.err
    assert "regatta show line-1 --gantt" in shown.err


def test_run_takes_a_number_of_workers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "line.py", "--workers", "3"]) == 0
    assert "2 epochs on 3 workers" in capsys.readouterr().err
    assert main(["run", "line.py", "--workers", "0"]) == 2


def test_run_as_json_leaves_stdout_to_the_document(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "line.py", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"]["status"] == "done"
    assert document["progress"] == {"done": 16, "wanted": 16}


def test_an_error_of_all_configurations_is_printed_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "line.py").write_text(PROGRAM.replace("lr=[0.1, 0.01]", "lr=[0, 0.0]"))
    assert main(["run", "line.py"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("No configuration can be trained") == 1
    assert shown.count("ValueError: a learning rate of nought") == 1
    assert "UsageError" not in shown
    assert "line-1: failed\n" in shown


def test_list_says_why_a_run_has_no_versions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = here / ".regatta" / "runs" / "made" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text(json.dumps(FakeRun().records[0]) + "\n")
    assert main(["list"]) == 0
    assert "A run leaves versions when it ends" in capsys.readouterr().err


def test_one_configuration_that_raises_does_not_fail_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "line.py").write_text(PROGRAM.replace("lr=[0.1, 0.01]", "lr=[0.1, 0.0]"))
    assert main(["run", "line.py"]) == 0
    shown = capsys.readouterr()
    assert "a learning rate of nought learns nothing" in shown.out
    assert "failed: " in shown.err
    failed = next(c for c in open_run("line-1").record.configs.values() if c.status == "failed")
    remedy = f"{failed.id} failed. To try again: regatta retry line-1"
    assert remedy in shown.err
    assert main(["show", "line-1"]) == 0
    assert remedy in capsys.readouterr().err
    assert main(["show", "line-1", failed.id]) == 0
    detail, told = capsys.readouterr()
    assert f"{remedy} {failed.id}" in told
    assert "Traceback (most recent call last)" in detail
    assert "in model_fn" in detail


def test_a_sweep_in_which_all_models_fail_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "line.py").write_text(PROGRAM.replace("lr=[0.1, 0.01]", "lr=[0.0]"))
    assert main(["run", "line.py"]) in (1, 2)
    assert "a learning rate of nought learns nothing" in capsys.readouterr().err


def test_show_prints_the_leaderboard_of_the_run_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "line.py"])
    first = capsys.readouterr().out
    assert main(["show"]) == 0
    assert capsys.readouterr().out == first


def test_show_writes_the_page_and_the_trace(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "line-1", "--gantt", "out.html", "--trace", "out.json"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Wrote out.html\nWrote out.json\n"
    events = json.loads((ran / "out.json").read_text())["traceEvents"]
    units = [event for event in events if event.get("cat") in ("train", "eval", "pilot")]
    assert len(units) == len(open_run("line-1").trace())
    assert "<canvas" in (ran / "out.html").read_text()


def test_a_page_that_cannot_be_written_is_a_usage_error(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--gantt", "missing/out.html"]) == 2
    assert "missing/out.html" in capsys.readouterr().err


def test_replay_is_equal_bit_for_bit(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay"]) == 0
    assert capsys.readouterr().out == "line-1: all 16 states equal, bit for bit\n"
    assert main(["replay", "line-1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "version": 1, "run": "line-1", "ok": True, "units": 16, "equal": 16, "left_out": 0, "differing": [],
    }  # fmt: skip


def test_replay_of_a_run_that_differs_fails(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = ran / ".regatta" / "runs" / "line-1" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if '"event":"unit"' in line and '"kind":"train"' in line)
    lines[number] = re.sub(r'"hash":"\w+"', '"hash":"beef"', lines[number])
    journal.write_text("".join(lines))
    assert main(["replay", "line-1"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("line-1: 1 of 16 states differ\n")
    assert "recorded beef" in shown


def test_explain_trains_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "line.py"]) == 0
    assert "16" in capsys.readouterr().out
    assert main(["explain", "line.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1
    assert not list(here.glob(".regatta/runs/*"))
    assert main(["explain", "line.py", "--repo", "elsewhere"]) == 3
    assert "no repository at elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["line.py", "line-1"])
def test_simulate_takes_a_file_or_a_run(ran: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", target, "--workers", "1,2,4"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[-4:-1]] == ["1", "2", "4"]
    assert rows[-1].startswith("with hops alone")
    assert main(["simulate", target, "--workers", "1,4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["workers"] for row in document["workers"]] == [1, 4]


def test_commands_without_any_run_point_to_the_demo(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 3
    assert "regatta demo" in capsys.readouterr().err
    (here / ".regatta").mkdir()
    assert main(["show"]) == 3
    assert main(["runs"]) == 0
    assert "regatta demo" in capsys.readouterr().err


def test_demo_prints_its_program(here: Path, capsys: pytest.CaptureFixture[str], root: Path) -> None:
    assert main(["demo", "--program"]) == 0
    assert capsys.readouterr().out == (root / "examples" / "digits.py").read_text()


def test_the_demo_runs_to_its_last_advice(here: Path) -> None:
    words = [sys.executable, "-c", "from regatta.cli.main import entry; entry()", "demo"]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("digits-1: done, 8 configurations, loss (lower is better)")
    assert open_run("digits-1").record.progress() == (96, 96)
    assert (here / ".regatta" / "runs" / "digits-1" / "gantt.html").is_file()
    advice = re.findall(r"^  regatta (\w+)", done.stderr, re.MULTILINE)
    assert advice == ["show", "show", "replay", "demo", "explain", "run"]


def test_a_page_does_not_overwrite_a_program(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = ran / "own.py"
    program.write_text("print(1)")
    assert main(["show", "--gantt", str(program)]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert program.read_text() == "print(1)"
