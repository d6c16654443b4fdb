"""`regatta simulate FILE|RUN --workers 4,8`: what a sweep would take elsewhere; `--suite`: experiments of papers."""

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
        description="Plan a sweep, or a run with its measured times, on other numbers of workers; nothing is trained. "
        "Or play an experiment of the papers with any of the policies: fleet, fleet-harsh, hoho, regimes.",
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("target", metavar="FILE|RUN", nargs="?", help=f"the name of a run, or {FILE_HELP}")
    target.add_argument(
        "--suite", metavar="NAME", help="an experiment of the papers: fleet, fleet-harsh, hoho, regimes"
    )
    parser.add_argument("--workers", metavar="N,N,...", type=worker_counts, help="default: 1,2,4,8,16, or the suite's")
    suite = parser.add_argument_group("of a suite")
    suite.add_argument("--policies", metavar="NAME,NAME,...", type=names, help="default: the main ones of the suite")
    suite.add_argument("--node", metavar="N", type=int, default=4, help="devices of a node (default: 4)")
    suite.add_argument("--draws", metavar="N", type=int, default=3, help="random draws to average over (default: 3)")
    add_repo(parser)
    add_json(parser)
    return parser


def worker_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers from 1, such as 4,8,16")
    return [int(word) for word in words]


def names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def run(args: argparse.Namespace) -> int:
    if args.suite is not None:
        return _run_suite(args)
    from regatta.cli.documents import document
    from regatta.cli.loading import load_sweep, looks_like_file
    from regatta.run import open_run

    source = load_sweep(args.target) if looks_like_file(args.target) else open_run(args.target, repo=args.repo)
    rows = source.what_if(args.workers or [1, 2, 4, 8, 16])
    if args.json:
        ui.write_json(document(target=args.target, workers=rows))
    else:
        ui.write_table(_table(rows))
    return 0


def _run_suite(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from regatta.cli.documents import document
    from regatta.cli.figures import seconds
    from regatta.cli.tables import Column, Table
    from regatta.plan.suites import run_suite

    rows = run_suite(args.suite, devices=args.workers, each=args.node, policies=args.policies, draws=args.draws)
    if args.json:
        ui.write_json(document(suite=args.suite, rows=[asdict(row) for row in rows]))
        return 0
    columns = [Column("case"), Column("policy"), *(Column(name, right=True) for name in ("takes", "ratio", "speed-up"))]
    cells = [[row.case, row.policy, seconds(row.seconds), f"{row.ratio:.3f}", f"{row.speedup:.2f}"] for row in rows]
    ui.write_table(Table(columns, cells))
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
    below = ("by hops alone: packs, groups and sharing are not played",)
    return Table([*(Column(name, right=True) for name in names), Column("bound by")], cells, below=below)
