"""Sweeps that were meant to break the engine: odd models, rude functions, full disks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from locations import HELPERS
from recipes import CLASSES, WIDTH, loss_fn, model_fn, plain_fn, plain_loss, small_data, train_fn
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.engine.messages import (
    Recipe,
    Task,
    WorkerLost,
    WorkerSetup,
)
from regatta.engine.workers import open_pool
from regatta.errors import DiskError, UsageError
from regatta.journal.journal import Journal, read_journal
from regatta.paths import STATES

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = {"batch_size": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def launched(data: Dataset, configs: list[dict[str, Any]], repo: Path, **options: Any) -> Run:
    functions = {} if "train_fn" in options else {"loss_fn": loss_fn}
    options = {"cluster": Cluster.inline(2), "repo": repo, **functions, **options}
    return Sweep(data, search.configs(configs), options.pop("model_fn", model_fn), **options).launch(progress=False)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class Unusual(BaseException):
    pass


def rude_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    how = config.get("how")
    if how is not None:
        raise {"mute": Mute(), "unusual": Unusual("x"), "huge": ValueError("x" * 5_000_000)}[how]
    return loss_fn(model, batch, config)


def test_whatever_a_function_raises_fails_its_configuration_alone(data: Dataset, tmp_path: Path) -> None:
    hows = ["mute", "unusual", "huge"]
    run = launched(data, [SIZE, *({**SIZE, "how": how} for how in hows)], tmp_path, loss_fn=rude_loss)
    assert run.record.status == "done"
    assert run.find(SIZE).status == "done"
    errors = [run.find({**SIZE, "how": how}).error or "" for how in hows]
    assert [error[:13] for error in errors] == ["Mute: <except", "Unusual: x", "ValueError: x"]
    assert (run.folder / "journal.jsonl").stat().st_size < 500_000


def f64_model(config: dict[str, Any]) -> Any:
    if config["wide"]:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
    return model_fn(config)


def own_type_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x.to(model.layers[0].weight.dtype)), y)


def test_settings_of_the_process_do_not_outlive_their_unit(data: Dataset, tmp_path: Path) -> None:
    configs = [{**SIZE, "wide": True}, {**SIZE, "wide": False}]
    run = launched(data, configs, tmp_path, model_fn=f64_model, loss_fn=own_type_loss, epochs=2)
    assert [run.weights(config)["layers.0.weight"].dtype for config in configs] == [np.float64, np.float32]
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, 1)


def counting_rows(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    assert optimizer is None
    return {"loss": 1.0}


def test_a_train_fn_alone_needs_neither_batch_size_nor_optimizer(data: Dataset, tmp_path: Path) -> None:
    for function, model in ((train_fn, model_fn), (counting_rows, lambda config: nn.Linear(WIDTH, CLASSES))):
        run = launched(data, [{"lr": 0.1}], tmp_path, train_fn=function, model_fn=model, metric="train_loss")
        assert [row["status"] for row in run.table()] == ["done"]


def either_model(config: dict[str, Any]) -> Any:
    return plain_fn(config) if config["plain"] else model_fn(config)


def either_loss(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    return plain_loss(model, batch, config) if config["plain"] else loss_fn(model, batch, config)


def test_models_of_two_frameworks_in_one_sweep(data: Dataset, tmp_path: Path) -> None:
    configs = [{**SIZE, "lr": 0.1, "plain": plain} for plain in (True, False)]
    run = launched(data, configs, tmp_path, model_fn=either_model, loss_fn=either_loss, cluster=Cluster.inline(1))
    assert [row["status"] for row in run.table()] == ["done", "done"]


def greedy_train(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    x, _ = data
    if config["greedy"]:
        x.mul_(1.5)
    return {"loss": float(x.sum())}


def test_data_that_others_share_cannot_be_changed(data: Dataset, tmp_path: Path) -> None:
    configs = [{"greedy": True}, {"greedy": False}, {"greedy": False, "again": True}]
    run = launched(data, configs, tmp_path, train_fn=greedy_train, metric="train_loss", cluster=Cluster.inline(1))
    greedy, first, second = (run.find(config) for config in configs)
    assert "changed its data in place" in (greedy.error or "") and "Traceback" not in (greedy.traceback or "")
    assert first.reports == second.reports
    alone = launched(data, configs[1:2], tmp_path, train_fn=greedy_train, metric="train_loss")
    assert alone.find(configs[1]).reports == first.reports


def lazy_model(config: dict[str, Any]) -> Any:
    net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(CLASSES))
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def test_lazy_modules_hop(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [SIZE], tmp_path, model_fn=lazy_model, epochs=2)
    assert run.find(SIZE).status == "done"
    assert run.weights(SIZE)["1.num_batches_tracked"] == 2 * sum(-(-(p.rows or 0) // 5) for p in data.train)


def with_a_stranger(config: dict[str, Any]) -> Any:
    net = nn.Linear(WIDTH, CLASSES)
    return net, torch.optim.SGD([*net.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)


def test_an_optimizer_may_not_hold_what_would_be_lost(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Of the 3 parameters .* has not 1, which would be lost"):
        launched(data, [SIZE], tmp_path, model_fn=with_a_stranger)


class Counting(nn.Module):
    """Keeps a number and a generator where no state_dict looks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.calls = 0
        self.constant = 3
        self.noise = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x + torch.rand(x.shape, generator=self.noise))


def counting_model(config: dict[str, Any]) -> Any:
    net = Counting()
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def test_what_no_state_keeps_is_warned_of_once(data: Dataset, tmp_path: Path) -> None:
    configs = [SIZE, {**SIZE, "lr": 0.1}]  # of one kind
    notes = launched(data, configs, tmp_path, model_fn=counting_model).record.notes
    assert len(notes) == 1 and "training changes calls, noise, which no state_dict holds" in notes[0][1]
    assert not launched(data, configs, tmp_path).record.notes


def test_the_worker_that_trains_need_not_hold_what_is_judged_on(data: Dataset, tmp_path: Path) -> None:
    train, held_out = ([part.path for part in kind] for kind in (data.train, data.eval))
    where = {**dict.fromkeys(train, (0,)), **dict.fromkeys(held_out, (1,))}
    apart = Dataset.from_paths(train, held_out, where)
    assert launched(apart, [SIZE], tmp_path).find(SIZE).status == "done"


def test_a_run_named_after_any_folder_can_be_opened(tmp_path: Path) -> None:
    made = small_data(tmp_path / "my data, ü")
    folder = Dataset.from_paths([part.path for part in made.train], [part.path for part in made.eval])
    run = launched(folder, [SIZE], tmp_path / "repo")
    assert run.name == "my-data-ü-1"
    assert open_run(run.name, tmp_path / "repo").find({"batch_size": np.int64(5)}).status == "done"
    with pytest.raises(UsageError, match="name is 'a/b'"):
        Dataset.from_paths([part.path for part in made.train], name="a/b")


def worker_setup(tmp_path: Path, data: Dataset, **functions: Any) -> WorkerSetup:
    return WorkerSetup(Recipe(model_fn, **functions), 0, tuple(p.path for p in data.train), (), tmp_path / "logs")


def orphaning_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    """Dies, and leaves a child that has inherited all open files."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), config["signal"])
    raise AssertionError("not reached")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_death_is_heard_of_though_a_child_lives_and_the_signal_has_no_name(data: Dataset, tmp_path: Path) -> None:
    pool = open_pool(Cluster.local(1, threads=1, device="cpu"), worker_setup(tmp_path, data, loss_fn=orphaning_loss))
    pool.start()
    try:
        pool.events()
        values = {**SIZE, "signal": 40}
        pool.submit("w0", Task("train", "c", values, 1, 0, None, tmp_path / "states/c/1.safetensors"))
        start = time.monotonic()
        assert pool.events() == [WorkerLost("w0", "was killed by signal 40")]
        assert time.monotonic() - start < 30
    finally:
        pool.close()


def test_workers_do_not_import_from_the_present_folder(data: Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("queue", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n")
    monkeypatch.chdir(tmp_path)
    run = launched(data, [SIZE], tmp_path / "repo", cluster=Cluster.local(1, threads=1, device="cpu"))
    assert run.find(SIZE).status == "done"


def test_a_disk_that_takes_no_states_ends_the_run_and_blames_nobody(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        textwrap.dedent(f"""
        import resource, sys
        sys.path[:0] = {[str(HELPERS)]!r}
        from recipes import loss_fn, model_fn, small_data
        from regatta import Cluster, launch, search
        data = small_data({str(tmp_path / "data")!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))  # as good as a full disk
        launch(data, search.configs([{SIZE}, {{**{SIZE}, "lr": 0.1}}]), model_fn, loss_fn=loss_fn, progress=False,
               cluster=Cluster.inline(), repo={str(tmp_path / "repo")!r})
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "DiskError" in done.stderr and "The state cannot be written" in done.stderr
    assert "No configuration can be trained" not in done.stderr


def test_failed_states_are_the_disks_fault_in_units_too(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profiling finds space for a state, the first unit does not."""
    from regatta.engine.workers.training import trainer

    publishing = trainer.publishing

    @contextmanager
    def publish_on_a_full_disk(path: Path) -> Iterator[Path]:
        with publishing(path) as written:
            yield written
            if path.parent.parent.name == STATES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trainer, "publishing", publish_on_a_full_disk)
    with pytest.raises(DiskError, match="The state cannot be written"):
        launched(data, [SIZE], tmp_path, name="full")
    run = open_run("full", tmp_path)
    assert (run.record.status, run.find(SIZE).error) == ("failed", None)


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    """The journal's file may grow by a few bytes only; then there is room again."""
    import resource
    import signal

    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("run", name="a")
    before, room = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, room[1]))
        with pytest.raises(OSError, match="File too large"):
            journal.append("note", text="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
        signal.signal(signal.SIGXFSZ, before)
    journal.append("end", status="failed")
    journal.close()
    assert [line["event"] for line in read_journal(path)] == ["run", "end"]
