"""`regatta query` and `regatta list --where`: where the text comes from, forms of output, saved queries, the prompt."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from regatta.cli.main import main
from regatta.repo import Repo

REGATTA = [sys.executable, "-c", "from regatta.cli.main import entry; entry()"]
NETWORK = {
    "nodes": [
        {"id": "x", "kind": "INPUT"},
        {"id": "conv1", "kind": "CONV", "name": "conv1", "attributes": {"dims": 2, "out": 8}},
        {"id": "pool1", "kind": "POOL", "name": "pool1", "attributes": {"function": "max"}},
        {"id": "out", "kind": "OUTPUT"},
    ],
    "edges": [["x", "conv1"], ["conv1", "pool1"], ["pool1", "out"]],
}
LONG = 60.0  # seconds: an end for tests that hang


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with Repo.init(tmp_path) as repo:
        repo.clock = iter(range(1_000_000, 9_000_000, 1_000_000)).__next__
        repo.commit("first", network=NETWORK, hyperparameters={"lr": 0.1}, metrics={"loss": [0.5, 0.2]}, git=False)
        repo.commit(
            "second", hyperparameters={"lr": 0.01, "m.x": 1}, metrics={"loss": 0.4}, parents=["first"], git=False
        )
        repo.commit("third", hyperparameters={"lr": "auto"}, git=False)
        repo.tag("first", "best")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(capsys, *words, "--json"))
    return found


def test_models_are_a_table_of_versions(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "query", 'select m where m["conv1"].next has POOL("max")')
    assert "first@1" in text and "[best]" in text and "third" not in text
    found = document(capsys, "query", "select m where m.param.lr < 1")["versions"]
    assert [version["reference"] for version in found] == ["first@1", "second@1"]
    assert found[0]["tags"] == ["best"] and found[1]["parents"][0]["id"] == found[0]["id"]


def test_it_is_said_that_the_table_shows_the_best_value_and_not_the_last(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Repo.open(project) as repo:
        repo.commit("worse", metrics={"loss": [0.1, 0.6]}, git=False)
    notes = {}
    for condition in ("loss > 0.5", "loss.best < 0.15", "loss < 0.5"):
        assert main(["query", f"select m where m.metric.{condition}"]) == 0
        notes[condition] = "shows the best loss; the query uses the last" in capsys.readouterr().err
    assert notes == {"loss > 0.5": True, "loss.best < 0.15": False, "loss < 0.5": False}


def test_columns_are_a_table(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select m.name, m.param.lr as rate, m.tags, m.created, m from m order by m.name desc"
    found = document(capsys, "query", query)
    assert found["columns"] == ["name", "rate", "tags", "created", "m"]
    assert found["rows"][2] == {
        "name": "first", "rate": 0.1, "tags": ["best"], "created": "1970-01-12T13:46:40+00:00", "m": "first@1",
    }  # fmt: skip
    assert shown(capsys, "query", "--csv", "select m.name, m.param.lr from m where m.number = 1").splitlines() == [
        "name,param.lr", "first,0.1", "second,0.01", "third,auto",
    ]  # fmt: skip
    assert "| first |" in shown(capsys, "query", "--md", query)
    assert shown(capsys, "query", "--csv", "select m.name from m where false") == "name\n"


def test_rows_beyond_the_first_hundred_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select a.name from versions a, versions b, versions c, versions d, versions e"
    assert "143 more (--all)" in shown(capsys, "query", query)
    assert len(document(capsys, "query", query)["rows"]) == 3**5


def test_nothing_found_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for query, text in (
        ("select m where false", "No model matches."),
        ("select m.name where false", "No row matches."),
    ):
        assert main(["query", query]) == 0
        assert text in capsys.readouterr().err


def test_the_text_is_an_argument_a_file_or_the_standard_input(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "select m.name\nfrom m\nwhere m.name = 'second' -- é\n"
    (project / "q.dql").write_text(query)
    wanted = "name\nsecond\n"
    assert shown(capsys, "query", "--csv", query) == wanted
    assert shown(capsys, "query", "--csv", "-f", "q.dql") == wanted
    for words in (["query", "--csv"], ["query", "--csv", "-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(query))
        assert shown(capsys, *words) == wanted
    assert "no such file" in shown(capsys, "query", "-f", "none.dql", code=3)
    assert "given twice" in shown(capsys, "query", "-f", "q.dql", query, code=2)
    (project / "b.dql").write_bytes(b"\xff\xfe")
    assert "cannot be read" in shown(capsys, "query", "-f", "b.dql", code=2)


def test_an_error_shows_the_place(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "query", "select m where m.nme = 3", code=2)
    assert "Did you mean name" in text and "                   ^^^" in text


def test_parameters_are_bound(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select m.name from m where m.param.lr = :lr or m.name = :name"
    words = ("query", "--csv", query, "--set", "lr=0.1", "--set", "name=third' or true --")
    assert shown(capsys, *words) == "name\nfirst\n"
    assert "no value" in shown(capsys, "query", query, code=2)


def test_queries_are_saved_listed_used_and_forgotten(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "query", "--save", "good", "select m where m.metric.loss.best < 0.3")
    assert shown(capsys, "query", "--csv", 'select m.name from "good" m') == "name\nfirst\n"
    assert "select m where" in shown(capsys, "query", "--saved")
    assert document(capsys, "query", "--saved")["queries"][0]["name"] == "good"
    assert "ends too early" in shown(capsys, "query", "--save", "bad", "select m where", code=2)
    shown(capsys, "query", "--forget", "good")
    assert "Did you mean" not in shown(capsys, "query", 'select m from "good"', code=2)
    assert "no saved query" in shown(capsys, "query", "--forget", "good", code=3)


def test_explain(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = 'select m where m.name like "f%" and m["conv1"]'
    text = shown(capsys, "query", "--explain", query)
    assert "SELECT" in text and '?1 = "f*"' in text and "rows expected: 1" in text and "sql seconds" not in text
    found = document(capsys, "query", f"explain analyze {query}")["explain"]
    assert found["rows"] == found["rows_expected"] == 1 and found["sql_seconds"] >= 0 and "f%" not in found["sql"]
    assert "SCAN" in "".join(found["plan"]) or "SEARCH" in "".join(found["plan"])
    assert "needs --explain" in shown(capsys, "query", "--analyze", query, code=2)


def test_parquet(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyarrow import parquet

    shown(capsys, "query", "--parquet", "rows.parquet", "select m.name, m.param.lr, m.metric.loss from m")
    table = parquet.read_table("rows.parquet")
    assert table.column_names == ["name", "param.lr", "metric.loss"]
    assert table.to_pylist()[2] == {"name": "third", "param.lr": "auto", "metric.loss": None}


# list --where


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (["lr=0.1"], ["first"]),
        (["lr=0.1", "lr=0.01"], ["first", "second"]),
        (["lr = 0.1"], ["first"]),
        (["param.lr=0.1"], ["first"]),
        (["number=1"], ["first", "second", "third"]),
        (['name="first"'], ["first"]),
        (["lr=auto"], ["third"]),
        (["metric.loss.best < 0.3"], ["first"]),
        (["m.metric.loss.best < 0.3 or name = 'third'"], ["first", "third"]),
        (["name like '%d'", "param.lr < 1"], ["second"]),
        (["name like '%d'", "lr=auto"], ["third"]),
        (['m["conv*"].next has POOL'], ["first", "second"]),
        (["m.x=1"], ["second"]),  # there is a hyperparameter of this name
        (["m.number=1"], ["first", "second", "third"]),
        (["'best' in tags"], ["first"]),
        (["m in children(m)"], []),
    ],
)
def test_list_takes_conditions_and_the_old_forms(
    conditions: list[str], names: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for condition in conditions for word in ("--where", condition)]
    found = document(capsys, "list", *words)["versions"]
    assert sorted(version["name"] for version in found) == names


def test_list_limits_what_conditions_leave(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "list", "--where", "name <> 'third'", "-n", "1")
    assert [version["name"] for version in found["versions"]] == ["second"]
    best = document(capsys, "list", "--where", "number = 1", "--metric", "loss", "--best")["versions"]
    assert [version["name"] for version in best] == ["first", "second"]
    assert shown(capsys, "list", "s*", "--where", "number = 1", "--names") == "second\n"


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("lr", "not a condition"),
        ("m.nme = 3", "Did you mean name"),
        ("name <", "ends too early"),
        ("x.y = 1", "no variable"),
    ],
)
def test_a_wrong_condition(condition: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in shown(capsys, "list", "--where", condition, code=2)


# The prompt


def test_the_prompt_answers_completes_and_remembers(project: Path) -> None:
    """A real terminal: a query over three lines, an error, completion with Tab, Ctrl-D, and the history afterwards."""
    state = {**os.environ, "XDG_STATE_HOME": str(project / "state"), "NO_COLOR": "1", "TERM": "dumb"}
    text = _talk(state, b"select m.name from m\n", b"where m.number = 1 and m.name <> ';'\n",
                 b"and m.name = 'third';\n", b"select m.nme\n", b"\n", b"selec\t m.na\t;\n", b"\x04")  # fmt: skip
    assert "name" in text and "third" in text and "Did you mean name" in text
    assert text.count("first") == 1  # by the query that Tab completed
    history = (project / "state" / "regatta" / "query_history").read_text()
    assert "select m.nme" in history
    assert "second" in _talk(state, b"\x10\n", b"quit\n")  # the last line, by the arrow up


def _talk(env: dict[str, str], *lines: bytes) -> str:
    """What a prompt shows when these lines are typed, each after the prompt has come."""
    here, there = pty.openpty()
    process = subprocess.Popen([*REGATTA, "query"], stdin=there, stdout=there, stderr=there, env=env, close_fds=True)
    os.close(there)
    said = b""
    try:
        for number, line in enumerate(lines):
            said = _read_until(here, said, b"> ", number + 1)
            os.write(here, line)
        end = time.monotonic() + LONG
        while process.poll() is None and time.monotonic() < end:
            said += _read(here)
        said += _read(here)
        assert process.wait(LONG) == 0, said.decode()
    finally:
        process.kill()
        os.close(here)
    return said.decode().replace("\r", "")


def _read_until(handle: int, said: bytes, mark: bytes, times: int) -> bytes:
    end = time.monotonic() + LONG
    while said.count(mark) < times:
        assert time.monotonic() < end, said.decode()
        said += _read(handle)
    return said


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536) if select.select([handle], [], [], 0.1)[0] else b""
    except OSError:  # the other end is closed
        return b""
