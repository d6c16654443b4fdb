"""Arguments that several commands take alike."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from regatta.errors import NotFoundError

if TYPE_CHECKING:
    from regatta.run import Run

FILE_HELP = "a Python file that defines `sweep = regatta.Sweep(...)`; FILE:name chooses another name"


class Verbs(Protocol):
    """What a command adds itself to: argparse's subparsers."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser: ...


def command() -> str:
    """How to call this command again: its name, or its path where the shell would not find the name."""
    from shutil import which

    called = Path(sys.argv[0])
    if called.name not in ("regatta", "dlv") or which(called.name) is not None:
        return called.name if called.name == "dlv" else "regatta"
    return os.path.relpath(called)


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=FILE_HELP)


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_name", metavar="RUN", nargs="?", help="the name of a run; the newest one by default")


def add_repo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", metavar="FOLDER", help="the repository; by default the nearest .regatta upwards")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON with stable keys")


def named_run(args: argparse.Namespace) -> Run:
    from regatta.run import open_run

    return open_run(args.run_name, repo=args.repo)


def chosen_run(args: argparse.Namespace) -> Run:
    """The run that was named, or the newest of the repository."""
    from regatta.run import list_runs, open_run

    if args.run_name is not None:
        return open_run(args.run_name, repo=args.repo)
    records = list_runs(repo=args.repo)
    if not records:
        raise NotFoundError("There is no run yet.", hint="Begin with: regatta demo")
    return open_run(records[-1].name, repo=args.repo)
