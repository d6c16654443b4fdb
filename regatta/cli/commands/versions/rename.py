"""`regatta rename NAME NEW`: gives a run, or a model with all its versions, another name."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo
from regatta.errors import NotFoundError, UsageError, nearest
from regatta.format import count

NAME, HELP = "rename", "give a run, or a model with all its versions, another name"
DESCRIPTION = (
    "Rename a run and its versions, or all versions of a name, whose numbers stay. A run is renamed while no process "
    "trains it; it can be resumed and replayed afterwards."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a run, or the name of versions")
    parser.add_argument("new", metavar="NEW", help="the new name")
    parser.add_argument("--run", action="store_true", dest="is_run", help="NAME is a run, not a name of versions")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.edit.delete import run_names

    with opened_repo(args) as repo:
        runs, names = run_names(repo), repo.catalog.names()
        is_run, is_model = args.name in runs, args.name in names
        if is_run and is_model and not args.is_run:
            raise UsageError(
                f"{args.name!r} is a run, and also a name of versions.",
                hint=f"For the run: {command()} rename --run {args.name} {args.new}",
            )
        if not is_run and (args.is_run or not is_model):
            raise NotFoundError(
                f"There is no run{'' if args.is_run else ' and no version'} named {args.name!r:.200}.",
                candidates=nearest(args.name, runs if args.is_run else [*runs, *names]),
                hint="A name belongs to all versions of a model: leave out the number." if "@" in args.name else None,
            )
        renamed = repo.rename_run(args.name, args.new) if is_run else repo.rename(args.name, args.new)
    if args.json:
        ui.write_json(name=args.name, new=args.new, run=is_run, versions=renamed)
    else:
        what = "the run " if is_run else ""
        ui.write(f"{what}{args.name} is now {args.new}, with {count(renamed, 'version')}")
    return 0
