"""`regatta backup FOLDER`: copies the whole repository, also while others write to it."""

from __future__ import annotations

import argparse
import os

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo
from regatta.format import count, size

NAME, HELP = "backup", "copy the whole repository, also while others write to it"
DESCRIPTION = (
    "Copy the repository of one moment, with its versions, weights, files and runs, to the folder .regatta in FOLDER. "
    "Commits and runs go on meanwhile; gc and archive wait. The copy is checked before it gets its name."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder without a repository; it is made if needed")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        made = repo.backup(args.folder)
    if args.json:
        ui.write_json(path=made.path, versions=made.versions, runs=made.runs, files=made.files, bytes=made.bytes)
        return 0
    parts = [(made.versions, "version"), (made.runs, "run"), (made.files, "file")]
    said = ", ".join(count(number, what) for number, what in parts)
    ui.write(f"{os.path.relpath(made.path)}: {said}, {size(made.bytes)}; checked")
    ui.message(f"To use it: {command()} list --repo {os.path.relpath(made.path.parent)}")
    return 0
