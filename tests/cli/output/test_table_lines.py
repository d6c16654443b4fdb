"""Tables as lines of text, for terminals of any width."""

from __future__ import annotations

import csv
import io
import math

import pytest
from fake_run import FakeRun
from rich.cells import cell_len

from regatta.cli.output import run_tables
from regatta.cli.output.table import Table, left, right, sentences, value_cell
from regatta.cli.output.table_lines import MIN_SENTENCE_WIDTH, fit, table_lines, wrap
from regatta.errors import UsageError


def drawn(table: Table, room: int | None) -> list[str]:
    return list(table_lines(table, room, lambda text, style: text))


def wide_leaderboard() -> Table:
    record = FakeRun(configs=6, fails=(2,)).record()
    for number, config in enumerate(record.configs.values()):
        config.values |= {f"hyperparameter_{i}": 0.000604612345 * (number + i + 1) for i in range(12)}
    return run_tables.leaderboard(record)


def test_rank_status_and_metric_stay_in_a_narrow_terminal() -> None:
    table = wide_leaderboard()
    for room in (60, 80, 140):
        lines = drawn(table, room)
        names = [column.name for column in fit(table, room).columns]
        assert names[:4] == ["#", "configuration", "status", "best loss"]
        assert max(map(cell_len, lines)) <= room
        assert not any("…" in line for line in lines)
        assert any(line.startswith("no room for: ") for line in lines)
    assert len(fit(table, 140).columns) > len(fit(table, 80).columns) > 5


def test_columns_that_are_left_out_are_named() -> None:
    table = wide_leaderboard()
    shown = fit(table, 80)
    kept = {column.name for column in shown.columns}
    left_out = [column.name for column in table.columns if column.name not in kept]
    assert shown.below[-1].startswith(f"no room for: {', '.join(left_out[:8])}")
    assert "--wide" in shown.below[-1]
    assert fit(table, None) is table


def test_numbers_have_four_figures_and_csv_has_all() -> None:
    table = wide_leaderboard()
    text, first = "\n".join(drawn(table, None)), 0.000604612345
    assert "0.0006046" in text and "0.00060461" not in text
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert repr(first) in {row["hyperparameter_0"] for row in rows}


def test_sentences_are_wrapped_and_keep_their_words() -> None:
    remark = "the quick brown fox jumps over the lazy dog " * 4
    table = Table([left("name", 0), sentences("")], [["a", remark], ["b", "one\ntwo"]])
    lines = drawn(table, 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == " ".join(f"name a {remark} b one two".split())
    assert drawn(table, None)[1] == f"a     {remark}".rstrip()


def test_wide_characters_count_twice() -> None:
    table = Table([left("name"), right("長い"), left("")], [["a", "1.5", ""], [("bcdef", "bold"), "百", "x"]])
    assert drawn(table, None) == ["name   長い", "a       1.5", "bcdef    百  x"]
    assert all(cell_len(line) <= MIN_SENTENCE_WIDTH for line in wrap("長" * 40, MIN_SENTENCE_WIDTH))


def test_control_characters_are_shown_and_not_obeyed() -> None:
    table = Table([left("name"), left("")], [["red\x1b[31m", "two\nlines"]])
    assert drawn(table, None) == ["name", "red\\x1b[31m  two\\nlines"]


def test_rows_are_sorted_by_value_and_missing_ones_are_last() -> None:
    values = [0.5, None, 1e-9, math.nan, 10, "text"]
    table = Table([right("x"), left("n")], [[value_cell(value), str(n)] for n, value in enumerate(values)])
    assert [row[1] for row in table.sort("x").rows] == ["2", "0", "4", "5", "1", "3"]
    assert [row[1] for row in table.sort("x", reverse=True).rows] == ["5", "4", "0", "2", "1", "3"]


def test_a_part_of_a_name_is_enough_to_sort_by_it() -> None:
    table = Table([right("best loss"), right("last loss")], [[value_cell(1.0), value_cell(2.0)]])
    assert table.sort("best").columns[0].priority == 0
    with pytest.raises(UsageError, match="several columns match 'loss'"):
        table.sort("loss")


def test_markdown_escapes_its_separator() -> None:
    assert Table([left("a|b")], [["x|y\nz"]]).to_markdown() == "| a\\|b |\n| --- |\n| x\\|y z |"
