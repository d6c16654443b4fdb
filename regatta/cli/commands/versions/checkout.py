"""`regatta checkout VERSION PATH`: writes weights to a file, or a version to a folder."""

from __future__ import annotations

import argparse
import os

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, add_version, opened_repo
from regatta.errors import ConflictError
from regatta.format import size

NAME, HELP = "checkout", "write the weights of a version to a file, or the version to a folder"
DESCRIPTION = (
    "If PATH ends in .safetensors, .npz, .pt or .pth, write the weights to that file; .onnx is the network with its "
    "weights, for inference. Otherwise PATH is a folder for weights.safetensors, version.json and files/. "
    "Nothing is written outside PATH."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_version(parser)
    parser.add_argument("path", metavar="PATH", help="the file or folder to write")
    parser.add_argument(
        "--snapshot", metavar="N", help="an epoch, a position if there are no epochs, or the beginning of an id"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.references import split_reference

    with opened_repo(args) as repo:
        version, snapshot = split_reference(repo, args.version, wanted_snapshot(args.snapshot))
        try:
            path = repo.checkout(version, args.path, snapshot=snapshot, overwrite=args.force)
        except ConflictError as error:
            raise ConflictError(error.message, place=error.place, hint="Choose another path, or --force.") from error
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    total = sum(each.stat().st_size for each in files)
    if args.json:
        ui.write_json(reference=version.reference, id=version.id, path=path, files=files, bytes=total)
    else:
        many = "" if path.is_file() else f", {len(files)} files"
        ui.write(f"{version.reference} -> {os.path.relpath(path)}{many}, {size(total)}")
    return 0


def wanted_snapshot(text: str | None) -> int | str | None:
    """The argument of --snapshot: up to nine digits are an epoch, anything else is the beginning of an id."""
    if text is not None and text.removeprefix("-").isdecimal() and len(text) <= 9:
        return int(text)
    return text
