"""`regatta worker RUN`: a worker that joins a run while it is trained, and leaves it with Ctrl-C."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_repo, named_run


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
    chosen = named_run(args)
    chosen.join(args.device, lambda name: ui.message(f"Joined {chosen.name} as {name}; Ctrl-C leaves it"))
    ui.message(f"{chosen.name} has ended, or let go of this worker")
    return 0
