"""Kills at chosen moments, requests that cross a search, doors that nobody answers, functions that changed."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import children, cpu_seconds, is_running, soon
from recipes import plain_fn, plain_loss, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.code_identity import describe_code
from regatta.configuration import config_id
from regatta.engine.controller.control_server import ControlServer, ask, connect
from regatta.engine.controller.event_loop import EventLoop
from regatta.engine.controller.trials import Trials
from regatta.errors import RegattaError
from regatta.journal.journal import Journal, Record
from regatta.search.base import Goal, Search

GOAL = Goal("loss", "min", 4, 0)


def plain_sweep(folder: Path, space: Search, name: str = "run", **options: Any) -> Sweep:
    settings = {"epochs": 4, "visits": "seeded", "cluster": Cluster.inline(2), "framework": "numpy", **options}
    data = small_data(folder / "data", rows=24, proportions=(1, 2), eval_partitions=2)
    return Sweep(data, space, plain_fn, loss_fn=plain_loss, repo=folder, name=name, **settings)


def halving() -> Search:
    return search.hyperband(lr=search.uniform(0.001, 0.1), batch_size=[7], R=4, eta=2)


def dies_before(sweep: Sweep, wanted: Callable[[Record], bool]) -> None:
    """Train in a process that is gone at the moment when it would write such a record."""
    child = os.fork()
    if child == 0:
        write = Journal._write

        def dying(self: Journal, line: bytes) -> None:
            if wanted(json.loads(line)):
                os._exit(9)
            write(self, line)

        Journal._write = dying  # type: ignore[method-assign]
        try:
            sweep.launch(progress=False)
        finally:
            os._exit(0)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 9, "it got there"


def told(run: Run) -> dict[str, Any]:
    return {c.id: (c.epochs, c.status, c.reports) for c in run.record.configs.values()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return plain_sweep(tmp_path_factory.mktemp("undisturbed"), halving()).launch(progress=False)


@pytest.mark.parametrize("event", ["report", "config", "end"])
def test_a_controller_killed_before_it_could_say_what_follows(tmp_path: Path, undisturbed: Run, event: str) -> None:
    """Before the report on which a rung waits, before the first promotion, before the end."""
    rung, heard = list(undisturbed.record.configs)[:4], set[str]()

    def wanted(line: Record) -> bool:
        if line["event"] == "report" and line["config"] in rung:
            heard.add(line["config"])
        return line["event"] == event and (event == "end" or len(heard) == len(rung))

    dies_before(plain_sweep(tmp_path, halving()), wanted)
    journal = tmp_path / "runs" / "run" / "journal.jsonl"
    if event == "config":  # and had it come from the first of the rung, those that go on are still to be recalled
        kept = [line for line in journal.read_bytes().splitlines(True) if not _reports(json.loads(line), rung[0])]
        journal.write_bytes(b"".join(kept))
    run = open_run("run", tmp_path)
    assert run.record.status == "interrupted"
    run.go_on(progress=False)
    assert told(run) == told(undisturbed)


def _reports(line: Record, config: str) -> bool:
    return bool(line["event"] == "report" and line["config"] == config)


# -- what people ask for, and the search ---------------------------------------------------------------------


def request(verb: str, config: str, **more: Any) -> Record:
    return {"event": "request", "verb": verb, "config": config, "answer": {"done": True}, **more}


def report(config: str, epoch: int, loss: float) -> Record:
    return {
        "event": "report", "config": config, "epoch": epoch, "metrics": {"loss": loss}, "elapsed": 0.0,
        "device_seconds": 0.0,
    }  # fmt: skip


def test_what_people_had_trained_before_a_rung_asks_for_it_counts_in_the_rung() -> None:
    trials = Trials(halving(), GOAL)
    rung = [trial.id for trial in trials.start()][:4]
    trials.replay_record(request("extend", rung[0], epochs=4))
    for epoch in (1, 2, 3, 4):
        trials.replay_record(report(rung[0], epoch, 0.5))
    for place, config in enumerate(rung[1:]):
        trials.replay_record(report(config, 1, 0.1 + place))
    assert trials[rung[1]].epochs == 2, "the two best go on, of which the other is there already"
    trials.replay_record(report(rung[1], 2, 0.1))
    assert trials[rung[1]].epochs == 4, "and the better of them to the end"
    assert trials[rung[2]].epochs == 1


def test_a_clone_that_the_search_asks_for_later_is_heard_of() -> None:
    values = [{"batch_size": 7, "lr": rate} for rate in (0.1, 0.2, 0.3)]
    for fails in (False, True):
        trials = Trials(search.asha(lr=[0.1, 0.2, 0.3], batch_size=[7], n=3, eta=3, at_once=1), GOAL)
        first = trials.start()[0]
        clones = [config_id(other) for other in values if config_id(other) != first.id]
        for clone, other in [(config_id(v), v) for v in values if config_id(v) in clones]:
            trials.replay_record(request("clone", first.id, values=other, warm=False, epochs=1, parent_epoch=None))
            line = {"event": "failed", "config": clone, "epoch": 1} if fails else report(clone, 1, 0.1)
            trials.replay_record(line)
        assert not any(trials[clone].search_epochs for clone in clones)
        trials.replay_record(report(first.id, 1, 0.5))
        assert all(trials[clone].search_epochs for clone in clones), "one after another, for none had to be waited for"
        assert sum(trial.epochs == 4 for trial in trials) == 1, "of three in a rung one goes on"


def asked(sweep: Sweep, *requests: dict[str, Any]) -> Run:
    """A run that finds requests in its folder when it begins."""
    folder = sweep._new_folder(Path(str(sweep.repo)) / "runs")
    (folder / "requests").mkdir()
    for number, request in enumerate(requests):
        (folder / "requests" / f"{number}.json").write_text(json.dumps(request))
    return Run(folder)


@pytest.mark.parametrize("visits", ["free", "seeded"])
def test_requests_by_hand_do_not_end_a_run(tmp_path: Path, visits: str) -> None:
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
    run = asked(sweep, *wrong)
    os.mkfifo(run.folder / "requests" / "pipe.json")
    sweep.train(run, progress=False)
    assert run.record.status == "done"
    assert len(run.record.requests) == len(wrong) + 1
    assert not any(request["answer"]["done"] for request in run.record.requests.values())
    assert list(run.record.configs) == [config]


# -- the door ------------------------------------------------------------------------------------------------


def slow_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    time.sleep(0.01)
    return plain_loss(weights, batch, config)


def test_a_guest_that_is_gone_before_it_is_refused(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    run = Sweep(
        data, search.grid(lr=[0.1], batch_size=[7]), plain_fn, loss_fn=slow_loss, repo=tmp_path, epochs=500,
        cluster=Cluster.inline(1), framework="numpy",
    ).launch(wait=False, progress=False)  # fmt: skip
    try:
        assert soon(lambda: (run.folder / "door.json").exists(), 30)
        for _ in range(3):
            connection = connect(run.folder)
            connection.send_bytes(b'{"kind": "worker"}')
            connection.close()
        config = next(iter(run.record.configs))
        assert ask(run.folder, "stop", config)["done"], "they were turned away before"
        run.result(timeout=60)
    finally:
        run.halt()


def test_whoever_comes_when_the_run_has_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, run_loop = [], EventLoop.run

    def run_and_be_visited(self: EventLoop, control: ControlServer) -> None:
        run_loop(self, control)
        for kind in ("request", "worker"):
            late.append(connect(self._settings.folder))
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


# -- functions that hang -------------------------------------------------------------------------------------


def stalled_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    time.sleep(600)


def deaf_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    """Hangs without letting any other thread of its process run."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def stalled(folder: Path, loss: Any, **options: Any) -> Sweep:
    return Sweep(
        small_data(folder / "data"), search.grid(lr=[0.1], batch_size=[7]), plain_fn, loss_fn=loss, repo=folder,
        name="stalled", cluster=Cluster.local(1, threads=1), framework="numpy", **options,
    )  # fmt: skip


def test_first_batches_that_hang_are_ended(tmp_path: Path) -> None:
    with pytest.raises(RegattaError, match=r"w0 was ended: its first batches took longer than 1\.0 seconds"):
        stalled(tmp_path, stalled_loss, unit_limit=0.1).launch(progress=False)


def test_a_background_run_is_halted_while_it_tries_its_first_batches(tmp_path: Path) -> None:
    run = stalled(tmp_path, stalled_loss).launch(wait=False, progress=False)
    assert soon(lambda: (run.folder / "journal.jsonl").exists(), 30)
    run.halt()
    with pytest.raises(KeyboardInterrupt):
        run.result(timeout=60)
    assert open_run("stalled", tmp_path).record.status == "interrupted"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not see to it")
def test_a_worker_that_hangs_goes_with_its_controller(tmp_path: Path) -> None:
    before = children(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            stalled(tmp_path, deaf_loss).launch(progress=False)
        finally:
            os._exit(0)
    journal, log = tmp_path / "runs" / "stalled" / "journal.jsonl", tmp_path / "runs" / "stalled" / "logs" / "w0.log"

    def workers() -> set[int]:
        """Forked by a server of the fork, or by one that it has in common with this process."""
        return children(child) | (children(os.getpid()) - before - {child})

    assert soon(lambda: journal.exists() and log.exists() and bool(workers()))
    found = workers()
    assert soon(lambda: any(cpu_seconds(worker) > 2.5 for worker in found)), "it is at it"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert soon(lambda: not any(is_running(worker) for worker in found))


# -- the same program ----------------------------------------------------------------------------------------

PROGRAM = """
import functools
WIDTH = 3
class Model:
    def __init__(self, width): self.width, self.cache = width, object()
    def __call__(self, config): return self.width * 2
    def build(self, config): return helper(config)
def helper(config): return 1 + WIDTH
def wrap(function):
    @functools.wraps(function)
    def inner(config): return function(config)
    return inner
def plain(config): return [helper(c) for c in [config]]
def keyword(config, *, scale=0.5): return scale
@wrap
def wrapped(config): return 7
def closed(width, other): return lambda config: (width, other)
functions = [plain, keyword, wrapped, Model(4), Model(4).build, Model, closed(2, (object(), plain)),
             functools.partial(keyword, scale=0.1), functools.partial(plain, object())]
"""


def codes(program: str) -> list[str]:
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    return [repr(describe_code(function)) for function in names["functions"]]


def test_the_same_functions_are_known_again() -> None:
    assert codes(PROGRAM) == codes(PROGRAM)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("WIDTH = 3", "WIDTH = 4", {0, 4, 5, 6, 8}),
        ("return 1 + WIDTH", "return 2 + WIDTH", {0, 4, 5, 6, 8}),
        ("scale=0.5", "scale=0.6", {1, 7}),
        ("return 7", "return 8", {2}),
        ("Model(4), Model", "Model(5), Model", {3}),
        ("self.width * 2", "self.width * 3", {3, 4, 5}),
        ("closed(2", "closed(3", {6}),
        ("scale=0.1", "scale=0.2", {7}),
    ],
)
def test_changed_functions_are_told_apart(before: str, after: str, changed: set[int]) -> None:
    pairs = enumerate(zip(codes(PROGRAM), codes(PROGRAM.replace(before, after)), strict=True))
    found = {place for place, (old, new) in pairs if old != new}
    assert found >= changed
    assert found <= changed | {3, 4, 5}, "an object is known by its class"


OWN = """
class Base:
    WIDTH = 3
    @staticmethod
    def scale(): return 5
class Model(Base):
    def build(self, config): return self.WIDTH
TABLE = {"wide": 7}
def helper(config): return 9
"""
USER = """
import own_helpers
from own_helpers import Model, helper
LAYERS = {"deep": 11}
def uses_class(config): return Model().build(config)
def uses_table(config): return LAYERS["deep"]
def uses_other(config): return own_helpers.helper(config) + own_helpers.TABLE["wide"]
functions = [uses_class, uses_table, uses_other]
"""


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("WIDTH = 3", "WIDTH = 4", {0}),
        ("return 5", "return 6", {0}),
        ('"wide": 7', '"wide": 8', {2}),
        ("return 9", "return 10", {2}),
        ('"deep": 11', '"deep": 12', {1}),
    ],
)
def test_what_functions_use_of_other_modules_and_tables_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, changed: set[int]
) -> None:
    def found(own: str, user: str) -> list[str]:
        monkeypatch.delitem(sys.modules, "own_helpers", raising=False)
        (tmp_path / "own_helpers.py").write_text(own)
        importlib.invalidate_caches()
        return codes(user)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, again = found(OWN, USER), found(OWN, USER)
    assert first == again
    pairs = enumerate(zip(first, found(OWN.replace(before, after), USER.replace(before, after)), strict=True))
    assert {place for place, (old, new) in pairs if old != new} == changed
    monkeypatch.delitem(sys.modules, "own_helpers", raising=False)
