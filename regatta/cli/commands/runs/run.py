"""`regatta run FILE`: trains the sweep that a file defines."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING

from regatta.cli import ui
from regatta.cli.arguments import FILE_HELP, add_json, command

if TYPE_CHECKING:
    from regatta.journal.run_record import ConfigRecord, RunRecord
    from regatta.run import Run

SHOWN = 20
NAME, HELP = "run", "train the sweep of a file"
DESCRIPTION = "Train the sweep that a Python file defines; the leaderboard goes to stdout, progress to stderr."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=FILE_HELP)
    parser.add_argument("--workers", type=int, metavar="N", help="the number of workers (default: as the file says)")
    parser.add_argument(
        "--changed-code", action="store_true", help="resume an interrupted run though its code has changed since"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.cli.load_sweep import load_sweep

    sweep = load_sweep(args.file)
    if args.workers is not None:
        sweep.cluster = dataclasses.replace(sweep.cluster, workers=args.workers)
    return conclude(sweep.launch(changed_code=args.changed_code), args.json)


def conclude(finished: Run, as_json: bool) -> int:
    """Show the results of a run, and return the exit code."""
    if as_json:
        from regatta.cli.output.json_documents import run_document

        ui.write_json(**run_document(finished.record, finished.folder))
    else:
        present(finished)
        offer_retry(finished.record)
        ui.message(f"More: {command()} show {finished.name} --gantt gantt.html")
    return 0 if finished.record.status == "done" else 1


def offer_retry(record: RunRecord, config: ConfigRecord | None = None) -> None:
    """Say how the configurations that failed, or this one, are tried again."""
    failed = [each.id for each in record.configs.values() if each.status == "failed" and config in (None, each)]
    if failed:
        said = f"{failed[0]} failed" if len(failed) == 1 else f"{len(failed)} configurations failed"
        ui.message(f"{said}. To try again: {command()} retry {record.name}{f' {config.id}' if config else ''}")


def present(finished: Run) -> None:
    """Print the leaderboard, the resources, and the folder of the run."""
    from regatta.cli.output.run_tables import leaderboard, resources

    ui.message()
    ui.write_table(leaderboard(finished.record, limit=SHOWN))
    ui.write("")
    ui.write_table(resources(finished.record))
    ui.message(f"\nKept in {os.path.relpath(finished.folder)}")
