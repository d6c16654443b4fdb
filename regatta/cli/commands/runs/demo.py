"""`regatta demo`: a small sweep, from training to a chart of what ran where."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from regatta.cli import ui
from regatta.cli.arguments import command
from regatta.paths import GANTT_PAGE

PROGRAM = Path(__file__).parents[2] / "demo_sweep.py"
NAME, HELP = "demo", "train eight small networks as one job, and show the results"
DESCRIPTION = "Train eight small networks on four partitions of scikit-learn's digits, as one job."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--program", action="store_true", help="print the program instead, to start from")


def run(args: argparse.Namespace) -> int:
    if args.program:
        ui.write(PROGRAM.read_text().rstrip())
        return 0
    from regatta.cli.commands.runs.run import present
    from regatta.cli.load_sweep import load_sweep
    from regatta.web import gantt_page

    ui.message("Eight networks on scikit-learn's digits: 4 partitions, 3 epochs each. Models hop between workers.")
    ui.message("PyTorch takes a few seconds to load, here and in each worker.")
    finished = load_sweep(str(PROGRAM)).launch()
    present(finished)
    page = ui.write_file(finished.folder / GANTT_PAGE, gantt_page.page(finished))
    ui.message(f"What ran where: {os.path.relpath(page)} (open it in a browser)\n")
    regatta, name = command(), finished.name
    steps = {
        f"{regatta} show {name}": "this leaderboard again; --json for programs",
        f"{regatta} show {name} --gantt gantt.html": "the chart: a row for each worker, a colour for each model",
        f"{regatta} replay {name}": "train everything again, and compare every state bit for bit",
        f"{regatta} demo --program > digits.py": "the program, for you to change",
        f"{regatta} explain digits.py": "the plan before training: units, times, bytes to hop",
        f"{regatta} run digits.py": "train your own version of it",
    }
    ui.steps("Try next:", steps)
    return 0 if finished.record.status == "done" else 1
