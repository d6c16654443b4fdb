"""How users and joining workers reach the controller of a run, from any process of the same user.

The controller listens on a socket that only this user can open. `door.json` in the run's folder holds its address and a
key. A connection says in JSON that a request was written (see requests.py), or that a worker wants to join. Only a
worker that was admitted receives pickled messages, as the workers that the controller started do.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, TypeAlias

from regatta.engine.controller.requests import (
    MAX_REQUEST_BYTES,
    check_waiting,
    read_answer,
    read_requests,
    withdraw_request,
    write_request,
)
from regatta.engine.workers.base import refuse
from regatta.errors import NotFoundError
from regatta.journal.lock import is_live
from regatta.paths import CONTROL_ADDRESS

Socket: TypeAlias = "Connection[Any, Any]"
HELLO_TIMEOUT_S = 5.0  # for a new connection to say what it wants


@dataclass(frozen=True)
class RequestNotice:
    """A request was written. Its author waits until the connection is closed, which comes after the answer."""

    connection: Socket | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


@dataclass(frozen=True)
class JoiningWorker:
    connection: Socket
    wishes: dict[str, Any]

    def close(self) -> None:
        self.refuse("The run has ended.")

    def refuse(self, reason: str) -> None:
        refuse(self.connection, reason)


class ControlServer:
    """Accepts connections; the controller takes them with `next_caller`.

    One thread accepts, and each connection has a thread that hears it out: one that says nothing blocks no other.
    """

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        """`wake` is called from another thread when there is a caller."""
        self._folder = folder
        self._wake = wake
        self._callers: queue.SimpleQueue[RequestNotice | JoiningWorker] = queue.SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._listening = threading.Thread(target=self._listen, name="control server", daemon=True)
        self._socket_folder = tempfile.mkdtemp(prefix="regatta-")  # short: a socket's name has some 100 characters
        self._key = secrets.token_bytes(32)
        self._listener = Listener(os.path.join(self._socket_folder, "door"), family="AF_UNIX")
        address = {"address": self._listener.address, "key": self._key.hex(), "path": sys.path, "pid": os.getpid()}
        path = folder / CONTROL_ADDRESS
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(address))

    def __enter__(self) -> ControlServer:
        self._listening.start()
        if read_requests(self._folder):
            self._callers.put(RequestNotice())
            self._wake()
        return self

    def __exit__(self, *error: object) -> None:
        with self._closing:  # no caller is added any more
            self._closed = True
        try:
            (self._folder / CONTROL_ADDRESS).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # wakes the thread, which waits for a connection
                Client(str(self._listener.address), family="AF_UNIX").close()
                self._listening.join()
            self._listener.close()
            shutil.rmtree(self._socket_folder, ignore_errors=True)
        finally:
            while (caller := self.next_caller()) is not None:
                caller.close()  # it came too late and must not wait; its request waits for the next controller

    def next_caller(self) -> RequestNotice | JoiningWorker | None:
        with contextlib.suppress(queue.Empty):
            return self._callers.get_nowait()
        return None

    def _listen(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):  # the caller went away
                self._greet(self._listener.accept())

    def _greet(self, connection: Socket) -> None:
        if self._closed:
            connection.close()
        else:
            threading.Thread(target=self._hear, args=(connection,), name="caller", daemon=True).start()

    def _hear(self, connection: Socket) -> None:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            hello = connection.recv_bytes(MAX_REQUEST_BYTES) if connection.poll(HELLO_TIMEOUT_S) else b"null"
            wishes: Any = json.loads(hello)
        except (OSError, EOFError, AuthenticationError, ValueError, RecursionError):
            connection.close()  # it has no key, or went away
            return
        joins = isinstance(wishes, dict) and wishes.get("kind") == "worker"
        self._announce(JoiningWorker(connection, wishes) if joins else RequestNotice(connection))

    def _announce(self, caller: RequestNotice | JoiningWorker) -> None:
        with self._closing:
            if not self._closed:
                self._callers.put(caller)
                self._wake()
                return
        caller.close()


# -- the client's side -------------------------------------------------------------------------------------


def ask(folder: Path, verb: str, config: str, **arguments: Any) -> dict[str, Any]:
    """Write a request and wait for the answer; where no controller is running, the request waits for one.

    A request that the next controller would refuse is refused now, and does not wait.
    """
    folder, request = folder.absolute(), {"verb": verb, "config": config, **arguments}
    if not is_live(folder):
        expected = check_waiting(folder, request)
        if not expected["done"]:
            return expected
    request_id = write_request(folder, request)
    with contextlib.suppress(OSError, EOFError, NotFoundError), connect(folder) as connection:
        connection.send_bytes(b'{"kind": "request"}')
        connection.recv_bytes()  # the end of the stream, after the answer was written
    answer = read_answer(folder, request_id)
    if answer is not None:
        return answer
    if is_live(folder):
        return {"done": False, "waits": True, "text": "Saved. It will be done when the run starts to train"}
    expected = check_waiting(folder, request, but=request_id)
    if not expected["done"]:  # the run has ended meanwhile
        withdraw_request(folder, request_id)
        return expected
    text = f"Saved. When the run is resumed, {expected['text']}: regatta resume {folder.name}"
    return {**expected, "done": False, "waits": True, "text": text}


def count_waiting(folder: Path) -> int:
    """How many requests wait for the next controller."""
    return 0 if is_live(folder) else len(read_requests(folder))


def connect(folder: Path) -> Socket:
    address = read_address(folder)
    try:
        return Client(address["address"], family="AF_UNIX", authkey=bytes.fromhex(address["key"]))
    except (FileNotFoundError, ConnectionError, AuthenticationError) as error:
        raise _no_controller(folder) from error


def read_address(folder: Path) -> dict[str, Any]:
    """Where the controller of a run listens, its key, and its module search path."""
    try:
        address: dict[str, Any] = json.loads((folder / CONTROL_ADDRESS).read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise _no_controller(folder) from error
    return address


def _no_controller(folder: Path) -> NotFoundError:
    hint = f"Resume it: regatta resume {folder.name}"
    return NotFoundError(f"Run {folder.name} is not running on this machine.", hint=hint)
