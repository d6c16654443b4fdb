"""`regatta desc VERSION`: describes a version as text, as JSON, or as a page with charts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, add_version, command, opened_repo
from regatta.errors import DataError, NotFoundError, UsageError

NAME, HELP = "desc", "describe a version: network, parameters, metrics, weight distributions"
DESCRIPTION = "Describe a version. Only the leading bytes of weights are read; histograms are still exact."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_version(parser)
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with histograms, curves and the network"
    )
    parser.add_argument(
        "--input", metavar="FILE", type=Path, help="with --html: a .npy or .npz array; the page shows its activations"
    )
    parser.add_argument("--exact", action="store_true", help="read all bytes of the weights")
    parser.add_argument("--no-weights", action="store_true", help="do not read the weights")
    parser.add_argument("--all", action="store_true", help="show every layer, tensor and file")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.input is not None and args.html is None:
        raise UsageError("Activations are shown on a page.", hint="Name the page: --html FILE")
    inputs = None if args.input is None else _arrays(args.input)
    with opened_repo(args) as repo:
        found = repo.portrait(args.version, exact=args.exact, look=not args.no_weights, inputs=inputs)
        for file in found.description.files:
            if (reason := repo.files.problem_of(file.hash, file.bytes, whole=True)) is not None:
                ui.message(f"The file {file.path} is damaged: {reason}. To mend it: {command()} fsck --repair")
    if args.html is not None:
        from regatta.web import version_page

        ui.message(f"Wrote {ui.write_file(args.html, version_page.page(found))}")
    if args.json:
        from regatta.cli.output.version_text import as_json

        ui.write_json(**as_json(found))
    elif args.html is None:
        from regatta.cli.output.version_text import tables

        ui.write_tables(tables(found, args.all))
    return 0


def _arrays(path: Path) -> dict[str, Any]:
    """Arrays by name; the array of a .npy file has the name ""."""
    from zipfile import BadZipFile

    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
        return {name: loaded[name] for name in loaded.files} if hasattr(loaded, "files") else {"": loaded}
    except FileNotFoundError as error:
        raise NotFoundError("There is no such file.", place=str(path)) from error
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise DataError("The input is not a .npy or .npz file of plain numbers.", place=str(path)) from error
