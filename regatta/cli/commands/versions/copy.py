"""`regatta copy VERSION NAME`: begin a new model with what another one is."""

from __future__ import annotations

import argparse
import os

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo, add_version, command, opened_repo
from regatta.cli.commands.versions.checkout import wanted_snapshot


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "copy",
        help="begin a new model with what another one is",
        description="A new model that begins with the network, weights, hyperparameters and files of a version, but "
        "with a past of its own: metrics and earlier snapshots stay behind. No weights are copied on the disk.",
    )
    add_version(parser)
    parser.add_argument("name", metavar="NAME", help="of the new model")
    parser.add_argument("-m", "--message", default="", help="why")
    parser.add_argument("--snapshot", metavar="N", help="begin with this snapshot (an epoch); the last by default")
    parser.add_argument("--out", metavar="FOLDER", help="and write it out there, to go on with")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.json_documents import document
    from regatta.cli.output.version_tables import version_entry

    with opened_repo(args) as repo:
        base = repo.version(args.version)
        made = repo.copy(base, args.name, message=args.message, snapshot=wanted_snapshot(args.snapshot))
        out = repo.checkout(made, args.out) if args.out is not None else None
    if args.json:
        ui.write_json(document(copied=version_entry(made), base=base.reference, path=out))
        return 0
    ui.write(f"{made.reference}  {made.id[:10]}  from {base.reference}")
    if out is not None:
        ui.message(f"Written to {os.path.relpath(out)}: change it there, then")
        ui.message(
            f"  {command()} add {os.path.relpath(out)}, {command()} commit {made.name} --parent {made.reference}"
        )
    return 0
