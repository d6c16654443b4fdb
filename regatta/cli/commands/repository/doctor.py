"""`regatta doctor`: checks this environment and this repository, with a remedy for each problem."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from regatta import __version__
from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json
from regatta.cli.output.table import Cell, Table, left, sentences

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
NAME, HELP = "doctor", "check this environment and repository, with a remedy for each problem"
DESCRIPTION = "Check packages, devices, disk, the repository, and interrupted runs. Exit code 1 on errors."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.doctor import examine, worst

    found = examine(args.repo)
    state = worst(found)
    if args.json:
        ui.write_json(regatta=__version__, state=state, findings=[asdict(each) for each in found])
        return 1 if state == "error" else 0
    rows: list[list[Cell]] = [
        [(each.state, STYLES[each.state]), each.what, each.says + (f"\n-> {each.remedy}" if each.remedy else "")]
        for each in found
    ]
    columns = [left("", 0), left("", 0), sentences("", 0)]
    ui.write_table(Table(columns, rows, above=(f"regatta {__version__}",)))
    return 1 if state == "error" else 0
