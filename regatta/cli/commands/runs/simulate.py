"""`regatta simulate FILE|RUN --workers 4,8`: the time on other numbers of workers; `--suite`: papers' experiments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from regatta.cli import ui
from regatta.cli.arguments import FILE_HELP, add_repo_and_json
from regatta.cli.output.table import Table, left, right, sentences
from regatta.errors import UsageError
from regatta.format import seconds

MAX_WORKERS = 10_000
FROM_PROFILES = "with hops alone: packs, groups and sharing are not simulated"
FROM_UNITS = "with hops alone; every unit takes as long as in this run, with its packs, groups and shared data"
NAME, HELP = "simulate", "estimate a sweep on other numbers of workers"
DESCRIPTION = (
    "Plan a sweep, or a run with its measured times, on other numbers of workers; nothing is trained. "
    "Or simulate an experiment of the papers with any policy: fleet, fleet-harsh, hoho, regimes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("target", metavar="FILE|RUN", nargs="?", help=f"the name of a run, or {FILE_HELP}")
    target.add_argument(
        "--suite", metavar="NAME", help="an experiment of the papers: fleet, fleet-harsh, hoho, regimes"
    )
    parser.add_argument(
        "--workers", metavar="N,N,...", type=worker_counts, help="default: 1,2,4,8,16, or as in the suite"
    )
    suite = parser.add_argument_group("with --suite")
    suite.add_argument("--policies", metavar="NAME,NAME,...", type=names, help="default: the main ones of the suite")
    suite.add_argument("--node", metavar="N", type=int, help="devices of a node (default: 4)")
    suite.add_argument("--draws", metavar="N", type=int, help="random draws to average over (default: 3)")
    add_repo_and_json(parser)


def worker_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= MAX_WORKERS for word in words):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers from 1 to {MAX_WORKERS:,}, such as 4,8,16"
        )
    return [int(word) for word in words]


def names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def run(args: argparse.Namespace) -> int:
    if args.suite is not None:
        return _run_suite(args)
    from regatta.cli.load_sweep import load_sweep, looks_like_file
    from regatta.run import open_run

    of_suites = [f"--{name}" for name in ("policies", "node", "draws") if getattr(args, name) is not None]
    if of_suites:
        raise UsageError(f"{', '.join(of_suites)}: only with --suite; a sweep or a run is simulated with hops.")
    is_file = looks_like_file(args.target)
    source = load_sweep(args.target, args.repo) if is_file else open_run(args.target, repo=args.repo)
    rows = source.what_if(args.workers or [1, 2, 4, 8, 16])
    if args.json:
        ui.write_json(target=args.target, workers=rows)
    else:
        ui.write_table(_table(rows, FROM_PROFILES if is_file else FROM_UNITS))
    return 0


def _run_suite(args: argparse.Namespace) -> int:
    from regatta.plan.papers.suites import run_suite

    node, draws = (4 if args.node is None else args.node), (3 if args.draws is None else args.draws)
    rows = run_suite(args.suite, devices=args.workers, each=node, policies=args.policies, draws=draws)
    if args.json:
        ui.write_json(suite=args.suite, rows=[asdict(row) for row in rows])
        return 0
    columns = [left("case", 0), left("policy", 0), *(right(name) for name in ("takes", "ratio", "speed-up"))]
    cells = [[row.case, row.policy, seconds(row.seconds), f"{row.ratio:.3f}", f"{row.speedup:.2f}"] for row in rows]
    ui.write_table(Table(columns, cells))
    return 0


def _table(rows: Sequence[Mapping[str, Any]], below: str) -> Table:
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
    return Table([*(right(name) for name in names), sentences("limited by")], cells, below=(below,))
