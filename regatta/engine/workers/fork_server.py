"""The template of a fork server: imports what workers need, then forks them and reports their ends.

fork_client.py is the controller's side, and says how the two talk.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PID = struct.Struct("q")
STATUS = struct.Struct("i")
SIZE = struct.Struct("q")
MAX_FILES = 64  # of a request
_MODULES = (
    "cloudpickle",
    "threadpoolctl",
    "regatta.engine.sharing.preprocess_worker",
    "regatta.engine.sharing.preprocess",
    "regatta.engine.workers.worker_main",
    "regatta.engine.workers.training.trainer",
    "regatta.frameworks.numpy",
    "regatta.store.states.state_files",
)
_TORCH_MODULES = ("regatta.frameworks.torch.framework", "regatta.frameworks.jax.framework", "regatta.pack")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ForkRequest:
    """What a worker is started with, besides its open files."""

    main: str  # "module:function"
    threads: int
    path: Sequence[str]
    environment: Mapping[str, str]


def main(control: int, controller: int, preload: str) -> None:
    """Be a template until the controller ends; in each fork, be the worker that was asked for."""
    gc.disable()  # what is imported stays: to look for garbage in it takes a fifth of the time
    for name in (*_MODULES, *(_TORCH_MODULES if preload == "torch" else ())):
        importlib.import_module(name)
    if preload == "torch":
        import torch  # noqa: F401

        from regatta.engine.workers.training.trainer import warm_up

        warm_up()
    gc.freeze()
    _check_forkable()
    channel = _Template(socket.socket(fileno=control), controller).serve()
    _run_worker(channel)  # only a fork comes here


def _check_forkable() -> None:
    """Threads and a CUDA context do not survive a fork; a fork that does nothing shows whether there are any."""
    trial = os.fork()
    if trial == 0:
        torch = sys.modules.get("torch")
        os._exit(1 if torch is not None and torch.cuda._is_in_bad_fork() else 0)
    if os.waitpid(trial, 0)[1] != 0:
        raise SystemExit("CUDA is in use in the process that forks workers.")
    threads = os.listdir("/proc/self/task")  # without those of OpenBLAS, which it has ended before the fork
    if len(threads) > 1:
        raise SystemExit(f"The process that forks workers has {len(threads)} threads.")


class _Template:
    """Forks workers and reports their ends, in one thread."""

    def __init__(self, control: socket.socket, controller: int) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._controller = -1
        with contextlib.suppress(ProcessLookupError):  # it is dead, and the control socket will say so
            self._controller = os.pidfd_open(controller)
            self._poll.register(self._controller, select.POLLIN)
        self._workers: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
        self._channels: dict[int, int] = {}  # the process id of each channel

    def serve(self) -> socket.socket:
        """Returns only in a fork: the channel of the worker that it is to be."""
        while True:
            ready = {file for file, _ in self._poll.poll()}
            if self._controller in ready:
                self._end()
            for pidfd in ready & self._workers.keys():
                self._report(pidfd)
            for file in ready & self._channels.keys():  # nobody is at the other end any more
                self._poll.unregister(file)
                _kill_group(self._channels[file])
            if self._control.fileno() in ready:  # last: it opens files, whose numbers may be those of closed ones
                channel = self._answer()
                if channel is not None:
                    return channel

    def _answer(self) -> socket.socket | None:
        """Fork a worker; its channel, in the fork."""
        data, files, _, _ = socket.recv_fds(self._control, 1, 1)
        if not data:
            self._end()
        if not files:
            return None  # this process has no room for another file; the controller sees the end of its channel
        channel = socket.socket(fileno=files[0])
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no more processes, or no memory: only this start fails
            channel.close()
            return None
        if pid == 0:
            die_with_parent()
            if os.getppid() != template:
                os._exit(1)
            self._leave()
            return channel
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            channel.close()
            _kill_group(pid)
            os.waitpid(pid, 0)
            return None
        with contextlib.suppress(OSError):  # the controller has let go of it already
            socket.send_fds(channel, [PID.pack(pid)], [pidfd])
        self._workers[pidfd] = pid, channel
        self._channels[channel.fileno()] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._poll.register(channel, 0)  # the end of the stream alone: the worker reads from it
        return None

    def _report(self, pidfd: int) -> None:
        """A worker is dead: kill its group, while its process id is still its own, and say how it ended."""
        pid, channel = self._workers.pop(pidfd)
        _kill_group(pid)
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(OSError):
            channel.sendall(STATUS.pack(status))
        with contextlib.suppress(KeyError):
            self._poll.unregister(channel)
        self._poll.unregister(pidfd)
        del self._channels[channel.fileno()]
        channel.close()
        os.close(pidfd)

    def _leave(self) -> None:
        """A worker holds nothing of the template's."""
        self._control.close()
        if self._controller >= 0:
            os.close(self._controller)
        for pidfd, (_, channel) in self._workers.items():
            channel.close()
            os.close(pidfd)

    def _end(self) -> None:
        for pid, _ in self._workers.values():
            _kill_group(pid)
        os._exit(0)


def _run_worker(channel: socket.socket) -> None:
    """Set up this fork as a fresh interpreter would be, and run what it is to run."""
    os.setsid()
    header, files, _, _ = socket.recv_fds(channel, SIZE.size, MAX_FILES)
    if len(header) < SIZE.size:
        os._exit(1)  # the controller is gone
    request: ForkRequest = pickle.loads(receive(channel, *SIZE.unpack(header)))
    channel.close()
    folder, output, errors, *rest = files
    os.fchdir(folder)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for file in (folder, output, errors):
        os.close(file)
    for file in rest:
        os.set_inheritable(file, False)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:] = request.path
    importlib.invalidate_caches()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all workers would have the same random numbers
    if request.threads > 1:  # libraries that are loaded have read their limit, which was 1
        from threadpoolctl import ThreadpoolController

        ThreadpoolController().limit(limits=request.threads)
    gc.enable()
    module, _, function = request.main.partition(":")
    getattr(importlib.import_module(module), function)(*rest)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends: one that hangs in foreign code hears of nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_group(pid: int) -> None:
    """Kill a worker with all that its user's code has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not lead its group yet


def receive(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = channel.recv(size - len(data))
        if not more:
            raise EOFError("the other end is gone")
        data += more
    return data
