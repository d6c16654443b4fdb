"""`regatta simulate FILE|RUN --workers 4,8,16`: what a sweep would take elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import FILE_HELP, Verbs, add_json, add_repo

if TYPE_CHECKING:
    from regatta.cli.tables import Table


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "simulate",
        help="what a sweep would take on other numbers of workers",
        description="Plan a sweep, or a run with its measured times, on other numbers of workers; nothing is trained.",
    )
    parser.add_argument("target", metavar="FILE|RUN", help=f"the name of a run, or {FILE_HELP}")
    parser.add_argument(
        "--workers", metavar="N,N,...", type=worker_counts, default=[1, 2, 4, 8, 16], help="default: 1,2,4,8,16"
    )
    add_repo(parser)
    add_json(parser)
    return parser


def worker_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers from 1, such as 4,8,16")
    return [int(word) for word in words]


def run(args: argparse.Namespace) -> int:
    from regatta.cli.documents import document
    from regatta.cli.loading import load_sweep, looks_like_file
    from regatta.run import open_run

    source = load_sweep(args.target) if looks_like_file(args.target) else open_run(args.target, repo=args.repo)
    rows = source.what_if(args.workers)
    if args.json:
        ui.write_json(document(target=args.target, workers=rows))
    else:
        ui.write_table(_table(rows))
    return 0


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    from regatta.cli.figures import seconds
    from regatta.cli.tables import Column, Table

    names = ("workers", "expected", "at least", "ratio", "speed-up", "busy")
    cells = [
        [
            str(row["workers"]),
            seconds(row["makespan"]),
            seconds(row["bound"]),
            f"{row['ratio']:.3f}",
            f"{row['speedup']:.2f}",
            f"{row['utilisation']:.0%}",
            row["bound_by"],
        ]
        for row in rows
    ]
    return Table([*(Column(name, right=True) for name in names), Column("bound by")], cells)
