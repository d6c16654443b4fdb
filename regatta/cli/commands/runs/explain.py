"""`regatta explain FILE`: the plan of a sweep before training; `explain RUN --analyze`: the plan beside the run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from regatta.cli import ui
from regatta.cli.arguments import FILE_HELP, add_repo_and_json
from regatta.cli.output.table import Table, left, right
from regatta.errors import UsageError
from regatta.format import seconds, size

if TYPE_CHECKING:
    from regatta.journal.analysis import Analysis, AnalysisRow

NAME, HELP = "explain", "print the plan of a sweep before training, or compare it with the run"
DESCRIPTION = "How a sweep is trained, and why: hops, packs, groups, shared data, and rejected alternatives."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE|RUN", help=f"{FILE_HELP}; or the name of a run")
    parser.add_argument("--analyze", action="store_true", help="for a run: actual figures beside the estimates")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.cli.load_sweep import load_sweep, looks_like_file

    if not looks_like_file(args.target):
        return _explain_run(args)
    if args.analyze:
        raise UsageError(
            f"{args.target} is a file; only a run can be analyzed.",
            hint=f"`regatta run {args.target}` trains it; give --analyze the name of the run.",
        )
    plan = load_sweep(args.target, args.repo).explain(progress=True)
    if args.json:
        ui.write_json(**plan.to_json())
    else:
        ui.write(plan.text())
    return 0


def _explain_run(args: argparse.Namespace) -> int:
    from regatta.run import open_run

    found = open_run(args.target, repo=args.repo).analyze()
    if args.json:
        ui.write_json(**(found.to_json() if args.analyze else found.plan.to_json()))
    elif args.analyze:
        ui.write_table(_table(found))
    else:
        ui.write(found.plan.text())
    return 0


def _table(found: Analysis) -> Table:
    columns = [left("", 0), *(right(name) for name in ("estimated", "actual", "actual/estimated"))]
    cells = [[row.what, *_figures(row)] for row in found.rows]
    later = [
        f"planned again after {seconds(other.after)}: {other.reason}; "
        + (f"changed to {other.name}" if other.changed else f"kept {other.name}")
        for other in found.later
    ]
    if found.status != "done":
        later.insert(0, f"the run is {found.status}: actual is so far, estimated is the whole run")
    return Table(columns, cells, above=(*found.plan.text().splitlines(), ""), below=("", *later) if later else ())


def _figures(row: AnalysisRow) -> list[str]:
    formats: dict[str, Callable[[float], str]] = {
        "seconds": seconds,
        "share": "{:.0%}".format,
        "bytes": size,
        "count": "{:,.0f}".format,
        "hours": "{:.3g}".format,
    }
    texts = ["" if value is None else formats[row.measure](value) for value in (row.estimated, row.actual)]
    return [*texts, "" if row.ratio is None else f"{row.ratio:.2f}"]
