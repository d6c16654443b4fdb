"""`regatta copy VERSION NAME`: starts a new model from a version of another one."""

from __future__ import annotations

import argparse
import os

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, add_version, command, opened_repo
from regatta.cli.commands.versions.checkout import wanted_snapshot

NAME, HELP = "copy", "start a new model from a version of another one"
DESCRIPTION = (
    "Start a new model with the network, weights, hyperparameters and files of a version. Metrics and "
    "earlier snapshots are not copied. The weights take no additional space on the disk."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_version(parser)
    parser.add_argument("name", metavar="NAME", help="the name of the new model")
    parser.add_argument("-m", "--message", default="", help="a description")
    parser.add_argument("--snapshot", metavar="N", help="start from this snapshot, an epoch (default: the last)")
    parser.add_argument("--out", metavar="FOLDER", help="write the new version to this folder")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.version_tables import run_names, version_entry
    from regatta.repo.references import split_reference

    with opened_repo(args) as repo:
        base, snapshot = split_reference(repo, args.version, wanted_snapshot(args.snapshot))
        made = repo.copy(base, args.name, message=args.message, snapshot=snapshot)
        out = repo.checkout(made, args.out) if args.out is not None else None
        names = run_names(repo, [made])
    if args.json:
        ui.write_json(copied=version_entry(made, names), base=base.reference, path=out)
        return 0
    ui.write(f"{made.reference}  {made.id[:10]}  from {base.reference}")
    if out is not None:
        ui.message(f"Written to {os.path.relpath(out)}: change it there, then")
        ui.message(
            f"  {command()} add {os.path.relpath(out)}, {command()} commit {made.name} --parent {made.reference}"
        )
    return 0
