"""`regatta eval VERSION --data FILE`: the labels of full precision, from few bytes of the weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from regatta import format as fmt
from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, add_version, opened_repo
from regatta.cli.output.table import Cell, Table, TableColumn
from regatta.errors import UsageError

if TYPE_CHECKING:
    from regatta.repo.evaluate import Evaluation

NAME, HELP = "eval", "label inputs, and compute accuracy, from the leading bytes of the weights"
DESCRIPTION = (
    "Label inputs, and compute accuracy. The command reads the two leading bytes of each weight, then "
    "more of the weights that matter most, until every label is certain to be that of full precision."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_version(parser)
    parser.add_argument(
        "--data",
        metavar="FILE",
        required=True,
        help="inputs and labels: .npz with x and y, .npy, .safetensors, .parquet",
    )
    parser.add_argument("--x", metavar="NAME", help="the array with the inputs (default: x)")
    parser.add_argument("--y", metavar="NAME", help="the array with the true labels (default: y, if present)")
    parser.add_argument(
        "--precision",
        default="auto",
        metavar="auto|full|K",
        help="as few bytes as possible, all bytes, or K bytes of each weight (default: auto)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="SHARE", help="read at most this share of the bytes, such as 0.5"
    )
    parser.add_argument("--top-k", type=int, default=1, metavar="K", help="the K best classes instead of the best one")
    parser.add_argument("--snapshot", metavar="EPOCH", help="the weights after this epoch (default: the last)")
    parser.add_argument("--labels", metavar="FILE", type=Path, help="write the labels to a .npy file")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.evaluate import read_data

    if args.labels is not None and args.labels.suffix != ".npy":
        raise UsageError(f"Labels are written as .npy, not to {str(args.labels)!r}.")
    x, y = read_data(args.data, args.x, args.y)
    snapshot = int(args.snapshot) if args.snapshot is not None and args.snapshot.isdecimal() else args.snapshot
    with opened_repo(args) as repo:
        found = repo.evaluate(
            args.version, x, y, precision=args.precision, top_k=args.top_k, snapshot=snapshot, budget=args.budget
        )
    if args.labels is not None:
        import numpy as np

        try:
            np.save(args.labels, found.labels)
        except OSError as error:
            raise UsageError(f"Cannot write {str(args.labels)!r}: {error.strerror}.") from error
        ui.message(f"Wrote {args.labels}")
    if args.json:
        certain = found.certain.tolist()
        ui.write_json(evaluation={**found.summary(), "labels": found.labels.tolist(), "is_certain": certain})
    else:
        ui.write_table(_table(found))
    if found.fallback is not None:
        ui.message(f"All weights were read: {found.fallback}.")
    return 0


def _table(found: Evaluation) -> Table:
    names = ("stage", "read", "bytes", "of full", "open", "certain by intervals", "by backward bound", "computed")
    columns = [TableColumn(name, right=name not in ("read",)) for name in names]
    rows: list[list[Cell]] = [
        [
            str(number), stage.read, fmt.size(stage.bytes), fmt.share(stage.bytes, found.bytes_full),
            f"{stage.open:,}", f"{stage.intervals:,}", f"{stage.backward:,}", f"{stage.computed:,}",
        ]
        for number, stage in enumerate(found.stages, 1)
    ]  # fmt: skip
    accuracy = "" if found.accuracy is None else f", accuracy {found.accuracy:.4f}"
    best = "" if found.top_k == 1 else f" ({found.top_k} best classes)"
    heading = f"{found.version}: {fmt.count(len(found.labels), 'input')}{best}{accuracy}"
    certain = int(found.certain.sum())
    below = [
        f"{fmt.size(found.bytes_read)} of {fmt.size(found.bytes_full)} read ({found.share:.1%}); "
        f"a single input needs {found.mean_share:.1%} on average"
    ]
    if certain < len(found.labels):
        below.append(f"{len(found.labels) - certain:,} labels are not certain to be those of full precision")
    return Table(columns, rows, above=(heading,), below=tuple(below))
