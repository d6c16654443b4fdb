"""The options of commands whose output is a table: --sort, --csv, --md, and --json beside them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regatta.cli import ui
from regatta.cli.arguments import add_repo
from regatta.errors import UsageError

if TYPE_CHECKING:
    from regatta.cli.output.table import Table


def add_table(parser: argparse.ArgumentParser) -> None:
    add_repo(parser)
    tables = parser.add_argument_group("tables", "A terminal shows the columns that it has room for; --wide shows all.")
    tables.add_argument("--sort", metavar="COLUMN", help="sort the rows by a column, smallest first")
    tables.add_argument("--reverse", action="store_true", help="with --sort: largest first")
    formats = tables.add_mutually_exclusive_group()
    formats.add_argument("--csv", action="store_true", help="print every row as CSV, with numbers at full precision")
    formats.add_argument("--md", action="store_true", help="print every row as Markdown")
    formats.add_argument("--json", action="store_true", help="print JSON with stable keys")


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if args.reverse and args.sort is None:
        raise UsageError("--reverse needs --sort.", hint="For example: --sort loss --reverse")
    if args.sort is not None and args.json:
        raise UsageError("--sort is for tables, not for --json.", hint="Sort the JSON with jq, or print --csv.")


def complete(args: argparse.Namespace) -> bool:
    """Whether the output is for other programs or documents, which get every row and column."""
    return bool(args.csv or args.md)


def write(table: Table, args: argparse.Namespace, most: int | None = None, then: Sequence[Table] = ()) -> None:
    """Print a table as the options ask for; people see its first `most` rows, and the tables that follow it.

    A table with --all goes through a pager.
    """
    if args.sort is not None:
        table = table.sort(args.sort, args.reverse)
    if complete(args):
        ui.write(table.to_csv() if args.csv else table.to_markdown())
    elif getattr(args, "all", False):
        ui.page_tables([table, *then])
    else:
        ui.write_tables([table.cut(most), *then])
