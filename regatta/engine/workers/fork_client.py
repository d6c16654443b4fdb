"""A process that has imported what workers need, and forks each worker in milliseconds instead of seconds.

A fork of the controller itself would be unsafe: it may have threads, pools of OpenMP, a CUDA context, and it has the
state of the user's modules. So workers are forked from a template, a process of their own that imports the framework
and nothing of the user's, computes nothing, never touches CUDA and has one thread. The controller keeps it for later
workers with the same environment and limits, because libraries read these when they are loaded.

For each worker there is a channel, a pair of sockets. The controller writes the request into it, the new worker reads
it. The template answers with the worker's process id and pidfd, and later with the status of its end. When the
controller's end of a channel closes, or the controller dies, the template kills the worker's process group. When the
template dies, the kernel kills its workers. fork_server.py is the template's side.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

from regatta.engine.workers.fork_server import PID, SIZE, STATUS, ForkRequest, receive

START_TIMEOUT_S = 120.0  # for a template to import everything, on a busy machine
MAX_STOPPED_S = 10.0  # of a template that a signal has stopped, while the controller waits for it
MAX_SERVERS = 2  # templates that are kept, for the settings used last
MAX_START_ATTEMPTS = 2  # of a template that dies before it forks anything
# Variables that change all the time and that no library of a template reads when it is loaded; scikit-learn sets those
# of KMP when it is imported, for Intel's OpenMP.
_VOLATILE = {
    *("_", "COLUMNS", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "LINES", "OLDPWD", "PWD"),
    *("PYTEST_CURRENT_TEST", "SHLVL"),
}
_BOOT = """import sys
control, controller, preload, *sys.path = sys.argv[1:]
del sys.argv[1:]
from regatta.engine.workers.fork_server import main
main(int(control), int(controller), preload)"""
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ForkServerError(Exception):
    """A template cannot start workers; a fresh interpreter can."""


class ForkedProcess:
    """The controller's handle of a worker: as much of `subprocess.Popen` as is needed."""

    def __init__(self, server: _Server, channel: socket.socket, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server, self._channel, self._pidfd = server, channel, pidfd

    def fileno(self) -> int:
        """Can be read once the process is dead."""
        return self._channel.fileno()

    def kill(self) -> None:
        """Kill the process; the template then kills the rest of its group."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end of the process. By then the template has killed its process group."""
        if self.returncode is None:
            self._server.await_answer(self._channel)
            try:
                self.returncode = os.waitstatus_to_exitcode(STATUS.unpack(receive(self._channel, STATUS.size))[0])
            except (EOFError, ConnectionResetError):  # the template is dead, and the kernel has killed the worker
                self.returncode = -signal.SIGKILL
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
        return self.returncode

    def close(self) -> None:
        """Let go of it; a process that still runs is killed."""
        if self._pidfd >= 0:
            self._channel.close()
            os.close(self._pidfd)
            self._pidfd = -1
            self._server.release()


def is_supported() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def is_stopped(pid: int, by: str = "Tt") -> bool:
    """Whether a process was stopped, so that it cannot do its work: by a signal (T) or by a debugger (t)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in by
    return False


def expect_workers(environment: Mapping[str, str], preload: str) -> None:
    """Start the template for such workers now, in the background: they will soon be wanted."""
    if is_supported():
        with contextlib.suppress(ForkServerError, OSError):
            _find_server(environment, preload)


def fork_worker(request: ForkRequest, preload: str, files: Sequence[int]) -> ForkedProcess:
    """Fork a process that runs `request.main`; `files` are its standard output, standard error and arguments."""
    if not is_supported():
        raise ForkServerError("this system has no pidfd")
    while True:
        try:
            server = _find_server(request.environment, preload, reserve=True)
        except OSError as error:
            raise ForkServerError(str(error)) from error
        try:
            return server.fork(request, files)
        except (OSError, EOFError) as error:
            server.release()
            if server.is_running() and server.processes:  # to end it would kill the workers that it has forked
                raise ForkServerError(f"{type(error).__name__}: {error}") from error
            output = server.close()
            if not server.answered:
                raise ForkServerError(output or f"{type(error).__name__}: {error}") from error
            # It worked before and was killed: the next one is as good.


# What a process gets when it starts and cannot get later: modules, environment, limits.
_Key: TypeAlias = tuple[str, frozenset[tuple[str, str]], tuple[Any, ...]]


class _Server:
    """A template process."""

    def __init__(self, environment: Mapping[str, str], preload: str) -> None:
        self.answered = False
        self.processes = 0  # forked or about to be, and not yet closed; changed under the lock of all servers
        self._owner = os.getpid()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (read when the template has failed)
        self._control, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), str(os.getpid()), preload, *sys.path]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", _BOOT, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**environment, **dict.fromkeys(THREAD_LIMITS, "1")},  # no pool of threads comes into being
                start_new_session=True,  # Ctrl-C is for the controller alone
            )
        except BaseException:
            self._output.close()
            self._control.close()
            raise
        finally:
            theirs.close()

    def release(self) -> None:
        with _servers_lock:
            self.processes -= 1

    def is_running(self) -> bool:
        """Whether the other end of the control socket is open; the template never writes to it."""
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def fork(self, request: ForkRequest, files: Sequence[int]) -> ForkedProcess:
        channel, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            channel.settimeout(START_TIMEOUT_S)
            folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
            try:
                message = pickle.dumps(request)
                socket.send_fds(channel, [SIZE.pack(len(message))], [folder, *files])
                channel.sendall(message)
            finally:
                os.close(folder)
            self.await_answer(channel, START_TIMEOUT_S)
            answer, pidfds, _, _ = socket.recv_fds(channel, PID.size, 1)
            if len(answer) < PID.size:
                raise EOFError("it ended before it answered")
            if not pidfds:
                raise OSError(errno.EMFILE, "the controller has too many open files")
            channel.settimeout(None)
        except BaseException:
            channel.close()
            raise
        os.set_inheritable(pidfds[0], False)
        self.answered = True
        return ForkedProcess(self, channel, PID.unpack(answer)[0], pidfds[0])

    def await_answer(self, channel: socket.socket, timeout: float = math.inf) -> None:
        """Wait for an answer, or for the end of the template: if a signal has stopped it for too long, it is killed."""
        begin, stopped_since = time.monotonic(), None
        while not wait([channel], MAX_STOPPED_S / 4) and time.monotonic() < begin + timeout:
            if not is_stopped(self.process.pid):
                stopped_since = None
            elif stopped_since is None:
                stopped_since = time.monotonic()
            elif time.monotonic() - stopped_since >= MAX_STOPPED_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.process.pid, signal.SIGKILL)  # with it end the workers that it has forked

    def close(self) -> str:
        """End the template, and with it what it has forked; what it printed."""
        self._control.close()
        if self._owner == os.getpid():  # a fork of the controller only lets go of it
            self.process.kill()
            self.process.wait()
        try:
            with self._output as output:
                output.seek(0)
                return output.read().decode(errors="replace").strip()
        except ValueError:  # another thread has closed it
            return ""


_servers: dict[_Key, _Server] = {}  # in the order of their last use
_failures: Counter[_Key] = Counter()  # templates that ended before they forked anything
_servers_lock = threading.Lock()


def _find_server(environment: Mapping[str, str], preload: str, reserve: bool = False) -> _Server:
    """The template for such workers, which is started if there is none; `reserve` counts the one that it will fork."""
    changing = {*_VOLATILE, *THREAD_LIMITS}
    stable = frozenset((name, value) for name, value in environment.items() if name not in changing)
    key = preload, stable, _inherited_limits()
    with _servers_lock:
        server = _servers.pop(key, None)
        if server is not None and not server.is_running():
            _failures[key] += not server.answered
            server.close()
            server = None
        if server is None:
            if _failures[key] >= MAX_START_ATTEMPTS:
                raise ForkServerError("the process that forks workers has failed before")
            server = _Server(environment, preload)
        _servers[key] = server
        server.processes += reserve
        for old in [old for old, idle in _servers.items() if not idle.processes][:-MAX_SERVERS]:
            _servers.pop(old).close()
        return server


def _close_servers() -> None:
    for server in _servers.values():
        server.close()


def _after_fork() -> None:
    """A fork of the controller may use its templates, which watch over each worker by its channel."""
    global _servers_lock
    _servers_lock = threading.Lock()
    for server in _servers.values():
        server.process.returncode = 0  # it is not a child of this process


atexit.register(_close_servers)
os.register_at_fork(after_in_child=_after_fork)


def _inherited_limits() -> tuple[Any, ...]:
    """What a process inherits besides its environment, and what therefore has to be the template's, too."""
    import resource

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = tuple(resource.getrlimit(getattr(resource, name)) for name in names)
    status = Path("/proc/self/status").read_text()
    umask = next((line for line in status.splitlines() if line.startswith("Umask")), "")
    return limits, umask, tuple(sorted(os.sched_getaffinity(0))), os.getpriority(os.PRIO_PROCESS, 0)
