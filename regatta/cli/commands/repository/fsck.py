"""`regatta fsck`: whether all that a repository says it has is there, and is what it was."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo, command, opened_repo

if TYPE_CHECKING:
    from regatta.repo.fsck import RepoFsckResult

DEPTHS = ("structure", "checksums", "deep")


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "fsck",
        help="check that nothing is lost or damaged",
        description="Check the catalog, the files and the weights; exit code 1 where something is wrong.",
    )
    parser.add_argument(
        "--depth", choices=DEPTHS, default="structure",
        help="structure: all that is named is there; checksums: and no byte has changed; "
        "deep: and every tensor, recreated, is the one it was (default: structure)",
    )  # fmt: skip
    parser.add_argument("--repair", action="store_true", help="move aside what is bad, replace it where that can be")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from regatta.cli.output.json_documents import document

    with opened_repo(args) as repo:
        found = repo.fsck(args.depth, repair=args.repair)
    if args.json:
        counts = {"versions": found.versions, "files": found.files, "snapshots": found.store.snapshots}
        stored = {"tensors": found.store.tensors, "packs": found.store.packs, "leftovers": found.leftovers}
        said = {"problems": found.problems, "repaired": found.store.repaired, "lost": found.store.lost}
        ui.write_json(document(clean=found.clean, depth=args.depth, **counts, **stored, **said))
    else:
        _show(found, args.depth)
    return 0 if found.clean else 1


def _show(found: RepoFsckResult, depth: str) -> None:
    from regatta.format import count

    for problem in found.problems:
        ui.write(problem)
    for text in found.store.repaired:
        ui.write(f"repaired: {text}")
    for text in found.store.lost:
        ui.write(f"lost: {text}")
    seen = [(found.versions, "version"), (found.store.snapshots, "snapshot"), (found.store.tensors, "tensor")]
    checked = ", ".join(count(number, what) for number, what in [*seen, (found.files, "file")])
    if found.clean:
        ui.write(f"clean: {checked} ({depth})")
        if depth != "deep":
            ui.message(f"Every bit of it: {command()} fsck --depth deep")
    else:
        ui.write(f"{count(len(found.problems), 'problem')} in {checked} ({depth})")
        ui.message(f"What can be mended, is: {command()} fsck --repair")
    if found.leftovers:
        ui.message(f"{count(found.leftovers, 'thing')} that no version needs: {command()} gc")
