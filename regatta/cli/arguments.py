"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from regatta.repo import Repo
    from regatta.run import Run

FILE_HELP = "a Python file that defines `sweep = regatta.Sweep(...)`; FILE:name chooses another name"


def command() -> str:
    """How to call this program again: its name, or its path if the shell would not find the name."""
    from shutil import which

    called = Path(sys.argv[0])
    if called.name not in ("regatta", "dlv") or which(called.name) is not None:
        return called.name if called.name == "dlv" else "regatta"
    return os.path.relpath(called)


def typed_without(args: argparse.Namespace, flag: str) -> str:
    """The command as the user typed it, but without a flag; argparse takes the flag's beginning as well."""
    words = [word for word in args.typed if not (len(word) > 2 and flag.startswith(word))]
    return f"{command()} {shlex.join(words)}"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_name", metavar="RUN", nargs="?", help="the name of a run (default: the newest run)")


def add_repo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", metavar="FOLDER", help="the repository (default: the nearest .regatta upwards)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON with stable keys")


def add_repo_and_json(parser: argparse.ArgumentParser) -> None:
    add_repo(parser)
    add_json(parser)


VERSION_HELP = "a tag, a name (its newest version), name@number, or the beginning of an id"


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", metavar="VERSION", help=f"{VERSION_HELP}; VERSION:EPOCH for a snapshot")


def opened_repo(args: argparse.Namespace) -> Repo:
    """The repository of --repo, or the nearest one upwards; it is opened for reading only if it is not writable."""
    from regatta.repo import Repo

    return Repo.open(args.repo)


def assignments(words: Sequence[str], example: str = "lr=0.01") -> dict[str, Any]:
    """`lr=0.1 kind=adam` as values: numbers, true and false as in JSON, anything else as text."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise UsageError(f"{word!r} is not of the form name=value.", hint=f"For example: {example}")
        found[name] = scalar(text)
    return found


def scalar(text: str) -> Any:
    """A JSON value, or a number such as .5, or else the text itself; NaN and infinities are not JSON values."""
    if re.fullmatch(r"-?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE | re.ASCII):  # JSON wants digits on both sides
        return float(text)
    try:
        return json.loads(text, parse_constant=lambda constant: text)
    except (ValueError, RecursionError):
        return text


def moment(text: str) -> float:
    """A time as people write it: 2026-11-01, 2026-11-01T13:45, or a time ago: 30min, 3h, 2d, 1w."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)", text.strip())
    if ago is not None:
        return time.time() - duration(text)
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        wanted = "a date such as 2026-11-01 or 2026-11-01T13:45, or a time ago such as 30min, 3h, 2d, 1w"
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None


def duration(text: str) -> float:
    """Seconds: 90s, 30min, 3h, 2d, 1w; 0 needs no unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)?", text.strip())
    if found is None or (found[2] is None and float(found[1])):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30min, 3h, 2d or 1w")
    return float(found[1]) * {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}[found[2]]


def named_run(args: argparse.Namespace) -> Run:
    from regatta.run import open_run

    return open_run(args.run_name, repo=args.repo)


def chosen_run(args: argparse.Namespace) -> Run:
    """The run of the argument RUN, or the newest run of the repository."""
    from regatta.run import list_runs, open_run

    if args.run_name is not None:
        return named_run(args)
    records = list_runs(repo=args.repo)
    if not records:
        raise NotFoundError("There is no run yet.", hint="Start with: regatta demo")
    return open_run(records[-1].name, repo=args.repo)
