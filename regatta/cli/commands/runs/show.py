"""`regatta show RUN`: the leaderboard and resources of a run, one configuration, or pages with charts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from regatta.cli import table_options, ui
from regatta.cli.arguments import add_run, chosen_run
from regatta.cli.commands.runs.run import offer_retry

if TYPE_CHECKING:
    from regatta.journal.run_record import RunRecord
    from regatta.run import Run

SHOWN = 20
NAME, HELP = "show", "show a run: leaderboard, resources, charts"
DESCRIPTION = "Show the leaderboard of a run, by the best value of each configuration, and its resources."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="show one configuration: its epochs, its error")
    parser.add_argument("--all", action="store_true", help=f"show every configuration, not only the best {SHOWN}")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write a page with charts of the search")
    parser.add_argument("--accounts", action="store_true", help="show the cost of each configuration in time and bytes")
    parser.add_argument("--gantt", metavar="FILE", type=Path, help="write a page with a chart of what ran where")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a Chrome trace, for Perfetto")
    parser.add_argument(
        "--export", metavar="SINK", help="send the run to tensorboard, mlflow, csv or parquet; csv:FILE names the file"
    )
    table_options.add_table(parser)


def run(args: argparse.Namespace) -> int:
    table_options.check(args)
    chosen = chosen_run(args)
    written = _write_files(chosen, args)
    if args.config is not None:
        from regatta.cli.output import json_documents, run_tables

        config = chosen.find(args.config)
        if args.json:
            ui.write_json(run=chosen.name, configuration=json_documents.configuration(chosen.record, config))
        else:
            table_options.write(run_tables.configuration(chosen.record, config), args)
            offer_retry(chosen.record, config)
    elif args.json:
        from regatta.cli.output.json_documents import run_document

        ui.write_json(**run_document(chosen.record, chosen.folder))
    elif not written or table_options.complete(args):
        _show_run(chosen.record, args)
    for place in written:
        ui.message(f"Wrote {place}")
    return 0


def _write_files(chosen: Run, args: argparse.Namespace) -> list[str]:
    written = []
    if args.report is not None:
        from regatta.web import report_page

        written.append(ui.write_file(args.report, report_page.page(chosen)))
    if args.gantt is not None:
        from regatta.web import gantt_page

        written.append(ui.write_file(args.gantt, gantt_page.page(chosen)))
    if args.trace is not None:
        written.append(ui.write_file(args.trace, json.dumps(chosen.chrome_trace()), (".json",)))
    if args.export is not None:
        written.append(chosen.export(args.export))
    return written


def _show_run(record: RunRecord, args: argparse.Namespace) -> None:
    from regatta.cli.output.run_tables import accounts, leaderboard, resources

    complete = table_options.complete(args)
    if args.accounts:
        table = accounts(record)
    else:
        every = args.all or complete or args.sort is not None
        table = leaderboard(record, limit=None if every else SHOWN, complete=complete)
    table_options.write(table, args, most=None if args.all or args.accounts else SHOWN, then=[resources(record)])
    for level, text in record.notes:
        if level != "info":
            ui.message(f"{level}: {text}")
    offer_retry(record)
