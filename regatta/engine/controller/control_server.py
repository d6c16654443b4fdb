"""How people, and workers that want to join, reach a run while it goes on, from any process of the same user.

What people ask for is a file in the run's folder, so that it outlives both sides; the answer is another. A knock at the
door of the controller, a socket that only this user can open, says that there is something to read. Where no
controller is at work, requests wait for the next one.

    requests/<id>.json           verb, config, and what the verb needs
    requests/<id>.answer.json    done, text, config
    door.json                    where the controller listens, and the key

Everything here is JSON. Only a worker that was let in speaks otherwise: like those that the controller has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeAlias

from regatta.configuration import check_configuration, config_id
from regatta.durable import replacing
from regatta.engine.workers.base import refuse
from regatta.errors import NotFoundError, RegattaError, UsageError, nearest
from regatta.journal.lock import is_live
from regatta.journal.record import ConfigRecord, RunRecord
from regatta.paths import ANSWER_SUFFIX, CONTROL_ADDRESS, run_journal, run_requests

Request: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]
Socket: TypeAlias = "Connection[Any, Any]"
VERBS = ("stop", "resume", "extend", "clone")
LARGEST = 1 << 16  # bytes of a request
MOST_EPOCHS = 100_000  # that one may ask for
HELLO_TIMEOUT_S = 5.0  # seconds that whoever comes has to say what for


@dataclass(frozen=True)
class RequestNotice:
    """Somebody has left a request, and waits at the door until it is answered."""

    connection: Socket | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


@dataclass(frozen=True)
class JoiningWorker:
    """A worker that wants to join."""

    connection: Socket
    wishes: dict[str, Any]

    def close(self) -> None:
        refuse(self.connection, "The run has ended.")


class ControlServer:
    """The controller's side."""

    def __init__(self, folder: Path, call: Callable[[RequestNotice | JoiningWorker], None]) -> None:
        self._folder = folder
        self._call = call

    def __enter__(self) -> ControlServer:
        self._place = tempfile.mkdtemp(prefix="regatta-")  # short: a socket's name may have some 100 characters
        key = secrets.token_bytes(32)
        self._listener = Listener(os.path.join(self._place, "door"), family="AF_UNIX", authkey=key)
        self._closed = False
        self._closing = threading.Lock()
        door = {"address": self._listener.address, "key": key.hex(), "path": sys.path, "pid": os.getpid()}
        _write_private(self._folder / CONTROL_ADDRESS, json.dumps(door))
        threading.Thread(target=self._listen, name="door", daemon=True).start()
        if self.requests():
            self._call(RequestNotice())
        return self

    def __exit__(self, *error: object) -> None:
        with self._closing:  # from here on nobody is called any more
            self._closed = True
        (self._folder / CONTROL_ADDRESS).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # wakes the thread, which waits for somebody to come
            Client(str(self._listener.address), family="AF_UNIX").close()
        self._listener.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def requests(self) -> list[Request]:
        """What people asked for and was not answered, oldest first."""
        folder = run_requests(self._folder)
        paths = sorted(path for path in folder.glob("*.json") if not path.name.endswith(ANSWER_SUFFIX))
        return [_read(path) for path in paths if not _answer_path(folder, path.stem).exists()]

    def answer(self, request: str, answer: Answer) -> None:
        _write_durable(_answer_path(run_requests(self._folder), request), json.dumps(answer))

    def judge(self, request: Request, record: RunRecord, ending: bool) -> tuple[Request, Answer]:
        """Whether a request can be done, with all that doing it takes, and what to say of it."""
        try:
            if ending:
                raise UsageError("The run is coming to a halt.", hint="Ask again once it goes on.")
            return _judged(request, record)
        except RegattaError as error:
            asked = {name: str(request.get(name))[:80] for name in ("id", "verb", "config")}
            return asked, {"done": False, "text": str(error)}

    def _listen(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                continue  # whoever it was has no key, or went away again
            try:
                wishes: Any = json.loads(connection.recv_bytes(LARGEST)) if connection.poll(HELLO_TIMEOUT_S) else None
            except (OSError, EOFError, ValueError, RecursionError):
                connection.close()
                continue
            joins = isinstance(wishes, dict) and wishes.get("kind") == "worker"
            self._announce(JoiningWorker(connection, wishes) if joins else RequestNotice(connection))

    def _announce(self, caller: RequestNotice | JoiningWorker) -> None:
        with self._closing:
            if not self._closed:
                self._call(caller)
                return
        caller.close()


# -- what can be asked for ---------------------------------------------------------------------------------


def _judged(request: Request, record: RunRecord) -> tuple[Request, Answer]:
    if request.get("verb") not in VERBS:
        raise UsageError(f"There is no request {request.get('verb')!r}; there are {', '.join(VERBS)}.")
    config = _find(record, request.get("config"))
    full, text = _JUDGES[request["verb"]](request, config, record)
    full = {"id": request["id"], "verb": request["verb"], "config": config.id, **full}
    return full, {"done": True, "text": text, "config": full.get("clone", config.id)}


def _find(record: RunRecord, wanted: object) -> ConfigRecord:
    found = [config for name, config in record.configs.items() if isinstance(wanted, str) and name.startswith(wanted)]
    if len(found) != 1:
        what = f"{len(found)} configurations" if found else "no configuration"
        raise NotFoundError(
            f"Run {record.name} has {what} whose id starts with {wanted!r}.",
            candidates=nearest(str(wanted), record.configs),
        )
    return found[0]


def _stop(request: Request, config: ConfigRecord, record: RunRecord) -> tuple[Request, str]:
    if config.status in ("done", "stopped", "failed"):
        raise UsageError(f"{config.id} is {config.status} already.")
    return {}, f"{config.id} is stopped; {config.epoch} of its {config.epochs} epochs count"


def _resume(request: Request, config: ConfigRecord, record: RunRecord) -> tuple[Request, str]:
    if config.status != "stopped":
        raise UsageError(f"{config.id} was not stopped; it is {config.status}.")
    return {"epochs": config.epochs}, f"{config.id} goes on to epoch {config.epochs}"


def _extend(request: Request, config: ConfigRecord, record: RunRecord) -> tuple[Request, str]:
    if config.status == "failed":
        raise UsageError(f"{config.id} failed: {config.error}", hint="Clone it with other values.")
    epochs = config.epochs + _count(request, "epochs")
    return {"epochs": epochs}, f"{config.id} goes on to epoch {epochs}"


def _clone(request: Request, config: ConfigRecord, record: RunRecord) -> tuple[Request, str]:
    changes, warm = request.get("values", {}), request.get("warm", False)
    if not isinstance(changes, dict):
        raise UsageError(f"values is {changes!r:.80}; it is an object of names and what they change to.")
    if not isinstance(warm, bool):
        raise UsageError(f"warm is {warm!r:.80}; it is true or false.")
    for name in changes:
        if name not in config.values:
            known = ", ".join(config.values)
            near = nearest(name, config.values)
            raise UsageError(f"{config.id} has no value {name!r} to change; it has {known}.", candidates=near)
        if isinstance(changes[name], str) != isinstance(config.values[name], str):
            raise UsageError(f"{name} of {config.id} is {config.values[name]!r}; it cannot become {changes[name]!r}.")
    values = check_configuration({**config.values, **changes})
    clone = config_id(values)
    if clone in record.configs:
        raise UsageError(f"There is a configuration with these values already: {clone}.", hint="Change another value.")
    if warm and not config.epoch:
        raise UsageError(f"No epoch of {config.id} is trained yet.", hint="Wait for its first, or clone it fresh.")
    rest = config.epochs - config.epoch if warm else config.epochs
    epochs = _count(request, "epochs") if request.get("epochs") is not None else rest or config.epochs
    parent_epoch = config.epoch if warm else None
    begins = f"with the state of {config.id} after epoch {config.epoch}" if warm else "afresh"
    full = {"values": values, "warm": warm, "epochs": epochs, "parent_epoch": parent_epoch, "clone": clone}
    return full, f"{clone} begins {begins} and trains {epochs} epochs"


_JUDGES = {"stop": _stop, "resume": _resume, "extend": _extend, "clone": _clone}


def _count(request: Request, name: str) -> int:
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_EPOCHS:
        raise UsageError(f"{name} is {value!r:.80}; it is a whole number from 1 to {MOST_EPOCHS}.")
    return value


# -- the other side ----------------------------------------------------------------------------------------


def ask(folder: Path, verb: str, config: str, **more: Any) -> Answer:
    """Leave a request, and wait for the answer; where no controller is at work it waits for one."""
    folder = folder.absolute()
    if not is_live(folder):
        _find(RunRecord.read(run_journal(folder)), config)  # better now than when somebody goes on with the run
    request = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    run_requests(folder).mkdir(exist_ok=True)
    _write_durable(run_requests(folder) / f"{request}.json", json.dumps({"verb": verb, "config": config, **more}))
    with contextlib.suppress(OSError, EOFError, NotFoundError), knock(folder) as connection:
        connection.send_bytes(b'{"kind": "request"}')
        connection.recv_bytes()  # the end of the stream, after the answer was written
    path = _answer_path(run_requests(folder), request)
    if path.exists():
        answer: Answer = json.loads(path.read_bytes())
        return answer
    live = is_live(folder)
    why = "is getting ready" if live else f"is not being trained now; `regatta resume {folder.name}` goes on with it"
    return {"done": False, "waits": True, "text": f"This waits: run {folder.name} {why}"}


def knock(folder: Path) -> Socket:
    """A connection to the controller of a run."""
    door = read_door(folder)
    try:
        return Client(door["address"], family="AF_UNIX", authkey=bytes.fromhex(door["key"]))
    except (FileNotFoundError, ConnectionError, AuthenticationError) as error:
        raise _nobody(folder) from error


def read_door(folder: Path) -> dict[str, Any]:
    """Where the controller of a run listens, its key, and where it finds modules."""
    try:
        door: dict[str, Any] = json.loads((folder / CONTROL_ADDRESS).read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise _nobody(folder) from error
    return door


def _nobody(folder: Path) -> NotFoundError:
    hint = f"`regatta resume {folder.name}` goes on with it."
    return NotFoundError(f"No controller of run {folder.name} is at work on this machine.", hint=hint)


def waiting(folder: Path) -> int:
    """How many requests no controller has answered yet."""
    return 0 if is_live(folder) else len(ControlServer(folder, lambda caller: None).requests())


def _read(path: Path) -> Request:
    """A request that cannot be read is one that cannot be done."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise ValueError("no file, or too large")
        request = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        request = None
    return {**(request if isinstance(request, dict) else {}), "id": path.stem}


def _answer_path(folder: Path, request: str) -> Path:
    return folder / f"{request}{ANSWER_SUFFIX}"


def _write_durable(path: Path, text: str) -> None:
    with replacing(path) as written:
        written.write_text(text)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
