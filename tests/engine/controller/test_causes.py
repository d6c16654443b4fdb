"""Failures that are not a model's own: of data, files, modules and workers. No configuration fails by them."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from locations import HELPERS
from processes import soon
from recipes import loss_fn, model_fn, plain_fn, plain_loss, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.data import read_partition
from regatta.engine.controller import faults
from regatta.engine.controller.trials import Trial, Trials
from regatta.engine.workers.training.error_report import cause_of
from regatta.errors import DataError, PausedError, UsageError
from regatta.journal.journal_file import read_journal
from regatta.search.base import Goal

RATES = (0.1, 0.05, 0.02)
Functions = dict[str, Callable[..., Any]]


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "DELAYS_S", (0.01, 0.02, 0.03))


def sweep_in(folder: Path, cluster: Cluster | None = None, **functions: Any) -> Sweep:
    functions = {"loss_fn": plain_loss, "epochs": 2, **functions}
    space = search.grid(lr=list(RATES), batch_size=[9])
    return Sweep(
        small_data(folder / "data"), space, plain_fn, cluster=cluster or Cluster.inline(2), repo=folder,
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


class MuteError(Exception):
    """Says nothing, and not even that without an error."""

    def __str__(self) -> str:
        raise ValueError("no words")


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
    with pytest.raises(PausedError, match="exited with code 5") as caught:
        run.go_on(progress=False)
    if function == "input_fn":
        assert re.search(r"its data was .*train-000\d\.safetensors", str(caught.value)), "what the worker read"
    seen = open_run("run", tmp_path)
    assert statuses(seen) == {"interrupted"}
    flag.unlink()
    seen.go_on(progress=False)
    assert statuses(seen) == {"done"}
    assert hashes(seen) == hashes(calm)


def test_configurations_are_not_to_blame_for_workers_that_die_in_the_same_way_and_then_do_not(
    tmp_path: Path, calm: Run
) -> None:
    """Each one loses more workers in succession than a configuration may that is to blame."""
    flag = tmp_path / "flag"
    flag.mkdir()

    def deadly(weights: Any, batch: Any, config: Any) -> Any:
        died = flag / str(config["lr"])
        if died.exists() and died.stat().st_size < 5:
            with died.open("ab") as file:
                file.write(b"x")
            os._exit(5)
        return plain_loss(weights, batch, config)

    sweep_in(tmp_path, Cluster.local(2, threads=1), loss_fn=deadly).launch(progress=False)
    for rate, already in zip(RATES, (b"xxx", b"", b""), strict=True):
        (flag / str(rate)).write_bytes(already)
    run = extended(tmp_path).go_on(progress=False)
    assert {path.stat().st_size for path in flag.iterdir()} == {5}
    assert statuses(run) == {"done"}
    assert hashes(run) == hashes(calm)


@pytest.mark.parametrize("left", [1, 3])
def test_files_and_modules_that_are_missing_fail_no_configuration(tmp_path: Path, left: int) -> None:
    """Nor the only one that is left, nor several that miss different things."""
    flag = tmp_path / "flag"
    errors = dict(
        zip(RATES, (ModuleNotFoundError("teacher"), FileNotFoundError("codes"), OSError("stale")), strict=True)
    )

    def fails(weights: Any, batch: Any, config: Any) -> Any:
        if flag.exists():
            raise errors[config["lr"]]
        return plain_loss(weights, batch, config)

    sweep_in(tmp_path, loss_fn=fails).launch(progress=False)
    run = open_run("run", tmp_path)
    for config in list(run.record.configs)[:left]:
        run.extend(config, 1)
    flag.touch()
    with pytest.raises(PausedError, match=rf"{left} configurations? failed, and none was trained since"):
        open_run("run", tmp_path).go_on(progress=False)
    seen = open_run("run", tmp_path)
    assert [config.status for config in seen.record.configs.values()].count("interrupted") == left
    assert re.search(r"Error: \w+$", str(seen.record.error).splitlines()[0]), "what `regatta show` prints"
    flag.unlink()
    assert statuses(seen.go_on(progress=False)) == {"done"}


def test_an_error_raised_from_that_of_a_connection_fails_nothing(tmp_path: Path, calm: Run) -> None:
    flag = tmp_path / "flag"

    def fails_once(weights: Any, batch: Any, config: Any) -> Any:
        if flag.exists():
            flag.unlink()
            try:
                raise ConnectionError("reset by peer")
            except ConnectionError as error:
                raise RuntimeError("no teacher") from error
        return plain_loss(weights, batch, config)

    sweep_in(tmp_path, loss_fn=fails_once).launch(progress=False)
    flag.touch()
    run = extended(tmp_path).go_on(progress=False)
    assert not flag.exists()
    assert any("RuntimeError: no teacher. It is tried again" in text for _, text in run.record.notes)
    assert statuses(run) == {"done"}
    assert hashes(run) == hashes(calm)


def test_the_cause_of_an_error_is_looked_for_behind_it() -> None:
    circle, own = RuntimeError("circle"), ValueError("own")
    circle.__cause__ = circle
    assert [cause_of(circle), cause_of(own)] == ["model", "model"]
    assert cause_of(ExceptionGroup("several", [OSError(), ExceptionGroup("more", [ImportError()])])) == "environment"
    assert cause_of(ExceptionGroup("several", [OSError(), own])) == "model"


def test_a_configuration_that_is_stopped_while_its_failure_is_held_back_is_stopped() -> None:
    board = faults.Faults("run", lambda moment: None)
    trial = Trial("a", {}, 1)
    board.hold(faults.HeldFailure(trial, {}, "ValueError: no", "", "ValueError", 0.0))
    trial.stopped = True
    board.on_profile("b")
    assert board.take_proven(nothing_else=True) == []
    assert not board.held


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


@pytest.mark.parametrize("makes", ["lists", "unequal rows", "an error without words"])
def test_data_that_nothing_can_be_trained_on_fails_no_configuration(tmp_path: Path, calm: Run, makes: str) -> None:
    flag = tmp_path / "flag"

    def read(path: Path) -> Any:
        x, y = read_partition(path)
        if not flag.exists():
            return x, y
        if makes == "an error without words":
            raise MuteError
        return (x.tolist(), y.tolist()) if makes == "lists" else (x[1:], y)

    sweep_in(tmp_path, input_fn=read).launch(progress=False)
    run = extended(tmp_path)
    flag.touch()
    with pytest.raises(PausedError, match="no worker can read this partition"):
        run.go_on(progress=False)
    seen = open_run("run", tmp_path)
    assert statuses(seen) == {"interrupted"}
    flag.unlink()
    seen.go_on(progress=False)
    assert statuses(seen) == {"done"}
    assert hashes(seen) == hashes(calm)


def test_a_process_that_an_error_made_unusable_fails_no_other_configuration(tmp_path: Path, calm: Run) -> None:
    """As a failed assertion on a GPU does: all that is tried in this process afterwards fails as well."""
    flag = tmp_path / "flag"

    def fails(weights: Any, batch: Any, config: Any) -> Any:
        if "unusable" in sys.modules:
            raise RuntimeError("device-side assert triggered")
        if config["lr"] == RATES[0] and flag.exists():
            sys.modules["unusable"] = sys
            raise RuntimeError("index out of range")
        return plain_loss(weights, batch, config)

    sweep_in(tmp_path, Cluster.local(1, threads=1), loss_fn=fails).launch(progress=False)
    flag.touch()
    run = extended(tmp_path).go_on(progress=False)
    errors = {config.values["lr"]: config.error for config in run.record.configs.values()}
    assert errors == {RATES[0]: "RuntimeError: index out of range", RATES[1]: None, RATES[2]: None}
    assert any("is started again, because units failed in its process" in text for _, text in run.record.notes)
    expected = {unit: digest for unit, digest in hashes(calm).items() if run.find(unit[0]).error is None}
    assert expected.items() <= hashes(run).items()


def test_a_process_that_a_member_of_a_pack_made_unusable_fails_no_other_member(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    def fails(model: Any, batch: Any, config: Any) -> Any:
        if "unusable" in sys.modules:
            raise RuntimeError("device-side assert triggered")
        if flag.exists() and config["lr"] == RATES[0]:
            sys.modules["unusable"] = sys
            raise RuntimeError("index out of range")
        return loss_fn(model, batch, config)

    Sweep(
        small_data(tmp_path / "data"), search.grid(lr=list(RATES), batch_size=[9]), model_fn, loss_fn=fails, epochs=1,
        cluster=Cluster.local(1, threads=1), repo=tmp_path, name="run", pack=True,
    ).launch(progress=False)  # fmt: skip
    flag.touch()
    run = extended(tmp_path).go_on(progress=False)
    errors = {config.values["lr"]: config.error for config in run.record.configs.values()}
    assert errors == {RATES[0]: "RuntimeError: index out of range", RATES[1]: None, RATES[2]: None}


MODULE = """
import time
from recipes import plain_fn as model_fn, plain_loss
SCALE = 1.0

def loss_fn(weights, batch, config):
    time.sleep(0.01)
    loss, gradients = plain_loss(weights, batch, config)
    return loss, {name: SCALE * gradient for name, gradient in gradients.items()}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own module, with the functions of a sweep."""
    path = tmp_path / f"own_{tmp_path.name}.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return path


def background_run(folder: Path, module: Path, epochs: int) -> Run:
    functions = importlib.import_module(module.stem)
    run = Sweep(
        small_data(folder / "data"), search.grid(lr=list(RATES), batch_size=[9]), functions.model_fn,
        loss_fn=functions.loss_fn, epochs=epochs, cluster=Cluster.local(1, threads=1), repo=folder, name="run",
        framework="numpy", visits="seeded", pack=False,
    ).launch(wait=False, progress=False)  # fmt: skip
    assert soon(lambda: sum(unit.kind == "train" for unit in list(run.record.units)) > 2)
    return run


def test_a_worker_that_would_start_with_other_code_pauses_the_run(tmp_path: Path, module: Path) -> None:
    run = background_run(tmp_path, module, epochs=200)
    module.write_text(MODULE.replace("SCALE = 1.0", "SCALE = 2.0"))
    os.kill(run.record.workers["w0"].info["pid"], signal.SIGKILL)
    with pytest.raises(PausedError, match=rf"w0 was started, and code has changed .*{module.name}\): SCALE"):
        run.result(timeout=300)
    seen = open_run("run", tmp_path)
    assert (seen.record.status, statuses(seen)) == ("interrupted", {"interrupted"})
    ups = [line for line in read_journal(run.folder / "journal.jsonl") if line.get("state") == "up"]
    assert len(ups) == 1, "nothing was trained with the other code"


def test_a_worker_that_would_join_with_other_code_gets_no_units(tmp_path: Path, module: Path) -> None:
    run = background_run(tmp_path, module, epochs=1000)
    try:
        module.write_text(MODULE.replace("SCALE = 1.0", "SCALE = 2.0"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HELPERS), *sys.path])}
        command = [sys.executable, "-m", "regatta", "worker", "run", "--repo", str(tmp_path)]
        joining = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert soon(lambda: any("w1 cannot join, because code has changed" in text for _, text in run.record.notes)), (
            joining.stderr
        )
        before = len(run.record.units)
        assert soon(lambda: len(run.record.units) > before + 3), "the run goes on without it"
    finally:
        run.halt()
    assert {unit.worker for unit in run.record.units} == {"w0"}


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
    with pytest.raises(UsageError, match=r"(?s)has not failed; it is interrupted.*regatta resume run"):
        run.retry(failed)  # it waits already
    assert run.retry() == []
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


def test_a_retry_while_the_run_trains_has_all_its_tries_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    def fails(weights: Any, batch: Any, config: Any) -> Any:
        time.sleep(0.005)
        if config["lr"] == RATES[0] and flag.exists():
            raise ConnectionError("no answer")
        return plain_loss(weights, batch, config)

    sweep = sweep_in(tmp_path, loss_fn=fails, epochs=2000)
    run = sweep.launch(wait=False, progress=False)
    try:
        assert soon(lambda: sum(unit.kind == "train" for unit in list(run.record.units)) > 6)
        (config,) = (config for config in run.record.configs.values() if config.values["lr"] == RATES[0])

        def tries() -> int:
            return sum("no answer. It is tried again" in text for _, text in list(run.record.notes))

        for times in (1, 2):
            flag.touch()
            assert soon(lambda: config.status == "failed")
            assert tries() == times * len(faults.DELAYS_S)
            flag.unlink()
            if times == 1:
                flag.touch()
                assert open_run("run", tmp_path).retry(config.id)[0]["done"]
    finally:
        run.halt()


def test_a_search_decides_the_same_after_a_retry(tmp_path: Path) -> None:
    """It knows of the failure, and gets no report of the configuration after it."""
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
    assert [board.on_death("w0", trial, "", killed=True) for _ in range(5)] == [False] * 5
    board.on_unit_done("w0", [trial])
    assert [board.on_death("w0", trial, "", killed=False) for _ in range(3)] == [False, False, True]


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
