"""Units that hang, and disks that are full."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from locations import HELPERS
from processes import children, cpu_seconds, is_running, soon
from recipes import eval_fn, loss_fn, model_fn, plain_fn, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.configuration import config_id
from regatta.engine.controller import watchdog
from regatta.engine.workers.training import trainer
from regatta.errors import DiskError, RegattaError
from regatta.journal.journal_file import Journal

SIZE = {"batch_size": 5}


def launched(folder: Path, *configs: dict[str, Any], **options: Any) -> Run:
    data, space = small_data(folder / "data"), search.configs(configs)
    sweep = Sweep(data, space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, repo=folder, **options)
    return sweep.launch(wait=False, progress=False)


# -- functions that hang -------------------------------------------------------------------------------------


def test_a_worker_whose_unit_hangs_is_ended(tmp_path: Path) -> None:
    stalls = {"batch_size": 5, "epoch_steps": 10, "fails": "stall"}
    run = launched(tmp_path, SIZE, stalls, epochs=3, unit_limit=1.5, cluster=Cluster.local(2, threads=1))
    run.result(timeout=300)
    assert run.find(SIZE).status == "done"
    assert run.find(stalls).status == "failed"
    assert "took longer than 1.5 seconds" in str(run.find(stalls).error)


def stalled_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    time.sleep(600)


def blocking_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    """Hangs without letting any other thread of its process run."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def stalled(folder: Path, loss: Any, **options: Any) -> Sweep:
    return Sweep(
        small_data(folder / "data"), search.grid(lr=[0.1], batch_size=[7]), plain_fn, loss_fn=loss, repo=folder,
        name="stalled", cluster=Cluster.local(1, threads=1), framework="numpy", **options,
    )  # fmt: skip


def test_profiling_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(RegattaError, match=r"w0 was ended: its first batches took longer than 1\.0 seconds"):
        stalled(tmp_path, stalled_loss, unit_limit=0.1).launch(progress=False)


def test_a_background_run_is_halted_while_it_profiles(tmp_path: Path) -> None:
    run = stalled(tmp_path, stalled_loss).launch(wait=False, progress=False)
    assert soon(lambda: (run.folder / "journal.jsonl").exists())
    run.halt()
    with pytest.raises(KeyboardInterrupt):
        run.result(timeout=300)
    assert open_run("stalled", tmp_path).record.status == "interrupted"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not see to it")
def test_a_worker_that_hangs_ends_with_its_controller(tmp_path: Path) -> None:
    before = children(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            stalled(tmp_path, blocking_loss).launch(progress=False)
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


# -- full disks ----------------------------------------------------------------------------------------------


def test_a_full_disk_pauses_the_run(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        _check_pause(disk)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def _check_pause(disk: Path) -> None:
    config = {**SIZE, "sleeps": 0.03, "lr": 0.01, "kind": "adam"}
    run = launched(disk, config, epochs=4, cluster=Cluster.local(1, threads=1), name="filled")

    def has_an_epoch() -> bool:
        found = run.record.configs.get(config_id(config))
        return found is not None and found.epoch >= 1

    try:
        assert soon(has_an_epoch)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        assert soon(lambda: any("Paused" in text for _, text in run.record.notes))
        assert not run.done()
        ballast.unlink()
        run.result(timeout=300)
    finally:
        run.halt()
    assert run.find(config).status == "done"
    assert open_run("filled", disk).replay().ok


def test_a_run_can_be_halted_while_its_journal_finds_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, append = threading.Event(), Journal.append

    def append_if_there_is_room(self: Journal, event: str, *then: Any, **fields: Any) -> Any:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(self, event, *then, **fields)

    monkeypatch.setattr(Journal, "append", append_if_there_is_room)
    monkeypatch.setattr(watchdog, "has_room", lambda folder, size: not full.is_set())
    run = launched(tmp_path, {**SIZE, "sleeps": 0.02}, epochs=300, cluster=Cluster.inline(1), name="halted")
    assert soon(lambda: len(run.record.units) > 2)
    full.set()
    assert soon(lambda: any("the journal cannot be written" in text for _, text in run.record.notes))
    halting = threading.Thread(target=run.halt, daemon=True)
    halting.start()
    try:
        assert soon(lambda: not halting.is_alive())
    finally:
        full.clear()
    with pytest.raises(KeyboardInterrupt):
        run.result(timeout=300)
    assert open_run("halted", tmp_path).record.status == "interrupted"


def test_a_disk_that_takes_no_states_ends_the_run_and_fails_no_configuration(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        textwrap.dedent(f"""
        import resource, sys
        sys.path[:0] = {[str(HELPERS)]!r}
        from recipes import eval_fn, loss_fn, model_fn, small_data
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


def test_a_state_that_cannot_be_written_fails_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiling finds room for its states, and units do not, though the disk seems to have room again each time."""
    publishing = trainer.publishing

    def publishing_without_room(path: Path) -> AbstractContextManager[Path]:
        if "states" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return publishing(path)

    monkeypatch.setattr(trainer, "publishing", publishing_without_room)
    monkeypatch.setattr(watchdog, "DISK_POLL_S", 0.01)
    with pytest.raises(DiskError, match="The state cannot be written"):
        launched(tmp_path, SIZE, cluster=Cluster.inline(2), name="full").result(timeout=300)
    run = open_run("full", tmp_path)
    assert (run.record.status, run.find(SIZE).error) == ("failed", None)
    assert sum(unit.kind == "pilot" for unit in run.record.units) == 1
