"""`regatta worker RUN`: a worker that joins a run while it is trained, and leaves it with Ctrl-C."""

from __future__ import annotations

import argparse
import json

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_repo, named_run
from regatta.errors import ConflictError


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "worker",
        help="join a run that is being trained, with one more worker",
        description="Train units of a run that goes on, on this machine, until it ends; Ctrl-C leaves it.",
    )
    parser.add_argument("run_name", metavar="RUN", help="the name of a run")
    parser.add_argument("--device", help="where to train, such as cuda:1; by default as the run's other workers")
    add_repo(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.engine.control import knock, read_door
    from regatta.engine.workers.process import start_worker

    folder = named_run(args).folder
    door = read_door(folder)
    with knock(folder) as connection:
        connection.send_bytes(json.dumps({"kind": "worker", "device": args.device}).encode())
        reply = json.loads(connection.recv_bytes())
        if "welcome" not in reply:
            raise ConflictError(f"Nobody can join {folder.name}. {reply.get('refused', '')}")
        process = start_worker(connection, reply["threads"], door["path"])
    ui.message(f"Joined {folder.name} as {reply['welcome']}; Ctrl-C leaves it")
    try:
        process.wait()
    finally:
        process.kill()
        process.wait()
    ui.message(f"{folder.name} has ended, or let go of {reply['welcome']}")
    return 0
