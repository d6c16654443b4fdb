"""`regatta resume RUN [CONFIG]`: resumes an interrupted run, or a configuration that was stopped."""

from __future__ import annotations

import argparse
import dataclasses

from regatta.cli.arguments import add_repo_and_json, add_run, chosen_run
from regatta.cli.commands.runs.control import print_answer
from regatta.cli.commands.runs.run import conclude

NAME, HELP = "resume", "resume a run that was interrupted or killed"
DESCRIPTION = (
    "Resume a run where it was interrupted, with the requests since then. Finished units are not trained "
    "again. With CONFIG: resume that configuration, which was stopped, in whichever process the run is trained."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a configuration that was stopped")
    parser.add_argument("--workers", type=int, metavar="N", help="the number of workers (default: as before)")
    parser.add_argument(
        "--changed-code", action="store_true", help="go on though modules of its functions have changed since"
    )
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    chosen = chosen_run(args)
    if args.config is not None:
        return print_answer(chosen.resume(args.config), args.json)
    sweep = None
    if args.workers is not None:
        sweep = chosen.sweep()
        sweep.cluster = dataclasses.replace(sweep.cluster, workers=args.workers)
    chosen.go_on(sweep, changed_code=args.changed_code)
    return conclude(chosen, args.json)
