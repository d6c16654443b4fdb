"""`regatta runs`: lists the runs of a repository."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser("runs", help="list the runs, newest last", description="List the runs of a repository.")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.json_documents import runs_document
    from regatta.cli.output.run_tables import run_list
    from regatta.run import list_runs

    records = list_runs(repo=args.repo)
    if args.json:
        ui.write_json(runs_document(records))
    elif records:
        ui.write_table(run_list(records))
    else:
        ui.message("There is no run yet. Start with: regatta demo")
    return 0
