"""`regatta explain FILE`: the plan of a sweep before anything is trained."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_file, add_json


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "explain",
        help="print the plan of a sweep before training it",
        description="Units, estimated times, the lower bound, expected utilisation and bytes to hop, before training.",
    )
    add_file(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.cli.documents import document
    from regatta.cli.loading import load_sweep

    explanation = load_sweep(args.file).explain()
    if args.json:
        ui.write_json(document(**explanation.to_json()))
    else:
        ui.write(explanation.text())
    return 0
