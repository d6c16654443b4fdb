"""`regatta undo`: takes back a deletion, as long as gc has not freed its content."""

from __future__ import annotations

import argparse
from datetime import datetime

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo
from regatta.cli.output.table import Cell, Table, left
from regatta.format import count

NAME, HELP = "undo", "take back a deletion, until gc"
DESCRIPTION = "Take back the newest `delete`, or the one with this ID, as long as `gc` has not freed its content."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("deletion", metavar="ID", nargs="?", help="the id of a deletion, or the name of a deleted run")
    parser.add_argument("--list", action="store_true", help="list the deletions that can be taken back")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        if args.list:
            found = repo.deletions()
        else:
            done = repo.undo(args.deletion)
    if args.list:
        if args.json:
            keys = [{"id": each.id, "time": each.time, "title": each.title, "run": each.run_name} for each in found]
            ui.write_json(deletions=keys)
            return 0
        rows: list[list[Cell]] = [
            [each.id, datetime.fromtimestamp(each.time).strftime("%Y-%m-%d %H:%M"), each.title] for each in found
        ]
        if rows:
            ui.write_table(Table([left("id"), left("deleted"), left("")], rows))
        else:
            ui.message("There is no deletion to take back.")
        return 0
    if args.json:
        ui.write_json(id=done.deletion.id, versions=done.versions, run=done.run, lost_tags=done.lost_tags)
        return 0
    if done.run is not None:
        ui.write(f"the run {done.run} is back, with {count(len(done.versions), 'version')}")
    else:
        for reference in done.versions:
            ui.write(f"{reference} is back")
    for tag in done.lost_tags:
        ui.message(f"The tag {tag!r} is at another version now; to move it: {command()} tag {tag} VERSION --move")
    return 0
