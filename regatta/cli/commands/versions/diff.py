"""`regatta diff A B [C ...]`: compares versions."""

from __future__ import annotations

import argparse
from pathlib import Path

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, opened_repo

NAME, HELP = "diff", "compare two or more versions"
DESCRIPTION = (
    "Compare versions with the first one: metadata, networks layer by layer, weights, metrics, files. "
    "Exit code 1 if there is a difference."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "versions", metavar="VERSION", nargs="+", help="a name, name@number, tag or id; VERSION:EPOCH for a snapshot"
    )
    parser.add_argument("--all", action="store_true", help="also show what is equal")
    parser.add_argument("--exact", action="store_true", help="read all bytes of the weights")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with the differences, histograms and networks"
    )
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        found = repo.diff(*args.versions, exact=args.exact)
    if args.html is not None:
        from regatta.web import diff_page

        ui.message(f"Wrote {ui.write_file(args.html, diff_page.page(found))}")
    if args.json:
        ui.write_json(**found.as_json(args.all))
    elif args.html is None:
        from regatta.cli.output.diff_text import tables

        ui.write_tables(tables(found, args.all))
    return 0 if found.same else 1
