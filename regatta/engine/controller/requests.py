"""Requests of users to a run: files in its folder, so that they outlive both sides.

    requests/<id>.json           verb, config, and the arguments of the verb
    requests/<id>.answer.json    done, text, config

Where no controller is running, requests wait for the next one.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any, TypeAlias

from regatta.configuration import check_configuration, config_id
from regatta.durable import replacing
from regatta.errors import NotFoundError, RegattaError, UsageError, nearest
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.paths import ANSWER_SUFFIX, JOURNAL, REQUESTS

UserRequest: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]
MAX_REQUEST_BYTES = 1 << 16
MAX_EPOCHS = 100_000  # that a request may ask for


def write_request(folder: Path, request: UserRequest) -> str:
    """Write a request into the folder of a run; returns its id. Later requests have larger ids."""
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    (folder / REQUESTS).mkdir(exist_ok=True)
    with replacing(folder / REQUESTS / f"{name}.json") as path:
        path.write_text(json.dumps(request))
    return name


def read_requests(folder: Path) -> list[UserRequest]:
    """The requests to a run that have no answer yet, oldest first."""
    paths = sorted((folder / REQUESTS).glob("*.json"))
    requests = [path for path in paths if not path.name.endswith(ANSWER_SUFFIX)]
    return [_read_request(path) for path in requests if not _answer_path(folder, path.stem).exists()]


def _read_request(path: Path) -> UserRequest:
    """A request that cannot be read is one that cannot be done: it only has an id."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_REQUEST_BYTES:
            raise ValueError("not a file, or too large")
        request = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        request = None
    return {**(request if isinstance(request, dict) else {}), "id": path.stem}


def withdraw_request(folder: Path, request_id: str) -> None:
    (folder / REQUESTS / f"{request_id}.json").unlink(missing_ok=True)


def write_answer(folder: Path, request_id: str, answer: Answer) -> None:
    with replacing(_answer_path(folder, request_id)) as path:
        path.write_text(json.dumps(answer))


def read_answer(folder: Path, request_id: str) -> Answer | None:
    path = _answer_path(folder, request_id)
    answer: Answer | None = json.loads(path.read_bytes()) if path.exists() else None
    return answer


def _answer_path(folder: Path, request_id: str) -> Path:
    return folder / REQUESTS / f"{request_id}{ANSWER_SUFFIX}"


def find_config(record: RunRecord, prefix: object) -> ConfigRecord:
    """The configuration whose id starts with `prefix`."""
    found = [config for name, config in record.configs.items() if isinstance(prefix, str) and name.startswith(prefix)]
    if len(found) != 1:
        what = f"{len(found)} configurations" if found else "no configuration"
        raise NotFoundError(
            f"Run {record.name} has {what} whose id starts with {prefix!r}.",
            candidates=nearest(str(prefix), record.configs),
            hint=f"`regatta show {record.name}` lists them.",
        )
    return found[0]


def check_request(request: UserRequest, record: RunRecord, ending: bool) -> tuple[UserRequest, Answer]:
    """The request with everything that doing it takes, and the answer: done, or why it cannot be done."""
    try:
        if ending:
            raise UsageError("The run is coming to a halt.", hint="Ask again once it is resumed.")
        if request.get("verb") not in VERBS:
            raise UsageError(f"There is no request {request.get('verb')!r}; there are {', '.join(VERBS)}.")
        config = find_config(record, request.get("config"))
        arguments, text = _CHECKS[request["verb"]](request, config, record)
    except RegattaError as error:
        asked = {name: str(request.get(name))[:80] for name in ("id", "verb", "config")}
        return asked, {"done": False, "text": str(error)}
    complete = {"id": request["id"], "verb": request["verb"], "config": config.id, **arguments}
    return complete, {"done": True, "text": text, "config": complete.get("clone", config.id)}


def check_waiting(folder: Path, request: UserRequest, but: str = "") -> Answer:
    """The answer that the next controller will give to a request, after those that wait already, `but` for one."""
    record = expected_record(folder, but)
    find_config(record, request["config"])  # raises NotFoundError, as other commands do
    return check_request({**request, "id": ""}, record, ending=False)[1]


def expected_record(folder: Path, but: str = "") -> RunRecord:
    """The record of a run as the requests that wait will change it, `but` for one of them."""
    record = RunRecord.read(folder / JOURNAL)
    for waiting in read_requests(folder):
        if waiting["id"] not in record.requests and waiting["id"] != but:
            complete, answer = check_request(waiting, record, ending=False)
            if answer["done"]:
                _expect(complete, record)
    return record


def _expect(request: UserRequest, record: RunRecord) -> None:
    """Change a record as doing the request will."""
    config = record.configs[request["config"]]
    if request["verb"] == "clone":
        values, epochs = request["values"], request["epochs"]
        record.configs[request["clone"]] = ConfigRecord(request["clone"], values, epochs, config.id)
    elif request["verb"] == "retry":
        config.retry()
    else:
        config.stopped = request["verb"] == "stop"
        config.epochs = request.get("epochs", config.epochs)


def _check_stop(request: UserRequest, config: ConfigRecord, record: RunRecord) -> tuple[UserRequest, str]:
    if config.status in ("done", "stopped", "failed"):
        raise UsageError(f"{config.id} is {config.status} already.")
    return {}, f"{config.id} is stopped; {config.epoch} of its {config.epochs} epochs count"


def _check_resume(request: UserRequest, config: ConfigRecord, record: RunRecord) -> tuple[UserRequest, str]:
    if config.status != "stopped":
        hint = f"Try it again: regatta retry {record.name} {config.id}" if config.status == "failed" else None
        raise UsageError(f"{config.id} was not stopped; it is {config.status}.", hint=hint)
    return {"epochs": config.epochs}, f"{config.id} resumes, up to epoch {config.epochs}"


def _check_retry(request: UserRequest, config: ConfigRecord, record: RunRecord) -> tuple[UserRequest, str]:
    if config.status != "failed":
        hint = f"Train it further: regatta resume {record.name}" if config.status == "interrupted" else None
        raise UsageError(f"{config.id} has not failed; it is {config.status}.", hint=hint)
    return {}, f"{config.id} is tried again, up to epoch {config.epochs}"


def _check_extend(request: UserRequest, config: ConfigRecord, record: RunRecord) -> tuple[UserRequest, str]:
    if config.status == "failed":
        hint = f"Clone it with other values, or try it again: regatta retry {record.name} {config.id}"
        raise UsageError(f"{config.id} failed: {config.error}", hint=hint)
    epochs = config.epochs + _check_epochs(request)
    return {"epochs": epochs}, f"{config.id} trains up to epoch {epochs}"


def _check_clone(request: UserRequest, config: ConfigRecord, record: RunRecord) -> tuple[UserRequest, str]:
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
    epochs = _check_epochs(request) if request.get("epochs") is not None else rest or config.epochs
    parent_epoch = config.epoch if warm else None
    start = f"with the state of {config.id} after epoch {config.epoch}" if warm else "afresh"
    arguments = {"values": values, "warm": warm, "epochs": epochs, "parent_epoch": parent_epoch, "clone": clone}
    return arguments, f"{clone} begins {start} and trains {epochs} epochs"


_CHECKS = {
    "stop": _check_stop,
    "resume": _check_resume,
    "extend": _check_extend,
    "clone": _check_clone,
    "retry": _check_retry,
}
VERBS = tuple(_CHECKS)


def _check_epochs(request: UserRequest) -> int:
    value = request.get("epochs")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_EPOCHS:
        raise UsageError(f"epochs is {value!r:.80}; it is a whole number from 1 to {MAX_EPOCHS}.")
    return value
