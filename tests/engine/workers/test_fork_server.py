"""Workers that are forked: as fresh as a new interpreter, and gone when their controller or their template is."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import fork_servers, is_running, soon
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Sweep, search
from regatta.engine.workers import fork_client
from regatta.engine.workers.start_process import StartedProcess, expect_workers, start_process

pytestmark = pytest.mark.skipif(not fork_client.is_supported(), reason="there is no fork server on this system")

PROBE = """
import json, os, sys, time

def facts(file):
    import numpy
    torch = sys.modules.get("torch")
    found = {
        "answer": ANSWER, "folder": os.getcwd(), "path": sys.path, "argv": sys.argv,
        "environment": dict(os.environ), "modules": sorted(sys.modules), "draw": float(numpy.random.random()),
        "leads": os.getpgid(0) == os.getpid(), "files": sorted(map(int, os.listdir("/proc/self/fd"))),
        "threads": len(os.listdir("/proc/self/task")), "cuda": bool(torch and torch.cuda.is_initialized()),
        "bad_fork": bool(torch and torch.cuda._is_in_bad_fork()),
    }
    os.write(file, json.dumps(found).encode())

def product(file):
    import numpy, torch
    before = len(os.listdir("/proc/self/task"))
    torch.manual_seed(0)
    x = torch.randn(700, 900)
    net = torch.nn.Sequential(torch.nn.Linear(900, 800), torch.nn.Tanh(), torch.nn.Linear(800, 10))
    net(x).square().mean().backward()
    gradients = [p.grad.numpy().tobytes().hex()[:4000] for p in net.parameters()]
    matrix = numpy.random.RandomState(0).rand(600, 600)
    found = {"threads": torch.get_num_threads(), "started": len(os.listdir("/proc/self/task")) - before,
             "gradients": gradients, "sum": (matrix @ matrix).tobytes().hex()[:4000]}
    os.write(file, json.dumps(found).encode())

def exits(file):
    print("says something", flush=True)
    sys.exit(7)

def waits(file):
    os.write(file, b"1")
    time.sleep(600)
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    monkeypatch.syspath_prepend(tmp_path)
    found = Probe(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()
        process.close()


class Probe:
    """Processes that say what they are like."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.processes = folder, folder / "log", list[StartedProcess]()
        self.name = f"probe_{folder.name}"
        self.write(1)

    def write(self, answer: int) -> None:
        (self.folder / f"{self.name}.py").write_text(f"ANSWER = {answer}\n{PROBE}")

    def start(self, function: str, preload: str = "torch", threads: int = 1) -> tuple[StartedProcess, int]:
        read, write = os.pipe()
        try:
            process = start_process(f"{self.name}:{function}", [write], threads, self.log, preload)
        finally:
            os.close(write)
        self.processes.append(process)
        return process, read

    def ask(self, function: str, preload: str = "torch", threads: int = 1) -> dict[str, Any]:
        process, read = self.start(function, preload, threads)
        with open(read, "rb") as file:
            text = file.read()
        assert process.wait() == 0, self.log.read_text()
        found: dict[str, Any] = json.loads(text)
        return found


def test_a_worker_has_what_its_controller_has_when_it_is_started(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe.ask("facts")  # the template is there
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setenv("REGATTA_PROBE", "new")
    found = probe.ask("facts", threads=3)
    assert found["folder"] == str(tmp_path / "here")
    assert found["path"] == sys.path
    assert found["argv"] == ["-c"]
    assert found["environment"]["COLUMNS"] == "77"
    assert found["environment"]["REGATTA_PROBE"] == "new"
    assert found["environment"]["OMP_NUM_THREADS"] == "3"
    assert found["leads"], "a process group of its own"


def test_a_template_has_the_framework_and_nothing_of_the_user(probe: Probe) -> None:
    found = probe.ask("facts")
    assert "torch._dynamo" in found["modules"], "a first optimizer need not import it"
    assert "recipes" not in found["modules"] and "conftest" not in found["modules"]
    assert not {"tensorflow", "jax", "ray"} & set(found["modules"])
    assert not found["cuda"] and not found["bad_fork"]
    assert found["threads"] == 1
    assert len(found["files"]) <= 5, "0, 1, 2, the argument, and the folder that is listed"
    assert "torch" not in probe.ask("facts", preload="")["modules"]


def test_user_code_that_changed_is_new_in_the_next_worker(probe: Probe) -> None:
    assert probe.ask("facts")["answer"] == 1
    probe.write(22)
    assert probe.ask("facts")["answer"] == 22


def test_workers_draw_different_numbers(probe: Probe) -> None:
    assert probe.ask("facts")["draw"] != probe.ask("facts")["draw"]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_as_many_and_compute_the_same_as_in_a_fresh_interpreter(
    probe: Probe, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = probe.ask("product", threads=threads)
    monkeypatch.setattr(fork_client, "is_supported", lambda: False)
    fresh = probe.ask("product", threads=threads)
    assert forked["threads"] == fresh["threads"] == threads
    assert (forked["started"] > 0) == (threads > 1)
    assert forked["gradients"] == fresh["gradients"]
    assert forked["sum"] == fresh["sum"]


def test_how_a_worker_ended_is_known(probe: Probe) -> None:
    process, read = probe.start("exits")
    os.close(read)
    assert process.wait() == process.returncode == 7
    assert "says something" in probe.log.read_text()
    process, read = probe.start("waits")
    assert os.read(read, 1) == b"1"
    assert process.returncode is None and is_running(process.pid)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    os.close(read)


def test_a_worker_that_nobody_holds_is_killed(probe: Probe) -> None:
    process, read = probe.start("waits")
    assert os.read(read, 1) == b"1"
    process.close()
    assert soon(lambda: not is_running(process.pid))
    os.close(read)
    probe.processes.clear()


def test_a_template_that_is_killed_takes_its_workers_along_and_is_replaced(probe: Probe) -> None:
    process, read = probe.start("waits")
    assert os.read(read, 1) == b"1"
    for server in fork_servers(os.getpid()):
        os.kill(server, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert soon(lambda: not is_running(process.pid))
    os.close(read)
    assert probe.ask("facts")["answer"] == 1
    assert "new interpreter" not in probe.log.read_text()


def test_a_template_that_a_signal_stops_is_replaced(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller waits for a start, or for the end of a worker, and the template would never answer."""
    monkeypatch.setattr(fork_client, "MAX_STOPPED_S", 0.2)
    process, read = probe.start("waits")
    assert os.read(read, 1) == b"1"
    os.close(read)
    server = _parent(process.pid)
    os.kill(server, signal.SIGSTOP)
    try:
        process.kill()
        ends: list[int] = []
        threading.Thread(target=lambda: ends.append(process.wait()), daemon=True).start()
        assert soon(lambda: ends == [-signal.SIGKILL])
        assert probe.ask("facts")["answer"] == 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)
    (server,) = fork_servers(os.getpid())
    os.kill(server, signal.SIGSTOP)
    try:
        starts: list[Any] = []
        threading.Thread(target=lambda: starts.append(probe.ask("facts")["answer"]), daemon=True).start()
        assert soon(lambda: starts == [1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)


def test_without_a_template_there_are_fresh_interpreters(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "_BOOT", "raise SystemExit('no template today')")
    monkeypatch.setenv("REGATTA_PROBE", "another template")
    for _ in range(3):
        assert probe.ask("facts", preload="")["answer"] == 1
    lines = probe.log.read_text().splitlines()
    assert lines[0] == "Started as a new interpreter, because it could not be forked: no template today"
    assert lines[-1].endswith("the process that forks workers has failed before")


def test_a_fork_of_the_controller_uses_its_template(probe: Probe) -> None:
    probe.ask("facts")
    before = fork_servers(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            done = probe.ask("facts")["answer"] == 1 and not fork_servers(os.getpid())
            os._exit(0 if done else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fork_servers(os.getpid()) == before


def test_a_run_goes_on_when_the_template_is_killed(tmp_path: Path) -> None:
    space = search.grid(batch_size=[5], epoch_steps=[10, 11])
    sweep = Sweep(
        small_data(tmp_path / "data"), space, model_fn, loss_fn=loss_fn, epochs=30,
        cluster=Cluster.local(2, threads=1), repo=tmp_path, name="killed",
    )  # fmt: skip
    run = sweep.launch(wait=False, progress=False)
    assert soon(lambda: len(run.record.units) > 3)
    for server in fork_servers(os.getpid()):
        os.kill(server, signal.SIGKILL)
    assert run.result(timeout=300).record.status == "done"
    counted = [(u.kind, u.config, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot"]
    assert len(counted) == len(set(counted)), "no unit counts twice"


PROGRAM = """
import os, sys, time
from pathlib import Path
from regatta.engine.workers.start_process import expect_workers, start_process
sys.path.insert(0, sys.argv[1])
expect_workers(b"torch")
read, write = os.pipe()
if sys.argv[3] == "ready":
    process = start_process(sys.argv[2] + ":waits", [write], 1, Path(sys.argv[1]) / "log", "torch")
    os.read(read, 1)
    print(process.pid, flush=True)
else:
    print(0, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("moment", ["ready", "importing"])
def test_nothing_outlives_a_controller_that_is_killed(probe: Probe, moment: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(probe.folder), probe.name, moment]
    controller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    worker = int(controller.stdout.readline())
    assert soon(lambda: bool(fork_servers(controller.pid)))
    servers = fork_servers(controller.pid)
    controller.kill()
    controller.wait()
    controller.stdout.close()
    assert soon(lambda: not any(map(is_running, servers)) and not (worker and is_running(worker)))


def test_a_program_that_ends_leaves_no_template_and_does_not_wait_for_it(tmp_path: Path) -> None:
    text = "from regatta.engine.workers.start_process import expect_workers\nexpect_workers(b'torch')\n"
    text += f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2] / 'helpers')!r})\n"
    text += "import os\nfrom processes import fork_servers\nprint(*fork_servers(os.getpid()))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=True)
    assert not done.stderr
    assert not any(is_running(int(pid)) for pid in done.stdout.split())


def test_a_program_that_is_about_to_train_starts_the_template() -> None:
    text = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "helpers")!r})
from processes import fork_servers, soon
import regatta
regatta.Dataset
assert not fork_servers(os.getpid()), "without PyTorch"
import torch
regatta.Repo
assert not fork_servers(os.getpid()), "another name"
exec("regatta.Dataset", {{"regatta": regatta}})
assert not fork_servers(os.getpid()), "a library"
from regatta import Cluster
assert soon(lambda: len(fork_servers(os.getpid())) == 1), "the program"
"""
    subprocess.run([sys.executable, "-c", text], timeout=300, check=True)


def test_expecting_workers_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGATTA_PROBE", "yet another template")
    begin = time.monotonic()
    expect_workers(b"")
    assert time.monotonic() - begin < 30


def test_a_failed_start_leaves_other_workers_alone(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller, or the template, has no room for another file: a new interpreter is started instead."""
    first, read = probe.start("waits")
    assert os.read(read, 1) == b"1"
    os.close(read)
    server = _parent(first.pid)
    assert server in fork_servers(os.getpid())
    files = Path(f"/proc/{server}/fd")
    held = len(list(files.iterdir()))
    open_file = os.open
    with monkeypatch.context() as patch:
        refused = iter([True])

        def refuse_once(path: Any, *arguments: Any, **options: Any) -> int:
            if path == "." and next(refused, False):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return open_file(path, *arguments, **options)

        patch.setattr(fork_client.os, "open", refuse_once)
        assert probe.ask("facts")["answer"] == 1
    assert soon(lambda: len(list(files.iterdir())) == held), "the template has forgotten the start that failed"
    # Room for what it waits for, which leaves out its standard files, and for nothing else.
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (held - 2, limits[1]))
    assert probe.ask("facts")["answer"] == 1
    assert "it could not be forked" in probe.log.read_text()
    resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
    later, _ = probe.start("waits")
    assert _parent(later.pid) == server
    assert is_running(first.pid)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_template_that_cannot_be_started_is_not_needed(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("REGATTA_PROBE", "another template")
    with monkeypatch.context() as patch:
        patch.setattr(fork_client.tempfile, "TemporaryFile", refuse)
        assert probe.ask("facts")["answer"] == 1
    assert "No space left" in probe.log.read_text()
