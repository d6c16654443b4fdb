"""`regatta desc VERSION`: describes a version as text, as JSON, or as a page with charts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo
from regatta.errors import DataError, NotFoundError, UsageError


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "desc",
        help="describe a version: network, parameters, metrics, weight distributions",
        description="Describe a version. Only the leading bytes of weights are read; histograms are still exact.",
    )
    parser.add_argument("version", metavar="VERSION", help="name, name@number, tag or id; VERSION:EPOCH for a snapshot")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with histograms, curves and the network"
    )
    parser.add_argument(
        "--input", metavar="FILE", type=Path, help="with --html: a .npy or .npz array; the page shows its activations"
    )
    parser.add_argument("--exact", action="store_true", help="read all bytes of the weights")
    parser.add_argument("--no-weights", action="store_true", help="do not read the weights")
    parser.add_argument("--all", action="store_true", help="show every layer, tensor and file")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.repo import Repo

    if args.input is not None and args.html is None:
        raise UsageError("Activations are shown on a page.", hint="Name the page: --html FILE")
    inputs = None if args.input is None else _arrays(args.input)
    with Repo.open(args.repo) as repo:
        found = repo.portrait(args.version, exact=args.exact, look=not args.no_weights, inputs=inputs)
    if args.html is not None:
        from regatta.cli.output.write_file import write_file
        from regatta.web import version_page

        ui.message(f"Wrote {write_file(args.html, version_page.page(found))}")
    if args.json:
        from regatta.cli.output.json_documents import document
        from regatta.cli.output.version_text import as_json

        ui.write_json(document(**as_json(found)))
    elif args.html is None:
        from regatta.cli.output.version_text import tables

        for number, table in enumerate(tables(found, args.all)):
            if number:
                ui.write("")
            ui.write_table(table)
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
