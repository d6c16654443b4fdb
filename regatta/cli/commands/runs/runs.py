"""`regatta runs`: lists the runs of a repository."""

from __future__ import annotations

import argparse

from regatta.cli import table_options, ui

NAME, HELP = "runs", "list the runs, newest last"
DESCRIPTION = "List the runs of a repository."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    table_options.add_table(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.json_documents import run_summary
    from regatta.cli.output.run_tables import run_list
    from regatta.run import list_runs

    table_options.check(args)
    records = list_runs(repo=args.repo)
    if args.json:
        ui.write_json(runs=[run_summary(record) for record in records])
    elif records or table_options.complete(args):
        table_options.write(run_list(records), args)
    else:
        ui.message("There is no run yet. Start with: regatta demo")
    return 0
