"""`regatta worker RUN`: a worker that joins a run in progress, and leaves it with Ctrl-C."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import add_repo, named_run

NAME, HELP = "worker", "add a worker to a run in progress"
DESCRIPTION = "Train units of a run in progress, on this machine, until the run ends. Ctrl-C leaves it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_name", metavar="RUN", help="the name of a run")
    parser.add_argument("--device", help="the device, such as cuda:1 (default: as the other workers of the run)")
    parser.add_argument(
        "--holds",
        nargs="+",
        metavar="PARTITION",
        help="the partitions that it can read: paths, names of files, or numbers (default: those that it can open)",
    )
    add_repo(parser)


def run(args: argparse.Namespace) -> int:
    chosen = named_run(args)
    chosen.join(args.device, lambda name: ui.message(f"Joined {chosen.name} as {name}; Ctrl-C leaves it"), args.holds)
    ui.message(f"{chosen.name} has ended, or has dismissed this worker")
    return 0
