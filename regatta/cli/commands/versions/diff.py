"""`regatta diff A B [C ...]`: what versions differ in."""

from __future__ import annotations

import argparse
from pathlib import Path

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "diff",
        help="what two or more versions differ in",
        description="What differs between versions: what is known of them, networks layer by layer, weights, metrics, "
        "files. The first is what the others are compared with. Exits with 1 where something differs.",
    )
    parser.add_argument(
        "versions", metavar="VERSION", nargs="+", help="a name, name@number, tag or id; VERSION:EPOCH for a snapshot"
    )
    parser.add_argument("--all", action="store_true", help="also what is the same")
    parser.add_argument("--exact", action="store_true", help="read the weights whole, not their leading bytes")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with both networks' differences and histograms"
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
