"""`regatta simulate --suite`: the papers' experiments from the command line."""

from __future__ import annotations

import json

import pytest

from regatta.cli.main import main


def test_a_suite_is_printed_as_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--suite", "fleet", "--workers", "40", "--policies", "water,fleet-l", "--draws", "1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["40", "devices", "water"], ["40", "devices", "fleet-l"]]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["policy"] == "water" and rows[0]["speedup"] > rows[1]["speedup"]


def test_the_devices_per_node_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    ends = []
    for node in ("1", "8"):
        words = ["simulate", "--suite", "fleet", "--workers", "120", "--policies", "water", "--draws", "1"]
        assert main([*words, "--node", node, "--json"]) == 0
        ends.append(json.loads(capsys.readouterr().out)["rows"][0]["seconds"])
    assert ends[0] > ends[1]


@pytest.mark.parametrize(
    "words",
    [
        ["--suite", "fleat"],
        ["--suite", "fleet", "--policies", "wine"],
        [],
        ["a", "--suite", "fleet"],
        ["x.py", "--draws", "2"],
    ],
)
def test_wrong_suites_and_policies_are_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    said = capsys.readouterr().err
    assert any(word in said for word in ("fleet-harsh", "fleet-g", "--suite"))
