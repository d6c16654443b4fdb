"""`regatta init`: creates a repository for the versions of a project's models."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from regatta.cli import ui
from regatta.cli.arguments import add_json, command

NAME, HELP = "init", "create a repository here"
DESCRIPTION = "Create a repository, the folder .regatta, in a project. The first run also creates one."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="the project (default: this folder)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.paths import CATALOG, FOLDER
    from regatta.repo import Repo

    there = (Path(args.folder) / FOLDER / CATALOG).exists()
    with Repo.init(args.folder) as repo:
        where, versions = repo.folder, repo.catalog.count()
    if args.json:
        ui.write_json(folder=where, made=not there, versions=versions)
        return 0
    ui.write(f"{'There is a' if there else 'Created a'} repository in {os.path.relpath(where)}")
    if not there:
        ui.message(f"Weights do not belong into git: add {where.name}/ to .gitignore")
        ui.message(f"Next: {command()} add FILE ..., {command()} commit NAME -m MESSAGE; or {command()} demo")
    return 0
