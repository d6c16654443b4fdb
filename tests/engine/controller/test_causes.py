"""Failures that are not a model's own: of data, files, modules and workers. No configuration fails by them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recipes import plain_fn, plain_loss, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.data import read_partition
from regatta.engine.controller import faults
from regatta.engine.controller.trials import Trials
from regatta.errors import DataError, PausedError, UsageError
from regatta.journal.journal_file import read_journal
from regatta.search.base import Goal

RATES = (0.1, 0.05, 0.02)
Functions = dict[str, Callable[..., Any]]


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "DELAYS_S", (0.01, 0.02, 0.03))


def sweep_in(folder: Path, cluster: Cluster | None = None, **functions: Any) -> Sweep:
    functions = {"loss_fn": plain_loss, **functions}
    space = search.grid(lr=list(RATES), batch_size=[9])
    return Sweep(
        small_data(folder / "data"), space, plain_fn, epochs=2, cluster=cluster or Cluster.inline(2), repo=folder,
        framework="numpy", name="run", visits="seeded", pack=False, **functions,
    )  # fmt: skip


def hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


def statuses(run: Run) -> set[str]:
    return {config.status for config in run.record.configs.values()}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained in one go, with the epoch by which the other tests extend."""
    folder = tmp_path_factory.mktemp("calm")
    sweep_in(folder).launch(progress=False)
    return extended(folder).go_on(progress=False)


def extended(folder: Path) -> Run:
    run = open_run("run", folder)
    for config in run.record.configs:
        run.extend(config, 1)
    return open_run("run", folder)


def while_present(flag: Path, action: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does something else as long as there is a file."""

    def changed(*arguments: Any) -> Any:
        if flag.exists():
            action()
        return function(*arguments)

    return changed


def raising(error: type[BaseException]) -> Callable[[], None]:
    def action() -> None:
        raise error("not now")

    return action


@pytest.mark.parametrize(
    ("function", "error"), [("loss_fn", AttributeError), ("loss_fn", ImportError), ("input_fn", ConnectionError)]
)
def test_an_error_that_all_configurations_have_pauses_the_run(
    tmp_path: Path, calm: Run, function: str, error: type[BaseException]
) -> None:
    flag = tmp_path / "flag"
    original = {"loss_fn": plain_loss, "input_fn": read_partition}[function]
    sweep_in(tmp_path, **{function: while_present(flag, raising(error), original)}).launch(progress=False)
    run = extended(tmp_path)
    flag.touch()
    with pytest.raises(PausedError, match=f"{error.__name__}: not now") as caught:
        run.go_on(progress=False)
    assert "No configuration is marked as failed" in str(caught.value)
    seen = open_run("run", tmp_path)
    assert (seen.record.status, statuses(seen)) == ("interrupted", {"interrupted"})
    flag.unlink()
    seen.go_on(progress=False)
    assert statuses(seen) == {"done"}
    assert hashes(seen) == hashes(calm)


@pytest.mark.parametrize("function", ["loss_fn", "input_fn"])
def test_workers_that_die_under_all_configurations_pause_the_run(tmp_path: Path, calm: Run, function: str) -> None:
    """While training, and before the first unit has begun."""
    flag = tmp_path / "flag"
    original = {"loss_fn": plain_loss, "input_fn": read_partition}[function]
    deadly = while_present(flag, lambda: os._exit(5), original)
    sweep_in(tmp_path, Cluster.local(2, threads=1), **{function: deadly}).launch(progress=False)
    run = extended(tmp_path)
    flag.touch()
    with pytest.raises(PausedError, match="exited with code 5"):
        run.go_on(progress=False)
    seen = open_run("run", tmp_path)
    assert statuses(seen) == {"interrupted"}
    flag.unlink()
    seen.go_on(progress=False)
    assert statuses(seen) == {"done"}
    assert hashes(seen) == hashes(calm)


def test_a_model_that_fails_alone_fails_after_a_resume(tmp_path: Path) -> None:
    """Others are trained, so its error is its own; and so is that of the last one left."""

    def fails(weights: Any, batch: Any, config: Any) -> Any:
        if config["lr"] == RATES[1] and (tmp_path / "flag").exists():
            raise FloatingPointError("diverged")
        return plain_loss(weights, batch, config)

    sweep_in(tmp_path, loss_fn=fails).launch(progress=False)
    (tmp_path / "flag").touch()
    run = extended(tmp_path).go_on(progress=False)
    failed = [config for config in run.record.configs.values() if config.status == "failed"]
    assert [config.values["lr"] for config in failed] == [RATES[1]]
    assert failed[0].error == "FloatingPointError: diverged"
    assert len(run.record.leaderboard()) == len(RATES)
    assert [answer["waits"] for answer in run.retry()] == [True]
    assert open_run("run", tmp_path).go_on(progress=False).find(failed[0].id).status == "failed"


def test_a_connection_that_breaks_once_fails_nothing(tmp_path: Path, calm: Run) -> None:
    """The worker that could not read leaves the partition to another one that can."""

    def breaks_once(path: Path) -> Any:
        mark = tmp_path / "broken"
        if path.name == "train-0002.safetensors" and (tmp_path / "armed").exists() and not mark.exists():
            mark.touch()
            raise ConnectionError("reset by peer")
        return read_partition(path)

    sweep_in(tmp_path, input_fn=breaks_once).launch(progress=False)
    (tmp_path / "armed").touch()
    run = extended(tmp_path).go_on(progress=False)
    assert (tmp_path / "broken").exists()
    assert statuses(run) == {"done"}
    assert any("cannot read train partition 2: ConnectionError: reset by peer" in text for _, text in run.record.notes)
    assert hashes(run) == hashes(calm)


def test_data_that_is_gone_is_noticed_before_anything_starts(tmp_path: Path) -> None:
    sweep_in(tmp_path).launch(progress=False)
    run = extended(tmp_path)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"This partition does not exist \(and 6 more\)"):
        run.go_on(progress=False)
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert statuses(open_run("run", tmp_path).go_on(progress=False)) == {"done"}


def test_a_renamed_repository_goes_on(tmp_path: Path, calm: Run) -> None:
    sweep_in(tmp_path / "before").launch(progress=False)
    (tmp_path / "before").rename(tmp_path / "after")
    run = extended(tmp_path / "after").go_on(progress=False)
    assert hashes(run) == hashes(calm)
    assert not (tmp_path / "before").exists()


def failed_run(folder: Path) -> tuple[Run, str]:
    """A run in which one configuration has failed in its second epoch, for a reason that is gone now."""

    def fails(weights: Any, batch: Any, config: Any) -> Any:
        if config["lr"] == RATES[0] and (folder / "flag").exists():
            raise FloatingPointError("diverged")
        return plain_loss(weights, batch, config)

    sweep_in(folder, loss_fn=fails).launch(progress=False)
    (folder / "flag").touch()
    run = extended(folder).go_on(progress=False)
    (folder / "flag").unlink()
    (failed,) = [config.id for config in run.record.configs.values() if config.status == "failed"]
    return open_run("run", folder), failed


def test_a_retry_goes_on_from_the_last_good_state(tmp_path: Path, calm: Run) -> None:
    run, failed = failed_run(tmp_path)
    (answer,) = run.retry(failed)
    assert answer["waits"]
    assert f"{failed} is tried again, up to epoch 3" in answer["text"]
    with pytest.raises(UsageError, match="has not failed"):
        run.retry(failed)  # it waits already
    before = len(run.find(failed).units)
    later = open_run("run", tmp_path).go_on(progress=False)
    assert statuses(later) == {"done"}
    assert before < len(later.find(failed).units)
    assert hashes(later) == hashes(calm)
    again = open_run("run", tmp_path)
    assert again.retry() == []
    again.extend(failed, 1)
    again.go_on(progress=False)
    assert sorted(again.find(failed).reports) == [1, 2, 3, 4], "the journal is replayed with the retry"


def test_answers_are_those_that_the_next_controller_gives(tmp_path: Path) -> None:
    run, failed = failed_run(tmp_path)
    other = next(config for config in run.record.configs if config != failed)
    with pytest.raises(UsageError, match=rf"regatta retry run {failed}"):
        run.extend(failed, 1)
    with pytest.raises(UsageError, match="was not stopped; it is done"):
        run.resume(other)
    with pytest.raises(UsageError, match="is done already"):
        run.stop(other)
    with pytest.raises(UsageError, match="has not failed; it is done"):
        run.retry(other)
    assert not list((run.folder / "requests").glob("*.json")) or open_run("run", tmp_path).record.requests
    for answer in (run.extend(other, 1), run.stop(other), run.resume(other)):
        assert answer["waits"], "each is possible after the one before"
    later = open_run("run", tmp_path).go_on(progress=False)
    assert [line["answer"]["done"] for line in later.record.requests.values()][-3:] == [True] * 3
    assert later.find(other).epoch == 4


def test_a_search_decides_the_same_after_a_retry(tmp_path: Path) -> None:
    """It has been told of the failure, and hears nothing of the configuration after it."""
    run, failed = failed_run(tmp_path)
    run.retry()
    open_run("run", tmp_path).go_on(progress=False)
    lines = list(read_journal(run.folder / "journal.jsonl"))
    replayed = Trials(search.grid(lr=list(RATES), batch_size=[9]), Goal("loss", "min", 2, 0))
    replayed.start()
    for line in lines:
        replayed.replay_record(line)
    trial = replayed[failed]
    assert (trial.failed, trial.closed, trial.epochs) == (False, True, 3)


def test_a_module_with_a_typo_pauses_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "typo_functions.py"
    good = "from recipes import plain_fn as made, plain_loss as loss\ndef model_fn(config):\n    return made(config)\n"
    good += "def loss_fn(model, batch, config):\n    return loss(model, batch, config)\n"
    module.write_text(good)
    monkeypatch.syspath_prepend(tmp_path)
    functions = importlib.import_module("typo_functions")
    Sweep(
        small_data(tmp_path / "data"), search.grid(lr=list(RATES), batch_size=[9]), functions.model_fn,
        loss_fn=functions.loss_fn, epochs=1, cluster=Cluster.local(2, threads=1), repo=tmp_path, name="run",
    ).launch(progress=False)  # fmt: skip
    module.write_text("def model_fn(config:\n")
    extended(tmp_path)
    program = f"import regatta; regatta.open_run('run', {str(tmp_path)!r}).go_on(progress=False, changed_code=True)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "SyntaxError" in ended.stderr
    assert statuses(open_run("run", tmp_path)) == {"interrupted"}
    module.write_text(good)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert statuses(open_run("run", tmp_path).go_on(progress=False, changed_code=True)) == {"done"}


def test_kills_from_outside_count_less_than_deaths() -> None:
    board = faults.Faults("run", lambda moment: None)
    trial: Any = type("AnyTrial", (), {"id": "a"})()
    board.start_unit("w0")
    assert [board.on_death("w0", trial, killed=True) for _ in range(5)] == [False] * 5
    board.on_unit_done("w0", [trial])
    assert [board.on_death("w0", trial, killed=False) for _ in range(3)] == [False, False, True]


def test_what_is_tried_again_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[float] = []
    board = faults.Faults("run", moments.append)
    assert [board.next_delay("partition") for _ in range(4)] == [0.01, 0.02, 0.03, None]
    board.works("partition")
    assert board.next_delay("partition") == 0.01
    done: list[int] = []
    board.after(0.0, lambda: done.append(1))
    board.after(60.0, lambda: done.append(2))
    for action in board.take_due():
        action()
    assert (done, board.waits, len(moments)) == ([1], True, 2)
    assert moments[1] > time.monotonic()
