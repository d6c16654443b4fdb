"""`regatta delete VERSION ...`: deletes versions; `gc` frees what only they used."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo
from regatta.errors import ConflictError

NAME, HELP = "delete", "delete versions"
DESCRIPTION = "Delete versions: all of those named, or none. `gc` frees what only they used."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("versions", metavar="VERSION", nargs="+", help="name@number, a tag, or the beginning of an id")
    parser.add_argument("--force", action="store_true", help="also versions with tags or children")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        chosen = list({found.id: found for found in map(repo.version, args.versions)}.values())
        deleted = {version.id for version in chosen}
        for version in reversed(chosen):
            children = [child.reference for child in repo.children(version) if child.id not in deleted]
            tags = [tag.name for tag in repo.tags() if tag.version == version.id]
            if (children or tags) and not args.force:
                what = [*(f"the tag {tag!r}" for tag in tags), *(f"the child {child}" for child in children)]
                raise ConflictError(
                    f"The version {version.reference} has {', '.join(what[:5])}.",
                    hint="Delete it all the same: --force",
                )
        for version in chosen:
            repo.delete(version, force=True)
    if args.json:
        ui.write_json(deleted=[{"reference": each.reference, "id": each.id} for each in chosen])
    else:
        for version in chosen:
            ui.write(f"deleted {version.reference}  {version.id[:10]}")
        ui.message(f"What only they used is freed after two weeks; at once: {command()} gc --grace 0")
    return 0
