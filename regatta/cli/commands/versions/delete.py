"""`regatta delete VERSION ...`: deletes versions; `gc` frees what only they used."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo, command, opened_repo
from regatta.errors import ConflictError


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "delete",
        help="delete versions",
        description="Delete versions: all of those named, or none. `gc` frees what only they used.",
    )
    parser.add_argument("versions", metavar="VERSION", nargs="+", help="name@number, a tag, or the beginning of an id")
    parser.add_argument("--force", action="store_true", help="also versions with tags or children")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.json_documents import document

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
        ui.write_json(document(deleted=[{"reference": each.reference, "id": each.id} for each in chosen]))
    else:
        for version in chosen:
            ui.write(f"deleted {version.reference}  {version.id[:10]}")
        ui.message(f"What only they used is freed after two weeks; at once: {command()} gc --grace 0")
    return 0
