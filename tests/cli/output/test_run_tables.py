"""The leaderboard and the other tables of a run."""

from __future__ import annotations

import pytest
from fake_run import START, FakeRun

from regatta.cli import ui
from regatta.cli.output import run_tables
from regatta.cli.output.table import split_values
from regatta.journal.run_record import RunRecord


def words(cell: run_tables.Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def column(table: run_tables.Table, name: str) -> list[str]:
    place = [c.name for c in table.columns].index(name)
    return [words(row[place]) for row in table.rows]


def test_the_leaderboard_ranks_by_the_best_value() -> None:
    run = RunRecord()
    run.apply({"event": "run", "time": START, "name": "r", "metric": "loss", "mode": "min", "epochs": 3})
    for name in ("a", "b"):
        run.apply({"event": "config", "time": START, "config": name, "values": {"lr": name}, "epochs": 3})
    for name, values in {"a": [3.0, 0.5, 2.0], "b": [3.0, 2.0, 1.0]}.items():
        for epoch, value in enumerate(values, 1):
            run.apply({"event": "report", "time": START, "config": name, "epoch": epoch, "metrics": {"loss": value}})
    table = run_tables.leaderboard(run)
    assert column(table, "configuration") == ["a", "b"]
    assert column(table, "best loss") == ["0.5", "1"]
    assert column(table, "at epoch") == ["2/3", "3/3"]
    assert column(table, "last") == ["2", "1"]


def test_values_that_all_configurations_share_are_shown_once(made: RunRecord) -> None:
    table = run_tables.leaderboard(made)
    assert "in all: batch_size=32" in table.above
    assert "batch_size" not in [c.name for c in table.columns]
    assert {"hidden", "lr", "id"} <= {c.name for c in table.columns}


def test_one_and_true_are_different_values() -> None:
    run = FakeRun(configs=2).record()
    first, second = run.configs.values()
    first.values["flag"], second.values["flag"] = 1, True
    varying, _ = split_values(config.values for config in run.configs.values())
    assert "flag" in varying


def test_failures_and_nan_are_shown(made: RunRecord) -> None:
    table = run_tables.leaderboard(made)
    remarks = dict(zip(column(table, "status"), column(table, "remark"), strict=True))
    assert remarks["failed"] == "ValueError: bad luck"
    assert "loss was NaN at epoch 2" in column(table, "remark")
    assert "NaN" in column(table, "last")


def test_a_configuration_that_was_never_a_number_has_no_best_value() -> None:
    run = FakeRun(configs=2, epochs=1).record()
    for config in run.configs.values():
        config.reports = {1: {"loss": float("nan")}}
    assert column(run_tables.leaderboard(run), "best loss") == ["none", "none"]


def test_the_limit_keeps_the_best_and_the_failed_and_counts_the_rest() -> None:
    run = FakeRun(configs=30, fails=(28,)).record()
    table = run_tables.leaderboard(run, limit=5)
    assert column(table, "#")[:5] == ["1", "2", "3", "4", "5"]
    assert column(table, "status").count("failed") == 1
    assert table.below == ("and 24 more configurations",)


def test_resources_add_up(made: RunRecord) -> None:
    table = run_tables.resources(made)
    by_name = {words(row[0]): [words(cell) for cell in row[1:]] for row in table.rows}
    assert by_name["wall"][2] == "2 workers"
    shares = [by_name[name][1] for name in ("training", "evaluation", "profiling", "idle")]
    assert "%" in shares[0] and by_name["hops"][1].endswith("%")
    assert by_name["hops"][2] == "part of the above: 88 hops, 1.8 MB, 20 kB each"


@pytest.mark.parametrize("seed", range(8))
def test_shares_of_the_time_of_workers_add_up_to_a_hundred(seed: int) -> None:
    table = run_tables.resources(FakeRun(seed=seed, workers=seed % 3 + 1, pilots=seed % 2 == 0).record())
    shares = {words(row[0]): words(row[2]) for row in table.rows}
    parts = [shares[name] for name in ("training", "evaluation", "profiling", "idle")]
    assert sum(int(share.removesuffix("%")) for share in parts) == 100


def test_a_run_that_has_just_begun_has_no_shares() -> None:
    record = FakeRun().record()
    record.units = []
    shares = {words(row[0]): words(row[2]) for row in run_tables.resources(record).rows}
    assert [shares[name] for name in ("training", "idle")] == ["-", "-"]


def test_tables_in_a_pipe_are_complete_and_have_no_colour(made: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
    made.configs[next(iter(made.configs))].values["note"] = "x" * 300
    ui.write_table(run_tables.leaderboard(made))
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert len(out.splitlines()) == 3 + 8  # heading, shared values, names, a row for each configuration


def test_markup_in_values_is_shown_as_text(made: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
    made.configs[next(iter(made.configs))].values["hidden"] = "[bold]"
    ui.write_table(run_tables.leaderboard(made))
    assert "[bold]" in capsys.readouterr().out


def test_one_configuration_shows_its_epochs_visits_and_traceback(made: RunRecord) -> None:
    failed = next(config for config in made.configs.values() if config.status == "failed")
    table = run_tables.configuration(made, failed)
    assert column(table, "epoch") == ["1"]
    assert sorted(column(table, "visits")[0].split()) == ["0", "1", "2", "3"]
    assert "ValueError: bad luck" in table.below[0]
