"""`regatta add`, `unstage` and `status`: what the next commit will hold."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo, command, opened_repo

if TYPE_CHECKING:
    from regatta.cli.output.table import Table
    from regatta.repo.intake.staging import Staged

KINDS = ("weights", "network", "metrics", "hyperparameters", "file")
UNDERSTOOD = (
    "Weights: .safetensors, .npz, .pt .pth .bin .ckpt (state dicts), .pt2 (exported programs). Network and weights: "
    ".onnx. Metrics: .csv .tsv .jsonl with a column step, epoch or iteration. Hyperparameters: .json .yaml .toml. "
    "Anything else is kept as it is. Nothing of a file is executed or unpickled."
)


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "add",
        help="stage files for the next version: weights, networks, logs, settings, anything",
        description=f"Stage files, or all files of folders, as they are now, for the next commit. {UNDERSTOOD}",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a file or a folder")
    parser.add_argument("--as", dest="kind", choices=KINDS, help="what they are, where that is guessed wrong")
    parser.add_argument("--epoch", metavar="N", type=int, help="the weights are those after this epoch")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.repo.intake.staging import add

    with opened_repo(args) as repo:
        made = add(repo, args.paths, kind=args.kind, epoch=args.epoch)
    _tell(made, args.json, "staged")
    if not args.json:
        ui.message(f"Next: {command()} commit NAME -m 'what it is'")
    return 0


@dataclass(frozen=True)
class Unstage:
    """`unstage` has no file of its own: it is `add` the other way round."""

    def add_parser(self, verbs: Verbs) -> argparse.ArgumentParser:
        parser = verbs.add_parser(
            "unstage",
            help="take files out of the next version",
            description="Take files out of what the next commit will hold; the files themselves are not touched.",
        )
        parser.add_argument("paths", metavar="NAME", nargs="*", help="what `status` lists; all of it by default")
        add_repo(parser)
        add_json(parser)
        return parser

    def run(self, args: argparse.Namespace) -> int:
        from regatta.repo.intake.staging import unstage

        with opened_repo(args) as repo:
            gone = unstage(repo, args.paths or None)
        _tell(gone, args.json, "unstaged")
        if not args.json:
            ui.message(f"No longer staged: {len(gone)} of these." if gone else "Nothing is staged.")
        return 0


@dataclass(frozen=True)
class Status:
    def add_parser(self, verbs: Verbs) -> argparse.ArgumentParser:
        parser = verbs.add_parser(
            "status",
            help="what is staged, and what the repository holds",
            description="What the next commit will hold, and how much there is already.",
        )
        add_repo(parser)
        add_json(parser)
        return parser

    def run(self, args: argparse.Namespace) -> int:
        from regatta.cli.output.json_documents import document
        from regatta.format import count
        from regatta.repo.intake.staging import staged

        with opened_repo(args) as repo:
            items, versions, names = staged(repo), repo.catalog.count(), len(repo.catalog.names())
            folder, read_only = repo.folder, repo.read_only
        if args.json:
            found = {"versions": versions, "models": names, "staged": [_entry(item) for item in items]}
            ui.write_json(document(folder=folder, read_only=read_only, **found))
            return 0
        holds = f"{count(versions, 'version')} of {count(names, 'model')}"
        ui.write(f"{os.path.relpath(folder)}: {holds}{', for reading only' if read_only else ''}")
        if items:
            ui.write_table(_table(items))
            ui.message(f"Next: {command()} commit NAME -m 'what it is'; or {command()} unstage")
        else:
            ui.write("nothing is staged")
        return 0


unstage, status = Unstage(), Status()


def _tell(items: Sequence[Staged], as_json: bool, what: str) -> None:
    from regatta.cli.output.json_documents import document

    if as_json:
        ui.write_json(document(**{what: [_entry(item) for item in items]}))
    elif items:
        ui.write_table(_table(items))


def _table(items: Sequence[Staged]) -> Table:
    from regatta.cli.output.table import Cell, Table, left, right
    from regatta.format import size

    columns = [left("staged as"), left("file"), right("size"), left("")]
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
