"""Requests to a run while it trains, from other threads and other processes, and workers that join."""

from __future__ import annotations

import builtins
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from locations import HELPERS
from processes import is_running, soon
from recipes import eval_fn, loss_fn, model_fn, plain_fn, plain_loss, small_data

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.configuration import config_id
from regatta.engine.controller import control_server
from regatta.engine.controller.control_server import ControlServer, ask, connect, read_address
from regatta.engine.controller.event_loop import EventLoop
from regatta.errors import NotFoundError, UsageError
from regatta.search.base import Search

SLOW = {"batch_size": 5, "sleeps": 0.03, "lr": 0.01}
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}


def launched(folder: Path, *configs: dict[str, Any], epochs: int = 3, **options: Any) -> Run:
    options = {"cluster": Cluster.local(1, threads=1), "name": "steered", **options}
    return Sweep(
        small_data(folder / "data"), search.configs(configs), model_fn, loss_fn=loss_fn, eval_fn=eval_fn,
        epochs=epochs, repo=folder, **options,
    ).launch(wait=False, progress=False)  # fmt: skip


def begun(run: Run, config: dict[str, Any], epoch: int = 1) -> bool:
    def is_there() -> bool:
        found = run.record.configs.get(config_id(config))
        return found is not None and found.epoch >= epoch

    return soon(is_there)


@pytest.fixture
def ended() -> Iterator[list[Run]]:
    """Runs that are halted when the test is over, whatever came of it."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.halt()


def test_stop_and_resume_while_others_train(tmp_path: Path, ended: list[Run]) -> None:
    one, other = {**SLOW, "lr": 0.01}, {**SLOW, "lr": 0.02}
    run = launched(tmp_path, one, other, epochs=6)
    ended.append(run)
    assert begun(run, one)
    seen = open_run("steered", tmp_path)  # as another process would
    assert seen.stop(one)["done"]
    assert run.find(one).status == "stopped"
    before = len(run.find(one).units)
    assert begun(run, other, run.find(other).epoch + 2)
    assert len(run.find(one).units) <= before + 1, "at most the unit that was under way"
    with pytest.raises(UsageError, match="is stopped already"):
        seen.stop(one)
    assert "resumes, up to epoch 6" in seen.resume(one)["text"]
    run.result(timeout=300)
    assert {run.find(config).status for config in (one, other)} == {"done"}
    assert sorted(run.find(one).reports) == list(range(1, 7))
    assert [r["verb"] for r in run.record.requests.values()] == ["stop", "stop", "resume"]


def test_a_clone_keeps_unchanged_values(tmp_path: Path, ended: list[Run]) -> None:
    parent = {**SLOW, "kind": "schedule per epoch", "lr": 0.04}
    run = launched(tmp_path, parent, epochs=4)
    ended.append(run)
    assert begun(run, parent, 2)
    warm = run.clone(parent, {"lr": 0.02}, epochs=1)
    cold = run.clone(parent, {"batch_size": 4}, warm=False, epochs=1)
    with pytest.raises(UsageError, match="no value 'rate'"):
        run.clone(parent, {"rate": 1.0})
    with pytest.raises(UsageError, match="these values already"):
        run.clone(parent, {"lr": 0.02})
    run.result(timeout=300)
    child, fresh = run.find(warm["config"]), run.find(cold["config"])
    assert child.values == {**parent, "lr": 0.02}
    assert (child.parent, child.parent_epoch) == (config_id(parent), 2)
    assert (fresh.parent, fresh.parent_epoch, fresh.values) == (child.parent, None, {**parent, "batch_size": 4})
    assert [len(c.reports) for c in (child, fresh)] == [1, 1]
    _check_child_began_with(run, parent, child)


def _check_child_began_with(run: Run, parent: dict[str, Any], child: Any) -> None:
    """Its last state is that of a plain loop from the parent's state, with the child's learning rate, decayed alike."""
    from regatta.data import batch_order, read_partition
    from regatta.frameworks.torch import framework
    from regatta.seeds import unit_seed

    trainee = framework.assemble(model_fn(child.values), "cpu")
    path = run.folder / "states" / config_id(parent) / "0002-004.safetensors"
    framework.restore(trainee, framework.read(path))
    rate = trainee.optimizer.param_groups[0]["lr"] / 2  # the child's is half the parent's, however far it has decayed
    trainee.optimizer.param_groups[0]["lr"] = rate
    trainee.optimizer.param_groups[0]["initial_lr"] = 0.02
    schedule = trainee.schedules["epoch"]
    schedule.base_lrs, schedule._last_lr = [0.02], [rate]
    dataset = run.sweep().dataset
    for partition in child.visits(1):
        data = framework.prepare(read_partition(dataset.train[partition].path), "cpu")
        seed = unit_seed(0, child.values, 1, partition)
        with framework.seeded(seed):
            framework.train(trainee, data, batch_order(framework.rows(data), 5, seed), loss_fn, child.values)
    wanted = {name: tensor.numpy() for name, tensor in trainee.model.state_dict().items()}
    found = run.weights(child.id)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert torch.is_tensor(trainee.model.steps)


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    config = {"batch_size": 5, "lr": 0.01}
    run = launched(tmp_path, config, epochs=1).result(timeout=300)
    answer = run.extend(config, 2)
    assert not answer["done"]
    assert answer["waits"]
    later = open_run("steered", tmp_path)
    later.go_on(progress=False)
    assert sorted(later.find(config).reports) == [1, 2, 3]
    assert len(later.record.requests) == 1
    with pytest.raises(UsageError, match="is done"):
        open_run("steered", tmp_path).go_on(progress=False)
    assert open_run("steered", tmp_path).replay().ok


def test_hostile_requests_are_refused_and_change_nothing(tmp_path: Path, ended: list[Run]) -> None:
    run = launched(tmp_path, SLOW, epochs=3)
    ended.append(run)
    assert begun(run, SLOW)
    folder = run.folder / "requests"
    folder.mkdir(exist_ok=True)
    (folder / "a.json").write_text("[" * 50_000)
    (folder / "b.json").write_text(json.dumps({"verb": "stop", "event": "end", "config": {"x": 1}}))
    (folder / "c.json").write_text(json.dumps({"verb": "burn", "config": config_id(SLOW)}))
    (folder / "d.json").write_bytes(b'{"verb": "stop", "config": "' + b"x" * 100_000)
    for wrong in ({"epochs": 0}, {"epochs": "two"}, {"epochs": True}):
        assert not ask(run.folder, "extend", config_id(SLOW), **wrong)["done"]
    assert not ask(run.folder, "stop", "nobody")["done"]
    assert not ask(run.folder, "clone", config_id(SLOW), values={"lr": [1, 2]})["done"]
    run.result(timeout=300)
    assert run.find(SLOW).status == "done"
    assert len(list(folder.glob("*.answer.json"))) == 9
    assert not any(request["answer"]["done"] for request in run.record.requests.values())


def command(folder: Path, *words: str, **options: Any) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "regatta", *words, "--repo", str(folder)]
    return subprocess.Popen(
        argv, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, **options
    )


def test_from_the_command_line(tmp_path: Path, ended: list[Run]) -> None:
    run = launched(tmp_path, SLOW, epochs=1000)  # until it is stopped, however slow the commands are
    ended.append(run)
    assert begun(run, SLOW)
    name = config_id(SLOW)
    said, wrong = command(tmp_path, "clone", "steered", name[:6], "lr=0.5", "--json").communicate(timeout=300)
    assert json.loads(said)["done"], wrong
    clone = json.loads(said)["config"]
    assert run.find(clone).values == {**SLOW, "lr": 0.5}
    said, _ = command(tmp_path, "stop", "steered", clone).communicate(timeout=300)
    assert f"{clone} is stopped" in said
    _, wrong = command(tmp_path, "stop", "steered", clone).communicate(timeout=300)
    assert "is stopped already" in wrong
    short = {**SLOW, "lr": 0.7}
    command(tmp_path, "clone", "steered", name, "lr=0.7", "--epochs", "1").communicate(timeout=300)
    assert run.stop(SLOW)["done"]
    run.result(timeout=300)
    assert run.find(short).status == "done"
    said, _ = command(tmp_path, "extend", "steered", config_id(short), "1").communicate(timeout=300)
    assert "regatta resume steered" in said
    resumed = command(tmp_path, "resume", "steered")
    said, wrong = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, wrong
    assert open_run("steered", tmp_path).find(short).epoch == 2


def test_a_worker_that_joins_does_work_and_may_leave(tmp_path: Path, ended: list[Run]) -> None:
    configs = [{**SLOW, "lr": rate} for rate in (0.01, 0.02, 0.03)]
    run = launched(tmp_path, *configs, epochs=200)
    ended.append(run)
    assert begun(run, configs[0])
    joining = command(tmp_path, "worker", "steered")
    assert soon(lambda: any(unit.worker == "w1" for unit in list(run.record.units))), joining.communicate()[1]
    pid = run.record.workers["w1"].info["pid"]
    joining.send_signal(signal.SIGINT)
    joining.communicate(timeout=300)
    assert soon(lambda: not is_running(pid))
    assert soon(lambda: not run.record.workers["w1"].up)
    count = len(run.record.units)
    assert soon(lambda: len(run.record.units) > count + 3), "the others go on"
    second = command(tmp_path, "worker", "steered")
    assert soon(lambda: any(unit.worker == "w2" for unit in list(run.record.units)))
    run.halt()
    second.communicate(timeout=300)
    assert second.returncode == 0, "a run that ends lets its joined workers go"
    with pytest.raises(KeyboardInterrupt):
        run.result()
    assert not (run.folder / "door.json").exists()
    _, wrong = command(tmp_path, "worker", "steered").communicate(timeout=300)
    assert "Run steered is not running on this machine." in wrong


def test_a_worker_that_joins_gets_only_partitions_that_it_can_read(tmp_path: Path, ended: list[Run]) -> None:
    configs = [{**SLOW, "lr": rate} for rate in (0.01, 0.02, 0.03, 0.04)]
    run = launched(tmp_path, *configs, epochs=200)
    ended.append(run)
    assert begun(run, configs[0])
    wrong = command(tmp_path, "worker", "steered", "--holds", "train-7").communicate(timeout=300)[1]
    assert "The data set has no partition 'train-7'" in wrong
    joining = command(tmp_path, "worker", "steered", "--holds", "1", "eval-0002.safetensors")

    def units_of_guest() -> set[tuple[str, int]]:
        return {(unit.kind, unit.partition) for unit in list(run.record.units) if unit.worker == "w1"}

    assert soon(lambda: len(units_of_guest()) == 2), joining.communicate()[1]
    run.halt()
    joining.communicate(timeout=300)
    assert units_of_guest() == {("train", 1), ("eval", 2)}


def test_a_worker_that_joins_a_run_with_an_availability_map_names_what_it_can_read(
    tmp_path: Path, ended: list[Run]
) -> None:
    data = small_data(tmp_path / "data")
    paths = [[part.path for part in kind] for kind in (data.train, data.eval)]
    placed = Dataset.from_paths(*paths, {path: ["w0"] for kind in paths for path in kind})
    configs = [{**SLOW, "lr": rate} for rate in (0.01, 0.02, 0.03, 0.04)]
    run = Sweep(
        placed, search.configs(configs), model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=200, repo=tmp_path,
        cluster=Cluster.local(1, threads=1), name="steered",
    ).launch(wait=False, progress=False)  # fmt: skip
    ended.append(run)
    assert begun(run, configs[0])
    refused = command(tmp_path, "worker", "steered")
    assert "regatta worker steered --holds PARTITION" in refused.communicate(timeout=300)[1]
    assert refused.returncode == 4
    joining = command(tmp_path, "worker", "steered", "--holds", "1")
    assert soon(lambda: any(unit.worker == "w1" for unit in list(run.record.units))), joining.communicate()[1]
    run.halt()
    joining.communicate(timeout=300)
    assert {(unit.kind, unit.partition) for unit in run.record.units if unit.worker == "w1"} == {("train", 1)}


@pytest.mark.parametrize("error", ["AttributeError", "ModuleNotFoundError"])
def test_a_worker_that_joins_and_is_unfit_fails_no_configuration(
    tmp_path: Path, ended: list[Run], monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """It has another environment, in which no model can be trained."""

    def unfit(model: Any, batch: Any, config: Any) -> Any:
        if error in os.environ:
            raise getattr(builtins, error)("no such thing here")
        return loss_fn(model, batch, config)

    configs = [{**SLOW, "lr": rate} for rate in (0.01, 0.02, 0.03, 0.04)]
    run = Sweep(
        small_data(tmp_path / "data"), search.configs(configs), model_fn, loss_fn=unfit, epochs=200, repo=tmp_path,
        cluster=Cluster.local(1, threads=1), name="steered",
    ).launch(wait=False, progress=False)  # fmt: skip
    ended.append(run)
    assert begun(run, configs[0])
    monkeypatch.setitem(ENVIRONMENT, error, "yes")
    joining = command(tmp_path, "worker", "steered")
    assert soon(lambda: any("w1, which joined, is dismissed" in text for _, text in run.record.notes))
    joining.communicate(timeout=300)
    before = len(run.record.units)
    assert soon(lambda: len(run.record.units) > before + 8), "the others go on"
    assert {config.error for config in run.record.configs.values()} == {None}


def test_a_worker_joins_only_with_a_device_that_is_there(tmp_path: Path, ended: list[Run]) -> None:
    run = launched(tmp_path, SLOW, epochs=200)
    ended.append(run)
    assert begun(run, SLOW)
    joining = command(tmp_path, "worker", "steered", "--device", "gpu")
    assert "Did you mean cuda?" in joining.communicate(timeout=300)[1]
    assert joining.returncode == 2
    assert "w1" not in run.record.workers


def test_no_connection_without_the_key(tmp_path: Path, ended: list[Run]) -> None:
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    run = launched(tmp_path, SLOW, epochs=200)
    ended.append(run)
    assert begun(run, SLOW)
    door = json.loads((run.folder / "door.json").read_text())
    assert (run.folder / "door.json").stat().st_mode & 0o077 == 0
    with pytest.raises((AuthenticationError, OSError, EOFError)):
        Client(door["address"], family="AF_UNIX", authkey=b"guess").recv_bytes()
    assert run.stop(SLOW)["done"], "and the door still opens"


def test_a_caller_that_says_nothing_blocks_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that answers no challenge, nor one that has the key and does not say what it wants."""

    def call() -> None:
        with connect(tmp_path) as connection:
            connection.send_bytes(b'{"kind": "request"}')

    monkeypatch.setattr(control_server, "HELLO_TIMEOUT_S", 600.0)
    with ControlServer(tmp_path, lambda: None) as control, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(read_address(tmp_path)["address"])
        threading.Thread(target=call, daemon=True).start()
        assert soon(lambda: control._callers.qsize() == 1)
        with connect(tmp_path):
            threading.Thread(target=call, daemon=True).start()
            assert soon(lambda: control._callers.qsize() == 2)
    assert not any(thread.name == "control server" for thread in threading.enumerate())


def interrupt_waiting(thread: int) -> None:
    """Send Ctrl-C to this process once a thread of it waits for the result of a run."""

    def waits() -> bool:
        frame = sys._current_frames().get(thread)
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return {"result", "wait"} <= names

    assert soon(waits)
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_while_waiting_for_a_background_run(tmp_path: Path) -> None:
    run = launched(tmp_path, SLOW, epochs=500)
    assert begun(run, SLOW)
    threading.Thread(target=interrupt_waiting, args=(threading.get_ident(),)).start()
    with pytest.raises(KeyboardInterrupt):
        run.result(timeout=300)
    assert run.done()
    assert open_run("steered", tmp_path).record.status == "interrupted"
    last = [unit for unit in run.record.units if unit.kind == "train"][-1]
    assert (run.folder / str(last.state)).exists()


def test_without_a_controller_there_is_no_connection(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not running on this machine"):
        connect(tmp_path)


def plain_sweep(folder: Path, space: Search, name: str = "run", **options: Any) -> Sweep:
    settings = {"epochs": 4, "visits": "seeded", "cluster": Cluster.inline(2), "framework": "numpy", **options}
    data = small_data(folder / "data", rows=24, proportions=(1, 2), eval_partitions=2)
    return Sweep(data, space, plain_fn, loss_fn=plain_loss, repo=folder, name=name, **settings)


def run_with_requests(sweep: Sweep, *requests: dict[str, Any]) -> Run:
    """A run that finds requests in its folder when it begins."""
    folder = sweep._new_folder(Path(str(sweep.repo)) / "runs")
    (folder / "requests").mkdir()
    for number, request in enumerate(requests):
        (folder / "requests" / f"{number}.json").write_text(json.dumps(request))
    return Run(folder)


@pytest.mark.parametrize("visits", ["free", "seeded"])
def test_malformed_requests_do_not_end_a_run(tmp_path: Path, visits: str) -> None:
    sweep = plain_sweep(tmp_path, search.grid(lr=[0.1], batch_size=[7]), visits=visits)
    config = next(iter(sweep.configs()))
    clone = {"verb": "clone", "config": config, "warm": False}
    wrong = [
        *({**clone, "values": values} for values in (5, ["lr"], [["lr"]], "lr", None, {"lr": {}})),
        {**clone, "values": {"lr": 0.5}, "warm": "no"},
        {**clone, "values": {"lr": 0.5}, "epochs": 10**30},
        {"verb": "extend", "config": config, "epochs": 10**30},
        {"verb": ["stop"], "config": config},
    ]
    run = run_with_requests(sweep, *wrong)
    os.mkfifo(run.folder / "requests" / "pipe.json")
    sweep.train(run, progress=False)
    assert run.record.status == "done"
    assert len(run.record.requests) == len(wrong) + 1
    assert not any(request["answer"]["done"] for request in run.record.requests.values())
    assert list(run.record.configs) == [config]


def slow_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    time.sleep(0.01)
    return plain_loss(weights, batch, config)


def test_a_joining_worker_that_is_gone_before_it_is_refused(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    run = Sweep(
        data, search.grid(lr=[0.1], batch_size=[7]), plain_fn, loss_fn=slow_loss, repo=tmp_path, epochs=500,
        cluster=Cluster.inline(1), framework="numpy",
    ).launch(wait=False, progress=False)  # fmt: skip
    try:
        assert soon(lambda: (run.folder / "door.json").exists())
        for _ in range(3):
            connection = connect(run.folder)
            connection.send_bytes(b'{"kind": "worker"}')
            connection.close()
        config = next(iter(run.record.configs))
        assert ask(run.folder, "stop", config)["done"], "they were turned away before"
        run.result(timeout=300)
    finally:
        run.halt()


def test_callers_that_come_too_late_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, run_loop = [], EventLoop.run

    def run_and_be_visited(self: EventLoop, control: ControlServer) -> None:
        run_loop(self, control)
        for kind in ("request", "worker"):
            late.append(connect(self.settings.folder))
            late[-1].send_bytes(json.dumps({"kind": kind}).encode())
        assert soon(lambda: control._callers.qsize() == 2)

    monkeypatch.setattr(EventLoop, "run", run_and_be_visited)
    run = plain_sweep(tmp_path, search.grid(lr=[0.1], batch_size=[7]), epochs=1).launch(progress=False)
    assert run.record.status == "done"
    with pytest.raises(EOFError):
        late[0].recv_bytes()
    assert json.loads(late[1].recv_bytes()) == {"refused": "The run has ended."}
    for connection in late:
        connection.close()
