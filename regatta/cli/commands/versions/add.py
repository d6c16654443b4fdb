"""`regatta add`, `unstage` and `status`: the content of the next commit."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo
from regatta.cli.output.table import Cell, Table, left, right, sentences
from regatta.format import count, size

if TYPE_CHECKING:
    from regatta.repo.intake.staging import Staged

KINDS = ("weights", "network", "metrics", "hyperparameters", "file")
NAME, HELP = "add", "stage files for the next version: weights, networks, logs, settings, any other file"
DESCRIPTION = (
    "Stage the present content of files and folders for the next commit. "
    "Weights: .safetensors, .npz, .pt .pth .bin .ckpt (state dicts), .pt2 (exported programs). Network and weights: "
    ".onnx. Metrics: .csv .tsv .jsonl with a column step, epoch or iteration. Hyperparameters: .json .yaml .toml. "
    "Any other file is kept as it is. No file is executed or unpickled."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a file or a folder")
    parser.add_argument("--as", dest="kind", choices=KINDS, help="what the files are, if the guess is wrong")
    parser.add_argument("--epoch", metavar="N", type=int, help="the epoch of the weights")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.intake.staging import add

    with opened_repo(args) as repo:
        made = add(repo, args.paths, kind=args.kind, epoch=args.epoch)
    _print_items(made, args.json, "staged")
    if not args.json:
        ui.message(f"Next: {command()} commit NAME -m MESSAGE")
    return 0


class Unstage:
    NAME, HELP = "unstage", "remove files from the next version"
    DESCRIPTION = "Remove files from the content of the next commit. The files themselves stay."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("paths", metavar="NAME", nargs="*", help="a name from `status` (default: all)")
        add_repo_and_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from regatta.repo.intake.staging import unstage

        with opened_repo(args) as repo:
            gone = unstage(repo, args.paths or None)
        _print_items(gone, args.json, "unstaged")
        if not args.json:
            ui.message(f"Unstaged: {len(gone)}" if gone else "Nothing is staged.")
        return 0


class Status:
    NAME, HELP = "status", "show what is staged, and how many versions there are"
    DESCRIPTION = "Show the content of the next commit, and the number of versions."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_repo_and_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from regatta.repo.intake.staging import staged

        with opened_repo(args) as repo:
            items, versions, names = staged(repo), repo.catalog.count(), len(repo.catalog.names())
            folder, read_only = repo.folder, repo.read_only
        if args.json:
            found = {"versions": versions, "models": names, "staged": [_entry(item) for item in items]}
            ui.write_json(folder=folder, read_only=read_only, **found)
            return 0
        holds = f"{count(versions, 'version')} of {count(names, 'model')}"
        ui.write(f"{os.path.relpath(folder)}: {holds}{', for reading only' if read_only else ''}")
        if items:
            ui.write_table(_table(items))
            ui.message(f"Next: {command()} commit NAME -m MESSAGE; or {command()} unstage")
        else:
            ui.write("nothing is staged")
        return 0


unstage, status = Unstage(), Status()


def _print_items(items: Sequence[Staged], as_json: bool, what: str) -> None:
    if as_json:
        ui.write_json(**{what: [_entry(item) for item in items]})
    elif items:
        ui.write_table(_table(items))


def _table(items: Sequence[Staged]) -> Table:
    columns = [left("staged as", 0), left("file", 0), right("size"), sentences("")]
    rows: list[list[Cell]] = []
    for item in items:
        kept = item.weights.bytes if item.weights is not None else item.file.bytes if item.file is not None else 0
        words = "; ".join([item.says, *item.notes])
        rows.append([(item.kind, "cyan"), (item.name, "bold"), size(kept), words])
    return Table(columns, rows)


def _entry(item: Staged) -> dict[str, Any]:
    weights = item.weights
    return {
        "name": item.name,
        "source": item.source,
        "kind": item.kind,
        "says": item.says,
        "notes": item.notes,
        "epoch": weights.epoch if weights is not None else None,
        "tensors": weights.tensors if weights is not None else None,
        "parameters": weights.parameters if weights is not None else None,
        "hash": item.file.hash if item.file is not None else None,
        "bytes": item.file.bytes if item.file is not None else weights.bytes if weights is not None else 0,
        "hyperparameters": item.hyperparameters,
    }
