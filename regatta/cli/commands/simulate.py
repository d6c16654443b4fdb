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
    from regatta.sweep import open_run

    source = load_sweep(args.target) if looks_like_file(args.target) else open_run(args.target, repo=args.repo)
    rows = source.what_if(args.workers)
    if args.json:
        ui.write_json(document(target=args.target, workers=rows))
    else:
        ui.write_table(_table(rows))
    return 0


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    from regatta.cli.tables import Column, Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [Column(name.replace("_", " "), right=True) for name in names]
    return Table(columns, [[_cell(name, row.get(name)) for name in names] for row in rows])


def _cell(name: str, value: Any) -> str:
    """A number as its name says it should be read."""
    from regatta.cli import figures

    if not isinstance(value, int | float) or isinstance(value, bool):
        return "-" if value is None else str(value)
    if name.endswith("bytes"):
        return figures.size(value)
    if name == "utilisation":
        return f"{value:.0%}"
    if name.endswith("seconds") or name in ("makespan", "bound"):
        return figures.seconds(value)
    return str(value) if isinstance(value, int) else f"{value:.3f}"
