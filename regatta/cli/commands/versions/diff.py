"""`regatta diff A B [C ...]`: compares versions."""

from __future__ import annotations

import argparse
from pathlib import Path

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "diff",
        help="compare two or more versions",
        description="Compare versions with the first one: metadata, networks layer by layer, weights, metrics, files. "
        "Exit code 1 if there is a difference.",
    )
    parser.add_argument(
        "versions", metavar="VERSION", nargs="+", help="a name, name@number, tag or id; VERSION:EPOCH for a snapshot"
    )
    parser.add_argument("--all", action="store_true", help="also show what is equal")
    parser.add_argument("--exact", action="store_true", help="read all bytes of the weights")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with the differences, histograms and networks"
    )
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.repo import Repo

    with Repo.open(args.repo) as repo:
        found = repo.diff(*args.versions, exact=args.exact)
    if args.html is not None:
        from regatta.cli.output.write_file import write_file
        from regatta.web import diff_page

        ui.message(f"Wrote {write_file(args.html, diff_page.page(found))}")
    if args.json:
        from regatta.cli.output.json_documents import document

        ui.write_json(document(**found.as_json(args.all)))
    elif args.html is None:
        from regatta.cli.output.diff_text import tables

        for number, table in enumerate(tables(found, args.all)):
            if number:
                ui.write("")
            ui.write_table(table)
    return 0 if found.same else 1
