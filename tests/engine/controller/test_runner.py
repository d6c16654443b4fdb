"""A run does each unit once, isolates failures, keeps and deletes states, and weights metrics."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from recipes import eval_fn, loss_fn, model_fn, small_data, train_fn
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.configuration import config_id
from regatta.data import read_partition
from regatta.errors import UsageError
from regatta.journal.run_record import RunRecord
from regatta.search.base import Action, Goal, Report, Stop, Train

EPOCHS = 3
FAILS = ["build", "first batch", "epoch 2", "eval"]

pytestmark = pytest.mark.usefixtures("one_thread")


def values(**more: Any) -> dict[str, Any]:
    return {"batch_size": 5, "epoch_steps": 10, **more}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def mixed(data: Dataset, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three configurations that work, one that goes to NaN, four that fail at different moments."""
    good = [values(lr=0.01), values(lr=0.1), values(kind="norm")]
    bad = [values(fails=how) for how in ("nan", *FAILS)]
    return Sweep(
        data, search.configs(good + bad), model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=EPOCHS,
        cluster=Cluster.inline(2), repo=tmp_path_factory.mktemp("repo"), name="mixed",
    ).launch(progress=False)  # fmt: skip


def launched(data: Dataset, configs: list[dict[str, Any]], repo: Path, **options: Any) -> Run:
    options = {"loss_fn": loss_fn, "epochs": 1, "cluster": Cluster.inline(2), "repo": repo, **options}
    space = options.pop("search", None) or search.configs(configs)
    return Sweep(data, space, options.pop("model_fn", model_fn), **options).launch(progress=False)


def of(run: Run, **more: Any) -> Any:
    return run.find(values(**more))


# -- units ------------------------------------------------------------------------------------------------


def test_each_unit_is_done_exactly_once(mixed: Run, data: Dataset) -> None:
    for config in mixed.record.configs.values():
        if config.status != "done":
            continue
        done = Counter((unit.kind, unit.epoch, unit.partition) for unit in config.units)
        wanted = [("train", e, p) for e in range(1, EPOCHS + 1) for p in range(len(data.train))]
        wanted += [("eval", e, p) for e in range(1, EPOCHS + 1) for p in range(len(data.eval))]
        assert done == Counter(wanted)
        assert set(config.reports) == {1, 2, 3}


def test_a_model_trains_on_one_partition_at_a_time_and_a_worker_does_one_thing(mixed: Run) -> None:
    for name in (*mixed.record.configs, *mixed.record.workers):
        spans = [
            (unit.start, unit.end)
            for unit in mixed.record.units
            if unit.worker == name or (unit.config == name and unit.kind == "train")
        ]
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_workers_train_on_what_they_hold(mixed: Run, data: Dataset) -> None:
    train, held = data.holders(("w0", "w1"))
    for unit in mixed.record.units:
        assert unit.kind == "pilot" or unit.partition in (train if unit.kind == "train" else held)[unit.worker]


def test_rows_of_units_are_those_of_their_partitions(mixed: Run, data: Dataset) -> None:
    assert len({part.rows for part in data.train}) > 2
    for unit in mixed.record.units:
        if unit.kind != "pilot":
            assert unit.rows == (data.train if unit.kind == "train" else data.eval)[unit.partition].rows


# -- metrics ----------------------------------------------------------------------------------------------


def test_metrics_are_weighted_by_rows(mixed: Run, data: Dataset) -> None:
    """Against a computation from the stored weights, all evaluation rows at once."""
    sizes = [part.rows or 0 for part in data.eval]
    assert sizes == [5, 5, 5]
    config = of(mixed, lr=0.1)
    for epoch in range(1, EPOCHS + 1):
        model = model_fn(values(lr=0.1))[0]
        model.load_state_dict({k: torch.from_numpy(v) for k, v in mixed.weights(config.id, epoch).items()})
        model.eval()
        columns = [read_partition(part.path) for part in data.eval]
        x, y = (torch.cat([torch.tensor(part[i]) for part in columns]) for i in (0, 1))
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x), y).item()
            accuracy = (model(x).argmax(1) == y).double().mean().item()
        assert config.reports[epoch]["loss"] == pytest.approx(loss, rel=1e-5)
        assert config.reports[epoch]["accuracy"] == pytest.approx(accuracy, rel=1e-5)


def mark(data: Any, model: Any, config: Any) -> dict[str, float]:
    return {"mark": float(data[0][0, 0])}


def test_unequal_partitions_have_unequal_weights(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data", rows=61, eval_fraction=0.27, eval_partitions=3)
    sizes = [part.rows or 0 for part in data.eval]
    assert len(set(sizes)) > 1
    run = launched(data, [values()], tmp_path, eval_fn=mark, metric="mark")
    marks = [float(read_partition(part.path)[0][0, 0]) for part in data.eval]
    (config,) = run.record.configs.values()
    mean = sum(m * size for m, size in zip(marks, sizes, strict=True)) / sum(sizes)
    assert config.reports[1]["mark"] == pytest.approx(mean, rel=1e-12)
    assert config.reports[1]["mark"] != pytest.approx(sum(marks) / 3, rel=1e-6)
    losses = {u.partition: (u.metrics["train_loss"], u.rows) for u in config.units if u.kind == "train"}
    expected = sum(loss * rows for loss, rows in losses.values()) / sum(rows for _, rows in losses.values())
    assert config.reports[1]["train_loss"] == pytest.approx(expected, rel=1e-12)


def test_a_nan_is_reported(mixed: Run) -> None:
    config = of(mixed, fails="nan")
    assert config.status == "done"
    assert all(math.isnan(value) for value in config.series("loss"))
    warnings = [text for level, text in mixed.record.notes if level == "warning" and config.id in text]
    assert len(warnings) == 1
    assert "loss is nan" in warnings[0]
    assert "after epoch 1" in warnings[0]
    assert RunRecord.read(mixed.folder / "journal.jsonl").notes == mixed.record.notes


def test_nan_and_failures_rank_last(mixed: Run) -> None:
    board = mixed.record.leaderboard()
    numbers = [config.best("loss", "min") for config in board]
    known = [found[1] for found in numbers if found is not None]
    assert numbers[: len(known)] == [found for found in numbers if found is not None]
    assert known == sorted(known)
    assert config_id(values(fails="nan")) in {config.id for config in board[len(known) :]}
    best = mixed.best
    assert best is not None
    assert best["loss"] == min(min(config.series("loss")) for config in board[: len(known)])
    assert best["config"] == board[0].id
    assert mixed.record.configs[best["config"]].reports[best["epoch"]]["loss"] == best["loss"]


def test_all_nan_has_no_best(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [values(fails="nan")], tmp_path)
    assert run.best is None
    assert run.record.status == "done"


# -- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fails", "error", "where", "epochs"),
    [
        ("build", "ValueError: no such model", "in model_fn", 0),
        ("first batch", "ValueError: cannot train at step 0", "in loss_fn", 0),
        ("epoch 2", "ValueError: cannot train at step 10", "in loss_fn", 1),
        ("eval", "ValueError: cannot judge", "in eval_fn", 0),
    ],
)
def test_a_configuration_that_raises_is_failed(mixed: Run, fails: str, error: str, where: str, epochs: int) -> None:
    config = of(mixed, fails=fails)
    assert config.status == "failed"
    assert config.error == error
    assert where in config.traceback
    assert "recipes.py" in config.traceback
    assert config.epoch <= epochs  # the last may not be evaluated by then
    assert config.running == {}


def test_the_others_finish(mixed: Run) -> None:
    assert mixed.record.status == "done"
    for more in ({"lr": 0.01}, {"lr": 0.1}, {"kind": "norm"}):
        assert of(mixed, **more).status == "done"
    assert Counter(config.status for config in mixed.record.configs.values()) == {"done": 4, "failed": 4}


def test_the_last_state_of_a_failed_configuration_stays(mixed: Run) -> None:
    weights = mixed.weights(values(fails="epoch 2"))
    assert weights["steps"] == 10


def test_a_sweep_whose_models_all_fail_in_profiling_does_not_start(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No configuration can be trained") as caught:
        launched(data, [values(fails="build"), values(fails="first batch")], tmp_path)
    assert "ValueError: " in str(caught.value)
    assert "recipes.py" in str(caught.value)
    assert "Its values: {" in str(caught.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_sweep_whose_models_all_fail_later_has_failed(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [values(fails="epoch 2"), values(fails="epoch 2", lr=0.5)], tmp_path, epochs=2)
    assert run.record.status == "failed"
    assert run.record.error == "every configuration failed"


def evaluate_some(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
    return {"score": 1.0} if config["lr"] < 0.05 else {}


def test_a_model_without_the_metric_ranks_last_with_a_warning(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [values(lr=0.1), values(lr=0.01)], tmp_path, eval_fn=evaluate_some, metric="score")
    assert {config.status for config in run.record.configs.values()} == {"done"}
    assert run.record.leaderboard()[0].values == values(lr=0.01)
    silent = run.find(values(lr=0.1))
    assert ("warning", f"{silent.id}: score is missing after epoch 1") in run.record.notes


# -- states -----------------------------------------------------------------------------------------------


def test_one_state_per_epoch_is_kept_and_matches_its_hash(mixed: Run, data: Dataset) -> None:
    kept = {path.relative_to(mixed.folder) for path in (mixed.folder / "states").rglob("*") if path.is_file()}
    expected = set()
    for config in mixed.record.configs.values():
        trained = [unit for unit in config.units if unit.kind == "train"]
        for number, unit in enumerate(trained, 1):
            if number % len(data.train) == 0 or unit is trained[-1]:
                assert unit.state is not None
                expected.add(Path(unit.state))
                assert blake3((mixed.folder / unit.state).read_bytes()).hexdigest() == unit.hash
    assert kept == expected
    assert len(kept) >= 4 * EPOCHS + 2


def test_a_hop_moves_one_state_whatever_the_batch_size(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [values(batch_size=2), values(batch_size=16)], tmp_path, epochs=2)
    sums = []
    for config in run.record.configs.values():
        first, *rest = [unit for unit in config.units if unit.kind == "train"]
        assert first.hop_bytes == 0
        size = run.folder.joinpath(str(rest[-1].state)).stat().st_size
        assert {unit.hop_bytes for unit in rest} == {size}
        assert {unit.hop_bytes for unit in config.units if unit.kind == "eval"} == {size}
        sums.append(sum(unit.hop_bytes for unit in config.units))
    assert sums[0] == sums[1] == size * (2 * len(data.train) - 1 + 2 * len(data.eval))
    assert run.record.resources().bytes_hopped == sum(sums)
    assert run.record.resources().hops == 2 * (2 * len(data.train) - 1 + 2 * len(data.eval))


# -- other levels -----------------------------------------------------------------------------------------


def test_train_fn_and_eval_fn_are_used(data: Dataset, tmp_path: Path) -> None:
    run = launched(
        data, [{"lr": 0.02}, {"lr": 0.1}], tmp_path, loss_fn=None, train_fn=train_fn, eval_fn=eval_fn,
        metric="accuracy", epochs=2,
    )  # fmt: skip
    assert run.record.mode == "max"
    for config in run.record.configs.values():
        assert set(config.reports[2]) == {"train_loss", "train_rows", "accuracy"}
        assert run.weights(config.id)["steps"] == 2 * 4 * 2
        rows = [part.rows or 0 for part in data.train]
        assert config.reports[1]["train_rows"] == pytest.approx(sum(n * n for n in rows) / sum(rows))
    assert run.replay().ok


def read_text(path: Path) -> Any:
    table = torch.tensor([[float(cell) for cell in line.split()] for line in path.read_text().splitlines()])
    return {"x": table[:, :6], "y": table[:, 6].long()}


def dict_loss(model: Any, batch: Any, config: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def test_an_input_fn_reads_other_formats(data: Dataset, tmp_path: Path) -> None:
    paths = []
    for kind, parts in (("train", data.train), ("eval", data.eval)):
        for number, part in enumerate(parts):
            x, y = read_partition(part.path)
            path = tmp_path / f"{kind}-{number}.txt"
            path.write_text(
                "".join(" ".join(map(repr, [*row.tolist(), int(c)])) + "\n" for row, c in zip(x, y, strict=True))
            )
            paths.append(path)
    texts = Dataset.from_paths(paths[:4], paths[4:], name="texts")
    run = launched(texts, [values()], tmp_path, loss_fn=dict_loss, input_fn=read_text, epochs=2)
    same = launched(data, [values()], tmp_path, epochs=2, cluster=Cluster.inline(1))
    (config,) = run.record.configs.values()
    assert sum(unit.rows for unit in config.units if unit.kind == "train") == 2 * sum(p.rows or 0 for p in data.train)
    assert run.replay().ok
    assert same.record.status == "done"


# -- the search -------------------------------------------------------------------------------------------


@dataclass
class Picky:
    """Stops what is worse after the first epoch, gives the best two more epochs, adds one of its own."""

    configs: list[dict[str, Any]]
    heard: list[Report] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        return {"kind": "picky"}

    def start(self, goal: Goal) -> list[Action]:
        self.heard = []
        return [Train(config, 1 if number < 2 else 3) for number, config in enumerate(self.configs)]

    def hear(self, report: Report) -> list[Action]:
        self.heard.append(report)
        if report.config == config_id(self.configs[0]) and report.epoch == 1:
            return [Train(self.configs[0], 3), Train(values(lr=0.03), 1)]
        if report.config == config_id(self.configs[2]) and report.epoch == 1:
            return [Stop(report.config)]
        return []


def test_a_search_extends_adds_and_stops(data: Dataset, tmp_path: Path) -> None:
    configs = [values(lr=0.01), values(lr=0.02), values(lr=0.04), values(fails="epoch 2")]
    picky = Picky(configs)
    run = launched(data, [], tmp_path, search=picky, epochs=3)
    trained = {c.id: max(u.epoch for u in c.units if u.kind == "train") for c in run.record.configs.values()}
    statuses = {c.id: c.status for c in run.record.configs.values()}
    extended, plain, stopped, failed = map(config_id, configs)
    added = config_id(values(lr=0.03))
    assert statuses == {extended: "done", plain: "done", stopped: "stopped", failed: "failed", added: "done"}
    assert (trained[extended], trained[plain], trained[added]) == (3, 1, 1)
    assert trained[stopped] <= 2
    assert run.record.configs[stopped].epoch == 1
    heard: dict[str, list[tuple[int, bool]]] = {}
    for report in picky.heard:
        heard.setdefault(report.config, []).append((report.epoch, report.failed))
    assert heard[extended] == [(1, False), (2, False), (3, False)]
    assert heard[failed] in ([(1, False), (2, True)], [(2, True)])  # the first epoch may not be evaluated by then
    assert all(report.metrics["loss"] > 0 for report in picky.heard if not report.failed)


# -- shapes of runs -----------------------------------------------------------------------------------------


def units_of(run: Run) -> set[int]:
    """How often each unit was done."""
    return set(
        Counter((u.kind, u.config, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot").values()
    )


def test_more_workers_than_partitions_hold_copies(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [values(lr=rate) for rate in (0.01, 0.02, 0.05, 0.1)], tmp_path, cluster=Cluster.inline(6))
    assert units_of(run) == {1}
    assert {unit.worker for unit in run.record.units} == {f"w{number}" for number in range(6)}
    assert all(config.status == "done" for config in run.record.configs.values())
    assert run.replay().ok


def test_workers_train_only_where_the_availability_map_allows(data: Dataset, tmp_path: Path) -> None:
    train, held = [part.path for part in data.train], [part.path for part in data.eval]
    allowed = {train[0]: [0, 1], train[1]: [1], train[2]: ["w0"], train[3]: [0, 1], **{path: [1] for path in held}}
    placed = Dataset.from_paths(train, held, availability=allowed)
    run = launched(placed, [values(lr=0.01), values(lr=0.1)], tmp_path, epochs=2)
    assert units_of(run) == {1}
    for unit in run.record.units:
        if unit.kind != "pilot":
            path = (train if unit.kind == "train" else held)[unit.partition]
            assert unit.worker in {w if isinstance(w, str) else f"w{w}" for w in allowed[path]}


def test_one_partition_and_no_evaluation(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data", proportions=(1,), eval_fraction=0.0, eval_partitions=None)
    run = launched(data, [values()], tmp_path, epochs=3, metric="train_loss", cluster=Cluster.inline(1))
    (config,) = run.record.configs.values()
    assert sorted(config.reports) == [1, 2, 3]
    assert all(set(metrics) == {"train_loss"} for metrics in config.reports.values())
    assert len(list((run.folder / "states").rglob("*.safetensors"))) == 3
    assert [unit.kind for unit in config.units] == ["train"] * 3


def test_a_batch_larger_than_a_partition_is_the_partition(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [values(batch_size=1000)], tmp_path)
    assert run.weights(values(batch_size=1000))["steps"] == len(data.train)


@pytest.mark.parametrize("rule", ["randomized", "longest", "lpt", "lrm", "auto"])
def test_every_rule_trains_everything(data: Dataset, tmp_path: Path, rule: str) -> None:
    run = launched(data, [values(lr=0.01), values(lr=0.1), values(kind="norm")], tmp_path, epochs=2, rule=rule)
    assert run.record.header["rule"] == rule
    assert units_of(run) == {1}
    assert run.record.progress() == (24, 24)


def interrupted(model: Any, batch: Any, config: Any) -> Any:
    if model.training and model.steps >= 5:
        raise KeyboardInterrupt
    return loss_fn(model, batch, config)


def test_an_interrupt_is_recorded(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        launched(data, [values()], tmp_path, loss_fn=interrupted, name="stopped")
    record = RunRecord.read(tmp_path / "runs" / "stopped" / "journal.jsonl")
    assert record.status == "interrupted"
    assert any(unit.kind == "train" for unit in record.units)
