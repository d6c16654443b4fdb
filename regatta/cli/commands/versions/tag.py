"""`regatta tag`: lists, sets, moves and removes tags of versions."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo
from regatta.cli.output.table import Cell, Table, left, sentences
from regatta.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from regatta.repo import Repo

NAME, HELP = "tag", "list tags, or tag a version"
DESCRIPTION = "Without arguments, list all tags. With NAME and VERSION, tag that version."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the tag, such as production")
    parser.add_argument(
        "version", metavar="VERSION", nargs="?", help="a name, name@number, tag, or the beginning of an id"
    )
    parser.add_argument("--move", action="store_true", help="move the tag from the version that has it")
    parser.add_argument("--delete", action="store_true", help="remove the tag; the version stays")
    parser.add_argument("--names", action="store_true", help="print only the names of all tags, one per line")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        if args.name is None:
            _list(repo, args)
        elif args.delete:
            _delete(repo, args)
        else:
            _set(repo, args)
    return 0


def _set(repo: Repo, args: argparse.Namespace) -> None:
    if args.version is None:
        raise UsageError("The version of the tag is missing.", hint=f"Write: {command()} tag {args.name} VERSION")
    version = repo.version(args.version)
    try:
        tag = repo.tag(version, args.name, move=args.move)
    except ConflictError as error:
        move = error.hint is not None  # the other reason, a version of that name, nothing can be done about
        raise ConflictError(error.message, hint="Move it: --move" if move else None) from error
    if args.json:
        ui.write_json(tag=_entry(tag.name, version, tag.created))
    else:
        ui.write(f"{tag.name} is {version.reference}")


def _delete(repo: Repo, args: argparse.Namespace) -> None:
    if args.version is not None:
        raise UsageError(
            "--delete takes the name of the tag alone.", hint=f"Write: {command()} tag --delete {args.name}"
        )
    repo.untag(args.name)
    if args.json:
        ui.write_json(deleted=args.name)
    else:
        ui.write(f"{args.name} is not a tag any more")


def _list(repo: Repo, args: argparse.Namespace) -> None:
    found = [(tag, repo.catalog.of_id(tag.version)) for tag in repo.tags()]
    if args.names:
        for tag, _ in found:
            ui.write(tag.name)
    elif args.json:
        ui.write_json(tags=[_entry(tag.name, version, tag.created) for tag, version in found])
    elif found:
        rows: list[list[Cell]] = []
        for tag, version in found:
            since = datetime.fromtimestamp(tag.created).strftime("%Y-%m-%d %H:%M")
            rows.append([(tag.name, "bold"), version.reference, version.id[:10], since, version.message])
        columns = [left("tag", 0), left("version", 0), left("id", 3), left("since", 2), sentences("")]
        ui.write_table(Table(columns, rows))
    else:
        ui.message(f"There is no tag yet. To set one: {command()} tag NAME VERSION")


def _entry(name: str, version: Any, created: float) -> dict[str, Any]:
    return {"name": name, "version": version.reference, "id": version.id, "created": created}
