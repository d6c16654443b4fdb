"""`regatta replay RUN`: trains a run again in the order of its journal, and compares every state."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, add_run, chosen_run
from regatta.format import count

SHOWN = 10
NAME, HELP = "replay", "train a run again and compare every state, bit for bit"
DESCRIPTION = "Train a run again in the order of its journal. Exit code 1 if any state differs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    chosen = chosen_run(args)
    training = sum(unit.kind == "train" for unit in chosen.record.units)
    ui.message(f"Replaying {count(training, 'training unit')} of {chosen.name}")
    report = chosen.replay()
    if args.json:
        figures = {"units": report.units, "equal": report.equal, "left_out": report.left_out}
        changed = {"changed_code": report.changed_code} if report.changed_code else {}
        found = {"differing": report.differing, **changed}
        ui.write_json(run=chosen.name, ok=report.ok, **figures, **found)
        return 0 if report.ok else 1
    if report.changed_code:
        ui.message(f"Its code has changed since it was trained: {'; '.join(report.changed_code)}")
    if report.ok:
        ui.write(f"{chosen.name}: all {count(report.units, 'state')} equal, bit for bit")
        if report.left_out:
            ui.message(f"{count(report.left_out, 'unit')} of unfinished epochs left out")
        return 0
    ui.write(f"{chosen.name}: {len(report.differing)} of {count(report.units, 'state')} differ")
    for row in report.differing[:SHOWN]:
        ui.write("  " + ", ".join(f"{name} {value}" for name, value in row.items()))
    if len(report.differing) > SHOWN:
        ui.write(f"  and {len(report.differing) - SHOWN} more (--json lists all)")
    return 1
