"""`regatta log VERSION`: a version and its ancestors."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from regatta.cli import ui
from regatta.cli.arguments import VERSION_HELP, add_repo_and_json, opened_repo

if TYPE_CHECKING:
    from regatta.repo import Repo, Versions

NAME, HELP = "log", "show a version and its ancestors"
DESCRIPTION = "Show a version and its ancestors, newest first. Without VERSION: show every version."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", metavar="VERSION", nargs="?", help=VERSION_HELP)
    parser.add_argument("-n", "--last", metavar="N", type=int, help="at most N versions")
    parser.add_argument("--oneline", action="store_true", help="one line for each version")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.version_tables import listed_entries
    from regatta.repo import Versions

    with opened_repo(args) as repo:
        if args.version is not None:
            whole = repo.log(args.version)
        else:
            every = repo.versions(limit=args.last)
            whole = Versions(every, repo.links(every))
        found = Versions(whole[: args.last], whole.links)
        if args.json:
            ui.write_json(versions=listed_entries(repo, found))
        elif found:
            _show(repo, found, args.oneline)
        else:
            ui.message("There is no version yet.")
    return 0


def _show(repo: Repo, found: Versions, oneline: bool) -> None:
    from regatta.cli.output.version_tables import drawn, heading, links_by_version, log_lines, tags_by_version

    tags, by_id = tags_by_version(repo.tags()), {version.id: version for version in found}
    names = {version.id: version.reference for version in found}
    links = links_by_version(found.links)
    lines: list[str] = []
    for node in drawn(found, found.links):
        version = by_id[node.id]
        lines += [*node.above, f"{node.prefix} {heading(version, tags.get(version.id, []))}", *node.below]
        if not oneline:
            texts = log_lines(version, links.get(version.id, []), names)
            lines += [f"{node.beside:{len(node.prefix)}} {text}".rstrip() for text in texts]
            lines.append(node.beside)
    ui.page("\n".join(lines))
