"""Query 4 of the ModelHub paper, letter for letter, on small AlexNets and digits."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluations import launch, project, rows_of

from regatta.dql.saved_queries import save_query

QUERY_3 = """construct m2 from m1
where m1.name like "alexnet-avgv1%" and
m1["conv*($1)"].next has POOL("AVG")
mutate m1["conv*($1)"].insert = RELU("relu$1")
"""
QUERY_4 = """evaluate m
from "query3"
with config = "path to config"
vary config.base_lr in [0.1, 0.01, 0.001] and
config.net["conv*"].lr auto and
config.input_data in ["path1", "path2"]
keep top(5, m["loss"], 100)
"""
CONFIG = """
batch_size = 4
partitions = 2
epochs = 7
visits = "seeded"
input_data = ["path1", "path2"]
[data]
path1 = "path1.npz"
path2 = "path2.npz"
"""


def test_query_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    with project(tmp_path, "avg", "max") as repo:
        (tmp_path / "path to config").write_text(CONFIG)
        save_query(repo.folder, "query3", QUERY_3)
        run = launch(repo, QUERY_4)
        rows = rows_of(run)
        assert run.record.status == "done"
        assert run.verdicts().keys() == run.record.configs.keys()
        lineage = {repo.parents(row["version"])[0].reference for row in rows}
    assert len(rows) == 1 * 3 * 2 * 2
    assert {(row["base_lr"], row['net["conv*"].lr_mult'], row["input_data"]) for row in rows} == {
        (rate, mult, data) for rate in (0.1, 0.01, 0.001) for mult in (1.0, 0.1) for data in ("path1", "path2")
    }
    kept = [row for row in rows if row["result"] == "kept"]
    stopped = [row for row in rows if row["result"].startswith("stopped by top(5, loss, 100 iterations)")]
    assert (len(kept), len(stopped)) == (5, 7)
    assert lineage == {"alexnet-avgv1-0@1"}
    networks = {config.values["model"] for config in run.record.configs.values()}
    assert len(networks) == 1

    # By hand: 96 rows in two partitions are 24 batches of 4, so iteration 100 counts at the end of epoch 5.
    at_100 = {config.id: config.reports[5]["loss"] for config in run.record.configs.values() if 5 in config.reports}
    assert len(at_100) == 12
    assert all(config.iterations(4) < 100 <= config.iterations(5) for config in run.record.configs.values())
    best = set(sorted(at_100, key=lambda config: (at_100[config], config))[:5])
    assert {config.id for config in run.record.configs.values() if config.epoch == 7} >= best
    assert {row["version"] for row in kept} == {run.version(config) for config in best}
    saved = sum(config.epochs - config.epoch for config in run.record.configs.values())
    assert saved > 0, "some are stopped before their last epoch"
