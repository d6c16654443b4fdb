"""Training by hops is, bit for bit, a plain loop that visits the same partitions in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import CLASSES, WIDTH, eval_fn, loss_fn, model_fn, plain_fn, plain_loss, small_data

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.data import batch_order, read_partition
from regatta.engine.replay import replay
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.seeds import initial_seed, unit_seed

KINDS = ["adam", "momentum", "dropout", "norm", "schedule per epoch", "schedule per step"]
EPOCHS = 2
SEED = 11

pytestmark = pytest.mark.usefixtures("one_thread")


def sweep_on(data: Dataset, cluster: Cluster, repo: Path | None = None, **options: Any) -> Sweep:
    space = search.grid(kind=KINDS, batch_size=[5])
    options = {"loss_fn": loss_fn, "eval_fn": eval_fn, "epochs": EPOCHS, "seed": SEED, **options}
    return Sweep(data, space, model_fn, cluster=cluster, repo=repo, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two worker processes, four partitions."""
    repo = tmp_path_factory.mktemp("repo")
    return sweep_on(data, Cluster.local(2, threads=1), repo).launch(progress=False)


def plain_loop(data: Dataset, config: ConfigRecord) -> Iterator[dict[str, torch.Tensor]]:
    """What a reader of PyTorch's tutorial would write; the weights after each epoch."""
    values: dict[str, Any] = dict(config.values)
    torch.manual_seed(initial_seed(SEED, values))
    model, optimizer, *rest = model_fn(values)
    schedule = rest[0] if rest else None
    for epoch in range(1, EPOCHS + 1):
        for partition in config.visits(epoch):
            x, y = (torch.tensor(column) for column in read_partition(data.train[partition].path))
            seed = unit_seed(SEED, values, epoch, partition)
            torch.manual_seed(seed)
            model.train()
            for rows in batch_order(len(x), values["batch_size"], seed):
                optimizer.zero_grad()
                loss_fn(model, (x[rows], y[rows]), values).backward()
                optimizer.step()
                if isinstance(schedule, dict):
                    schedule["step"].step()
        if schedule is not None and not isinstance(schedule, dict):
            schedule.step()
        yield {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_hops_equal_a_plain_loop(run: Run, data: Dataset, kind: str) -> None:
    config = run.find({"kind": kind, "batch_size": 5})
    assert config.status == "done"
    for epoch, expected in enumerate(plain_loop(data, config), 1):
        weights = run.weights(config.id, epoch)
        assert list(weights) == sorted(expected)
        for name, tensor in expected.items():
            assert weights[name].dtype == tensor.numpy().dtype
            assert weights[name].shape == tuple(tensor.shape)
            assert weights[name].tobytes() == tensor.numpy().tobytes(), f"{name} after epoch {epoch}"


def test_models_did_hop(run: Run) -> None:
    """The test above would be easy if each model stayed where it was."""
    for config in run.record.configs.values():
        assert {unit.worker for unit in config.units if unit.kind == "train"} == {"w0", "w1"}
    orders = {tuple(config.visits(1)) for config in run.record.configs.values()}
    assert len(orders) > 1


def test_an_epoch_is_another_order_of_batches(run: Run, data: Dataset) -> None:
    config = run.find({"kind": "adam", "batch_size": 5})
    rows = data.train[0].rows or 0
    orders = [np.concatenate(batch_order(rows, 5, unit_seed(SEED, config.values, epoch, 0))) for epoch in (1, 2)]
    assert sorted(orders[0].tolist()) == list(range(rows))
    assert orders[0].tolist() != orders[1].tolist()


def test_replay_reproduces_every_state(run: Run) -> None:
    report = run.replay()
    assert report.ok
    assert report.units == report.equal == len(KINDS) * EPOCHS * 4
    assert report.left_out == 0
    assert report.differing == []


def hashes(record: RunRecord) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in record.units if u.kind == "train"}


def orders(record: RunRecord) -> dict[str, dict[int, list[int]]]:
    return {c.id: {epoch: c.visits(epoch) for epoch in range(1, EPOCHS + 1)} for c in record.configs.values()}


@pytest.mark.parametrize(
    "cluster",
    [Cluster.inline(1), Cluster.inline(2), Cluster.inline(3), Cluster.local(1, threads=1), Cluster.local(3, threads=1)],
    ids=lambda cluster: f"{cluster.workers} {cluster.kind}",
)
def test_the_number_of_workers_changes_nothing(run: Run, data: Dataset, cluster: Cluster, tmp_path: Path) -> None:
    """For the same visit orders: it is their only freedom."""
    record = sweep_on(data, cluster).execute(tmp_path, orders=orders(run.record))
    assert orders(record) == orders(run.record)
    assert hashes(record) == hashes(run.record)
    for config in record.configs.values():
        assert config.reports == run.record.configs[config.id].reports


def test_another_visit_order_is_another_model(run: Run, data: Dataset, tmp_path: Path) -> None:
    """Fixed orders are obeyed, and they matter."""
    backwards = {name: {e: order[::-1] for e, order in epochs.items()} for name, epochs in orders(run.record).items()}
    record = sweep_on(data, Cluster.inline(2)).execute(tmp_path, orders=backwards)
    assert orders(record) == backwards
    ours, theirs = hashes(record), hashes(run.record)
    assert ours.keys() == theirs.keys()
    assert not any(ours[unit] == theirs[unit] for unit in ours)


@pytest.fixture(scope="module")
def small_run(data: Dataset, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """In this process, so that replaying it costs little."""
    return sweep_on(data, Cluster.inline(2), tmp_path_factory.mktemp("repo")).launch(progress=False)


def test_replay_reports_what_differs(small_run: Run, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (small_run.folder / "journal.jsonl").read_text().splitlines()]
    tampered = next(line for line in lines if line["event"] == "unit" and line["kind"] == "train")
    recorded, tampered["hash"] = tampered["hash"], "0" * 64
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = replay(small_run.sweep(), RunRecord.read(tmp_path / "journal.jsonl"))
    assert not report.ok
    assert report.units - report.equal == 1
    place = {name: tampered[name] for name in ("config", "epoch", "partition")}
    assert report.differing == [{**place, "recorded": "0" * 64, "replayed": recorded}]


def test_replay_under_another_seed_differs_everywhere(small_run: Run, data: Dataset) -> None:
    report = replay(sweep_on(data, Cluster.inline(2), seed=SEED + 1), small_run.record)
    assert report.equal == 0
    assert len(report.differing) == report.units == len(KINDS) * EPOCHS * 4


def test_the_numpy_reference_equals_a_numpy_loop(data: Dataset, tmp_path: Path) -> None:
    space = search.grid(lr=[0.1, 0.02], batch_size=[4])
    sweep = Sweep(
        data, space, plain_fn, loss_fn=plain_loss, epochs=EPOCHS, seed=SEED, cluster=Cluster.inline(2), repo=tmp_path
    )
    run = sweep.launch(progress=False)
    for config in run.record.configs.values():
        values: Any = dict(config.values)
        np.random.seed(initial_seed(SEED, values) % 2**32)
        w, b = np.random.normal(size=(WIDTH, CLASSES)), np.zeros(CLASSES)
        speed_w, speed_b = np.zeros_like(w), np.zeros_like(b)
        for epoch in range(1, EPOCHS + 1):
            for partition in config.visits(epoch):
                x, y = read_partition(data.train[partition].path)
                seed = unit_seed(SEED, values, epoch, partition)
                np.random.seed(seed % 2**32)
                for rows in batch_order(len(x), 4, seed):
                    _, slopes = plain_loss({"w": w, "b": b}, (x[rows], y[rows]), values)
                    speed_w, speed_b = 0.9 * speed_w + slopes["w"], 0.9 * speed_b + slopes["b"]
                    w, b = w - values["lr"] * speed_w, b - values["lr"] * speed_b
            found = run.weights(config.id, epoch)
            assert found["w"].tobytes() == w.tobytes()
            assert found["b"].tobytes() == b.tobytes()


def test_seeded_visits_make_every_launch_the_same(data: Dataset, tmp_path: Path) -> None:
    records = {}
    for workers in (1, 2, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        records[workers] = sweep_on(data, Cluster.inline(workers), visits="seeded").execute(folder)
    states = [
        {(u.config, u.epoch, u.partition): u.hash for u in r.units if u.kind == "train"} for r in records.values()
    ]
    assert states[0] == states[1] == states[2]
    orders = {tuple(config.visits(epoch)) for config in records[1].configs.values() for epoch in (1, 2)}
    assert len(orders) > 3  # models and epochs do not all go the same way
