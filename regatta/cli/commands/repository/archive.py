"""`regatta archive`: store all weights in less space."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo, typed_without
from regatta.cli.output.table import Cell, Table, left, right, sentences
from regatta.errors import UsageError
from regatta.format import count, seconds, share, size

if TYPE_CHECKING:
    from regatta.repo.archive import ArchiveReport, ArchiveResult

SCHEMES, ALGORITHMS = ("independent", "parallel"), ("pas-mt", "pas-pt", "last", "mst", "spt")
NAME, HELP = "archive", "store all weights in less space, bit for bit"
DESCRIPTION = (
    "Move state files of runs into the parameter store, and encode all weights again: similar weights "
    "as differences, the rest with stronger compression. Only --lossy loses bits, in the versions that you name."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("versions", metavar="VERSION", nargs="*", help="with --lossy: the versions that may lose bits")
    parser.add_argument("--dry-run", action="store_true", help="show the savings, and change nothing")
    parser.add_argument(
        "--budget", metavar="FACTOR", type=float,
        help="a snapshot may take at most FACTOR times its shortest reading time; inf for the least space (default: 4)",
    )  # fmt: skip
    parser.add_argument("--scheme", choices=SCHEMES, default="independent", help="how tensors of a snapshot are read")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="pas-mt", help="the planner (default: pas-mt)")
    parser.add_argument(
        "--progressive", action="store_true", help="keep the leading bytes of weights readable on their own, for eval"
    )
    parser.add_argument("--lossy", metavar="SCHEME", help="float16, bfloat16, fixed-2..24, uniform-1..8, random-1..8")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.versions and args.lossy is None:
        raise UsageError(
            "An archive pass takes all versions; name versions only with --lossy.",
            hint=f"Write: {command()} archive, or {command()} archive VERSION --lossy float16",
        )
    options = {"lossy": args.lossy, "budget": args.budget, "scheme": args.scheme, "algorithm": args.algorithm}
    with opened_repo(args) as repo:
        found = repo.archive(*args.versions, **options, progressive=args.progressive, dry_run=args.dry_run)
    if args.json:
        ui.write_json(**_document(found, args.dry_run))
        return 0
    if found.report is None and not found.states:
        ui.write("There are no weights to archive.")
        return 0
    ui.write_table(_table(found, args.dry_run))
    for each in found.live:
        ui.message(f"{each} is in training: its states stay files until it ends")
    if args.dry_run:
        ui.message(f"Nothing was changed. Without --dry-run it is done: {typed_without(args, '--dry-run')}")
    elif old := found.disk_after - found.disk_after_gc:
        ui.message(f"The old form, {size(old)}, is deleted after two weeks; at once: {command()} gc --grace 0")
    return 0


def _document(found: ArchiveResult, dry_run: bool) -> dict[str, Any]:
    states = {"states": found.states, "state_bytes": found.state_bytes, "live": found.live}
    reports = {"trial": _report(found.trial), "store": _report(found.report)}
    disk = {name: getattr(found, name) for name in ("disk_before", "disk_after", "disk_after_gc")}
    return {"dry_run": dry_run, **states, "lossy": [asdict(each) for each in found.lessened], **reports, **disk}


def _report(report: ArchiveReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    costs = {name: asdict(cost) for name, cost in report.snapshots.items()}
    known = {**vars(report), "encodings": dict(report.encodings), "snapshots": costs}
    return {**known, "saved": report.saved}


def _table(found: ArchiveResult, dry_run: bool) -> Table:
    rows: list[list[Cell]] = []
    if found.states:
        where = "would go into the store" if dry_run else "went into the store"
        after = size(found.trial.bytes_planned) if found.trial is not None else ""
        rows.append(["states as files", size(found.state_bytes), after, f"{count(found.states, 'file')}, {where}"])
    for each in found.lessened:
        change = f"{count(each.snapshots, 'snapshot')}, no weight changes by more than {each.largest_change:.2g}"
        rows.append([each.version, size(each.bytes_before), size(each.bytes_after), change])
    if found.report is not None:
        rows += _report_rows(found.report)
    if not dry_run:
        now = f"; {size(found.disk_after)} with the old form" if found.disk_after != found.disk_after_gc else ""
        rows.append(["on the disk", size(found.disk_before), size(found.disk_after_gc), f"the whole repository{now}"])
    columns = [left("archive", 0), right("before", 0), right("after", 0), sentences("")]
    return Table(columns, rows)


def _report_rows(report: ArchiveReport) -> Iterator[list[Any]]:
    after = report.bytes_planned if report.bytes_after is None else report.bytes_after
    saved = f"{report.saved:.0%} less" if report.saved > 0 else "nothing saved"
    moved = f"{count(report.moved, 'tensor')} of {report.tensors:,} encoded in another way"
    yield ["in the store", size(report.bytes_before), (size(after), "bold"), f"{saved}; {moved}"]
    raw = size(report.bytes_raw)
    yield ["of the raw weights", share(report.bytes_before, report.bytes_raw), share(after, report.bytes_raw), raw]
    costs = list(report.snapshots.values())
    if costs:
        times = [seconds(statistics.median(getattr(cost, when) for cost in costs)) for when in ("before", "planned")]
        worst = seconds(max(cost.planned for cost in costs))
        yield ["to read a snapshot", *times, f"the median of {count(len(costs), 'snapshot')}; {worst} the slowest"]
    kinds = ", ".join(f"{name} {number:,}" for name, number in sorted(report.encodings.items(), key=lambda i: -i[1]))
    yield ["encodings", "", "", f"{kinds}; chains of up to {report.deepest}"]
