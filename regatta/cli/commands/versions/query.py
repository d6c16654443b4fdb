"""`regatta query`: select, derive and train models with DQL."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.cli import table_options, ui
from regatta.cli.arguments import assignments, opened_repo
from regatta.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from regatta.dql.relation import Relation
    from regatta.repo import Repo

MOST_ROWS = 100  # that a table shows
MAX_FILE_CHARACTERS = 1_000_000
NAME, HELP = "query", "select, derive and train models with DQL"
DESCRIPTION = (
    "Run a query in DQL, the query language of models (docs/dql.md). The text is an argument, a file, or the standard "
    "input. Without any of them, a terminal gets a prompt."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the query; - reads it from the standard input")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the query from a file")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="values",
        help="the value of the parameter :NAME; repeat the option for several",
    )  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="show what would run: the SQL, the rows, the models")
    parser.add_argument("--analyze", action="store_true", help="with --explain: run selects, and show their time")
    parser.add_argument(
        "--save", metavar="NAME", help='keep the query under a name, for from "NAME", and do not run it'
    )
    parser.add_argument("--saved", action="store_true", help="list the saved queries")
    parser.add_argument("--forget", metavar="NAME", help="remove a saved query")
    parser.add_argument(
        "--max-models", metavar="N", type=int, help="refuse to make or train more models than this (default: 1000)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="what initialises new layers of networks (default: 0)"
    )
    parser.add_argument("--workers", metavar="N", type=int, help="how many workers train what an evaluate enumerates")
    parser.add_argument("--template", action="store_true", help="print a commented config file for evaluate")
    parser.add_argument("--all", action="store_true", help=f"show every row, not only {MOST_ROWS}")
    parser.add_argument("--parquet", metavar="FILE", help="write the rows to a Parquet file")
    table_options.add_table(parser)


def run(args: argparse.Namespace) -> int:
    table_options.check(args)
    if args.analyze and not args.explain:
        raise UsageError("--analyze needs --explain.")
    if args.parquet is not None and (args.json or table_options.complete(args)):
        raise UsageError("--parquet writes a file, and is given beside another form of output.", hint="Choose one.")
    if args.template:
        from regatta.dql.evaluation.settings import template

        ui.write(template().rstrip())
        return 0
    with opened_repo(args) as repo:
        if args.saved or args.forget is not None:
            _saved(repo, args)
            return 0
        text = _text(args)
        if text is None:
            from regatta.cli.query_prompt import prompt

            def shown(line: str) -> None:
                answer(repo, line, args)

            prompt(repo, shown)
        elif args.save is not None:
            _save(repo, text, args)
        else:
            return answer(repo, text, args)
    return 0


def answer(repo: Repo, text: str, args: argparse.Namespace) -> int:
    """Run a query, and print what it returns; returns the exit code."""
    from regatta.cli.load_sweep import load_sweep
    from regatta.dql.arrow import check_parquet
    from regatta.dql.relation import query
    from regatta.dql.run import MAX_MODELS, QueryContext

    if args.parquet is not None:
        check_parquet(Path(args.parquet))
    most = MAX_MODELS if args.max_models is None else args.max_models
    if most < 0:
        raise UsageError(f"The number of models is {most}; it cannot be negative.")
    launch = {"load_sweep": load_sweep} if args.workers is None else {"load_sweep": load_sweep, "workers": args.workers}
    context = QueryContext(repo, text, max_models=most, seed=args.seed, launch=launch, say=ui.message)
    relation = query(context, assignments(args.values, "name=alexnet") if args.values else {})
    if args.explain or relation.explains:
        _explain(relation, args)
    elif relation.trains:
        return _train(relation, args)
    elif args.parquet is not None:
        _write_parquet(relation.to_arrow(), Path(args.parquet))
    elif relation.derives:
        _show_made(repo, relation, args)
    elif relation.models:
        _show_versions(repo, relation, args)
    else:
        _show_rows(relation, args)
    return 0


def _text(args: argparse.Namespace) -> str | None:
    """The text of the query; None if a person is to be asked for it."""
    if args.text is not None and args.file is not None:
        raise UsageError("The query is given twice: as an argument and as a file.")
    if args.file is not None:
        try:
            with Path(args.file).open(encoding="utf-8") as file:
                return file.read(MAX_FILE_CHARACTERS)
        except FileNotFoundError as error:
            raise NotFoundError("There is no such file.", place=args.file) from error
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The file cannot be read: {error}.", place=args.file) from error
    if args.text is None and sys.stdin.isatty() and args.save is None:
        return None
    if args.text not in (None, "-"):
        return str(args.text)
    try:
        return sys.stdin.read(MAX_FILE_CHARACTERS)
    except UnicodeDecodeError as error:
        raise UsageError("The standard input is not a text in UTF-8.") from error


def _save(repo: Repo, text: str, args: argparse.Namespace) -> None:
    """Keep a query; its parameters get their values when it runs."""
    from regatta.dql.saved_queries import save_query

    repo.check_writable()
    path = save_query(repo.folder, args.save, text)
    if args.json:
        ui.write_json(saved=args.save, path=str(path))
    else:
        ui.message(f'saved: use it as from "{args.save}"')


def _saved(repo: Repo, args: argparse.Namespace) -> None:
    from regatta.cli.output.table import Cell, Table, left, sentences
    from regatta.dql.saved_queries import SavedQueries, forget_query

    if args.forget is not None:
        repo.check_writable()
        forget_query(repo.folder, args.forget)
        ui.message(f"forgotten: {args.forget}")
        return
    known = SavedQueries(repo.folder)
    if args.json:
        ui.write_json(queries=[{"name": name, "text": text} for name, text in known.items()])
    elif not len(known):
        ui.message("No query is saved. Save one: regatta query --save NAME 'select m'")
    else:
        rows: list[list[Cell]] = [[(name, "bold"), " ".join(text.split())] for name, text in known.items()]
        table_options.write(Table([left("name", 0), sentences("query", 0)], rows), args)


def _explain(relation: Relation, args: argparse.Namespace) -> None:
    found = relation.explain(analyze=args.analyze)
    if args.json:
        ui.write_json(explain=found.to_dict())
    else:
        ui.write(str(found))


def _write_parquet(table: pa.Table, path: Path) -> None:
    from regatta.dql.arrow import write_parquet

    write_parquet(table, path)
    ui.message(f"{table.num_rows:,} rows in {path}")


def _show_versions(repo: Repo, relation: Relation, args: argparse.Namespace) -> None:
    from regatta.cli.output.version_tables import best_of, listed_entries, tags_by_version, version_table
    from regatta.dql.relation import metrics_at_their_end
    from regatta.repo import Versions

    found = relation.versions()
    if args.json:
        ui.write_json(versions=listed_entries(repo, Versions(found, repo.links(found))))
        return
    complete = table_options.complete(args)
    if not found and not complete:
        ui.message("No model matches.")
        return
    tags = tags_by_version(repo.tags())
    ui.show_wide(args.wide or args.all)
    table_options.write(version_table(found, tags, complete=complete), args, None if args.all else MOST_ROWS)
    for name in metrics_at_their_end(relation):
        values = [version.metrics[name] for version in found if name in version.metrics]
        if not complete and any(best_of(value, name)[0] != value.last for value in values):
            ui.message(f"The table shows the best {name}; the query uses the last, not m.metric.{name}.best.")


def _show_made(repo: Repo, relation: Relation, args: argparse.Namespace) -> None:
    """The versions that a slice or construct has made, each with its parent and what is different."""
    from regatta.dql.networks.commit_models import made_rows

    rows = made_rows(repo, relation.versions())
    if args.json:
        ui.write_json(made=rows)
    elif not rows and not table_options.complete(args):
        ui.message("No model matches, so nothing was made.")
    else:
        names = ("version", "parent", "changes", "parameters", "new")
        _write_table(names, [[row[name] for name in names] for row in rows], args)


def _train(relation: Relation, args: argparse.Namespace) -> int:
    """Train what an evaluate enumerates, and print a row for each model."""
    from regatta.dql.arrow import arrow_table
    from regatta.dql.evaluation.result import evaluation_rows

    run = relation.launch()
    code = 0 if run.record.status == "done" else 1
    rows = evaluation_rows(run)
    if args.json:
        ui.write_json(run=run.name, status=run.record.status, rows=rows)
        return code
    if args.parquet is not None:
        _write_parquet(arrow_table(rows, dict.fromkeys(rows[0])), Path(args.parquet))
    else:
        _write_table(list(rows[0]), [list(row.values()) for row in rows], args)
    ui.message(f"\nThe run is {run.name}. More: regatta show {run.name}")
    return code


def _show_rows(relation: Relation, args: argparse.Namespace) -> None:
    from regatta.dql.relation import json_value

    rows = [[json_value(value) for value in row] for row in relation.tuples()]
    if args.json:
        listed = [dict(zip(relation.columns, row, strict=True)) for row in rows]
        ui.write_json(columns=list(relation.columns), rows=listed)
        return
    if not rows and not table_options.complete(args):
        ui.message("No row matches.")
        return
    _write_table(relation.columns, rows, args)


def _write_table(names: Sequence[str], rows: Sequence[Sequence[Any]], args: argparse.Namespace) -> None:
    from regatta.cli.output.table import Table, values_column

    columns = [
        values_column(name, [row[place] for row in rows if row[place] is not None], 0 if place < 3 else place)
        for place, name in enumerate(names)
    ]
    cells = [[_cell(value) for value in row] for row in rows]
    ui.show_wide(args.wide or args.all)
    table_options.write(Table(columns, cells), args, None if args.all else MOST_ROWS)


def _cell(value: Any) -> Any:
    from regatta.cli.output.table import value_cell

    if isinstance(value, bool):
        value = str(value).lower()
    return value_cell(", ".join(map(str, value)) if isinstance(value, list) else value)
