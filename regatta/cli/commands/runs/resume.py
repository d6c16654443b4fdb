"""`regatta resume RUN [CONFIG]`: go on with a run that was cut short, or with a configuration that was stopped."""

from __future__ import annotations

import argparse
import dataclasses

from regatta.cli.arguments import Verbs, add_json, add_repo, add_run, chosen_run
from regatta.cli.commands.runs.control import tell
from regatta.cli.commands.runs.run import conclude


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "resume",
        help="go on with a run that was interrupted or killed",
        description="Go on with a run where it was cut short, and with what was asked of it since; what counts is not "
        "trained again. With CONFIG: go on with that configuration, which was stopped, wherever the run is trained.",
    )
    add_run(parser)
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a configuration that was stopped")
    parser.add_argument("--workers", type=int, metavar="N", help="so many workers, instead of as many as before")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    chosen = chosen_run(args)
    if args.config is not None:
        return tell(chosen.resume(args.config), args.json)
    sweep = None
    if args.workers is not None:
        sweep = chosen.sweep()
        sweep.cluster = dataclasses.replace(sweep.cluster, workers=args.workers)
    chosen.go_on(sweep)
    return conclude(chosen, args.json)
