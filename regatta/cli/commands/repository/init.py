"""`regatta init`: a repository for the versions of a project's models."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, command


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "init",
        help="make a repository here",
        description="Make a repository, the folder .regatta, in a project's folder. The first run makes one by itself.",
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="the project's folder; this one")
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.json_documents import document
    from regatta.paths import CATALOG, FOLDER
    from regatta.repo import Repo

    there = (Path(args.folder) / FOLDER / CATALOG).exists()
    with Repo.init(args.folder) as repo:
        where, versions = repo.folder, repo.catalog.count()
    if args.json:
        ui.write_json(document(folder=where, made=not there, versions=versions))
        return 0
    ui.write(f"{'There is a' if there else 'Made a'} repository in {os.path.relpath(where)}")
    if not there:
        ui.message(_ignored(where))
        ui.message(f"Next: {command()} add FILE ..., {command()} commit NAME -m 'what it is'; or {command()} demo")
    return 0


def _ignored(where: Path) -> str:
    return f"Weights are not for git: put {where.name}/ into .gitignore"
