"""A worker that joins a run: once the controller has admitted it, it trains like the other workers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from regatta.cluster import Cluster
from regatta.engine.controller.control_server import connect, read_address
from regatta.engine.workers.process import how_it_ended
from regatta.engine.workers.start_process import start_process
from regatta.engine.workers.worker_main import MAIN
from regatta.errors import ConflictError, RegattaError


def join(folder: Path, device: str | None, holds: Sequence[str] | None, joined: Callable[[str], None]) -> None:
    """Train units of the run in this folder until it ends; `joined` is called with the worker's name.

    It gets units of the partitions that it `holds`, by name or number; without a list, of those that it can open.
    """
    if device is not None:
        Cluster.local(device=device).check_available()
    path = read_address(folder)["path"]
    with connect(folder) as connection:
        connection.send_bytes(json.dumps({"kind": "worker", "device": device, "holds": holds}).encode())
        reply = json.loads(connection.recv_bytes())
        if "welcome" not in reply:
            raise ConflictError(f"No worker can join {folder.name}. {reply.get('refused', '')}")
        process = start_process(MAIN, [connection.fileno()], reply["threads"], path=path)
    joined(reply["welcome"])
    try:
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        process.close()
    if code not in (0, -signal.SIGKILL):  # a worker kills itself when the controller is gone
        hint = f"{folder.name} goes on without it. What the worker printed is above."
        raise RegattaError(f"Worker {reply['welcome']} {how_it_ended(code)}.", hint=hint)
