"""Starts a process of ours: as a fork of a process that has imported the framework, or as a fresh interpreter."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from regatta.engine.messages import Recipe
from regatta.engine.workers import fork_client
from regatta.engine.workers.fork_client import THREAD_LIMITS, ForkedProcess, ForkServerError
from regatta.engine.workers.fork_server import ForkRequest, die_with_parent

__all__ = ["StartedProcess", "die_with_parent", "exit_on_error", "expect_workers", "preload_for", "start_process"]

# With the paths of the controller and no others: a `random.py` in the present folder must not stand in for Python's.
_BOOT = """import sys
files, *sys.path = sys.argv[1:]
del sys.argv[1:]
from {0} import {1}
{1}(*map(int, files.split(",")))"""


class FreshProcess(subprocess.Popen[bytes]):
    """A fresh interpreter, which leads a group of its own."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(command, **options)
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1

    def fileno(self) -> int:
        """A file that can be read once the process is dead."""
        return self._pidfd

    def kill(self) -> None:
        """Kill the group, in which is all that its user's code starts."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of a process that has ended."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


StartedProcess: TypeAlias = FreshProcess | ForkedProcess


def start_process(
    main: str, files: Sequence[int], threads: int, log: Path | None = None, preload: str = "", path: Sequence[str] = ()
) -> StartedProcess:
    """Start a process that calls `main`, as "module:function", with these open files."""
    environment = _environment(threads)
    path = path or sys.path
    if log is None:  # it prints where this process does
        return _start_interpreter(main, files, environment, path)
    with log.open("ab") as output:
        try:
            streams = output.fileno(), output.fileno()
            request = ForkRequest(main, threads, tuple(path), environment)
            return fork_client.fork_worker(request, preload, [*streams, *files])
        except ForkServerError as error:
            output.write(f"Started as a new interpreter, because it could not be forked: {error}\n".encode())
            output.flush()
            return _start_interpreter(main, files, environment, path, stdout=output, stderr=output)


def _start_interpreter(
    main: str, files: Sequence[int], environment: Mapping[str, str], path: Sequence[str], **streams: Any
) -> StartedProcess:
    boot = _BOOT.format(*main.split(":"))
    return FreshProcess(
        [sys.executable, "-P", "-u", "-c", boot, ",".join(map(str, files)), *path],
        pass_fds=files,
        stdin=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the controller alone
        **streams,
    )


def expect_workers(recipe: Recipe | bytes) -> None:
    """Prepare in the background what lets local workers start at once, because a launch of these functions is near."""
    fork_client.expect_workers(_environment(threads=1), preload_for(recipe))


def preload_for(recipe: Recipe | bytes) -> str:
    """The framework that workers can be forked with: PyTorch, where the controller or the pickled functions have it."""
    if isinstance(recipe, bytes):
        wanted = b"torch" in recipe or "torch" in sys.modules
    else:
        wanted = recipe.framework == "torch" or (recipe.framework == "auto" and "torch" in sys.modules)
    return "torch" if wanted else ""  # TensorFlow and JAX start threads when they are imported


def _environment(threads: int) -> dict[str, str]:
    repeatable = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}  # else products on several streams of a GPU round differently
    return {**repeatable, **os.environ, **dict.fromkeys(THREAD_LIMITS, str(threads))}


def exit_on_error(body: Callable[..., None], *arguments: Any) -> None:
    """End the whole process when a part of it fails: a worker that hears or keeps nothing must not look alive."""
    try:
        body(*arguments)
    except BaseException:  # noqa: BLE001 (printed to the log; the controller notices the death)
        traceback.print_exc()
        os._exit(1)  # before the socket is closed: the reason of the end is this exit code
