"""`regatta fsck`: checks that nothing in the repository is lost or damaged."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command
from regatta.format import count

DEPTHS = ("structure", "checksums", "deep")
NAME, HELP = "fsck", "check that nothing is lost or damaged"
DESCRIPTION = "Check the catalog, the files and the weights. Exit code 1 if there is a problem."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--depth", choices=DEPTHS, default="structure",
        help="structure: nothing is missing; checksums: and no byte has changed; "
        "deep: and every tensor decodes to its original bits (default: structure)",
    )  # fmt: skip
    parser.add_argument(
        "--repair", action="store_true",
        help="mend what can be mended: the catalog from its log, the index from the pack files, files from copies",
    )  # fmt: skip
    parser.add_argument(
        "--rebuild-index", action="store_true", help="make the index of the weights again from the pack files"
    )
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.fsck import check_folder

    found = check_folder(args.repo, args.depth, args.repair, args.rebuild_index)
    if args.json:
        counts = {"versions": found.versions, "files": found.files, "snapshots": found.store.snapshots}
        stored = {"tensors": found.store.tensors, "packs": found.store.packs, "leftovers": found.leftovers}
        said = {"problems": found.problems, "repaired": found.repaired, "lost": found.lost}
        ui.write_json(clean=found.clean, depth=args.depth, **counts, **stored, **said)
        return 0 if found.clean else 1
    for problem in found.problems:
        ui.write(problem)
    for text in found.repaired:
        ui.write(f"repaired: {text}")
    for text in found.lost:
        ui.write(f"lost: {text}")
    seen = [(found.versions, "version"), (found.store.snapshots, "snapshot"), (found.store.tensors, "tensor")]
    checked = ", ".join(count(number, what) for number, what in [*seen, (found.files, "file")])
    if found.clean:
        ui.write(f"clean: {checked} ({args.depth})")
        if args.depth != "deep":
            ui.message(f"To check every bit: {command()} fsck --depth deep")
    else:
        ui.write(f"{count(len(found.problems), 'problem')} in {checked} ({args.depth})")
        again = f"fsck --depth {args.depth}" if args.repair else "fsck --repair"
        ui.message(f"{'To check again' if args.repair else 'To repair what can be repaired'}: {command()} {again}")
    if found.leftovers:
        ui.message(f"{count(found.leftovers, 'item')} that no version uses; to free the space: {command()} gc")
    return 0 if found.clean else 1
