"""`regatta gc`: deletes what no version uses."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, duration, opened_repo
from regatta.format import count, size

NAME, HELP = "gc", "delete what no version uses any more"
DESCRIPTION = "Delete weights and files that no version, run or staged file uses and that are old enough."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace", metavar="TIME", type=duration, help="the age, such as 3h or 2d; 0 for everything (default: 2w)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be freed")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        gone = repo.gc(grace=args.grace, dry_run=args.dry_run)
    if args.json:
        store = {"snapshots": gone.store.snapshots, "tensors": gone.store.tensors, "packs": gone.store.packs}
        ui.write_json(
            bytes=gone.bytes, files=gone.files, names=gone.names, **store, run_bytes=gone.run_bytes,
            dry_run=args.dry_run,
        )  # fmt: skip
        return 0
    parts = [(gone.files, "file"), (gone.store.snapshots, "snapshot"), (gone.store.tensors, "tensor")]
    said = ", ".join(count(number, what) for number, what in parts if number)
    if said or gone.bytes:
        ui.write(f"{'would free' if args.dry_run else 'freed'} {size(gone.bytes)}{': ' if said else ''}{said}")
    else:
        ui.write("nothing to free")
    return 0
