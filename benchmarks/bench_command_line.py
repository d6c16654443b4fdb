"""How long `regatta --help` takes to answer, and that it does so without torch.

    python benchmarks/bench_command_line.py

The command as it was installed beside this Python is started `--repeats` times, each time in a new process; a Python
that does nothing is measured beside it, because no command of ours can be faster than that.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from report import Bar, report

LIMIT = 0.200
HEAVY = ("torch", "numpy", "scipy", "sklearn", "pandas", "rich", "cloudpickle", "lark")
START = "from regatta.cli.main import entry; entry()"  # what the installed command does


def main() -> None:
    repeats = _arguments().repeats
    bare = median_seconds([sys.executable, "-c", "pass"], repeats)
    rows = [["python -c pass", bare, "-"]]
    for argument in ("--help", "--version"):
        imported = imported_by(argument)
        rows.append(
            [f"regatta {argument}", median_seconds([*command(), argument], repeats), ", ".join(imported) or "-"]
        )
    report(
        "command_line",
        ["command", "seconds (median)", "heavy packages imported"],
        rows,
        bars=[
            Bar("regatta --help, seconds", rows[1][1], LIMIT),
            Bar("regatta --help imports torch", float("torch" in rows[1][2].split(", ")), 0),
        ],
        notes={"repeats": repeats, "command": Path(command()[0]).name},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    return parser.parse_args()


def command() -> list[str]:
    installed = Path(sysconfig.get_path("scripts")) / "regatta"
    return [str(installed)] if installed.exists() else [sys.executable, "-c", START]


def median_seconds(command: list[str], repeats: int) -> float:
    """Of runs that succeed; the first, which may have to fetch files from the disk, is not counted."""
    times = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def imported_by(argument: str) -> list[str]:
    """Which of the large packages the command imports, as Python itself tells."""
    command = [sys.executable, "-X", "importtime", "-c", START, argument]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert "regatta.cli.main" in imported, f"not a list of imports: {said[:200]}"
    return [package for package in HEAVY if package in imported]


if __name__ == "__main__":
    main()
