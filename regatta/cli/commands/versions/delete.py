"""`regatta delete VERSION ...`: deletes versions, or a run with its versions; `gc` frees what only they used."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, command, opened_repo, typed_without
from regatta.errors import ConflictError, NotFoundError, UsageError
from regatta.format import count, size

if TYPE_CHECKING:
    from regatta.repo import Repo
    from regatta.repo.edit.delete import DeletePlan
    from regatta.repo.edit.preview import DeletePreview

NAME, HELP = "delete", "delete versions, or runs with their versions"
DESCRIPTION = (
    "Delete versions, all of those named or none, or a run with its versions. `undo` takes it back until `gc` frees "
    "what only they used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="VERSION", nargs="+", help="name@number, a tag, the beginning of an id, or the name of one run"
    )
    parser.add_argument("--force", action="store_true", help="also versions with tags or children")
    parser.add_argument("--run", action="store_true", dest="is_run", help="VERSION is the name of a run")
    parser.add_argument("--keep-versions", action="store_true", help="delete the run, but keep its versions")
    parser.add_argument("--dry-run", action="store_true", help="show what would be deleted, and the bytes")
    parser.add_argument("--yes", action="store_true", help="delete a run without asking")
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    from regatta.repo.edit.delete import plan_run, plan_versions
    from regatta.repo.edit.preview import preview

    with opened_repo(args) as repo:
        name = _run_name(repo, args)
        try:
            if name is not None:
                plan = plan_run(repo, name, keep_versions=args.keep_versions, force=args.force)
            else:
                plan = plan_versions(repo, [repo.version(each) for each in args.names], args.force)
            found = preview(repo, plan) if args.dry_run or name is not None else None
            if args.dry_run:
                return _show(args, name, plan, found)
            if name is not None and not args.yes and not _confirmed(name, plan, found):
                ui.message("Nothing was deleted.")
                return 1
            if name is not None:
                done = repo.delete_run(name, keep_versions=args.keep_versions, force=args.force)
            else:
                done = repo.delete_versions(plan.versions, force=args.force)
        except ConflictError as error:
            if error.hint is None or "force=True" not in error.hint:
                raise
            raise ConflictError(error.message, hint="Delete it all the same: --force") from error
    if args.json:
        ui.write_json(deleted=_entries(plan), run=done.run, undo=done.undo, **_bytes(found))
        return 0
    if done.run is not None:
        ui.write(f"deleted {_title(done.run, plan)}")
    else:
        for version in done.versions:
            ui.write(f"deleted {version.reference}  {version.id[:10]}")
    if done.undo is None:
        ui.message("The disk has no room to remember it, so it cannot be taken back.")
    else:
        ui.message(f"To take it back: {command()} undo")
    ui.message(f"What only they used is freed after two weeks; at once: {command()} gc --grace 0")
    return 0


def _run_name(repo: Repo, args: argparse.Namespace) -> str | None:
    """The run that is meant; None if versions are. A name that is both must be made clear."""
    from regatta.repo.edit.delete import find_run

    first = args.names[0]
    if len(args.names) > 1:
        if args.is_run or args.keep_versions:
            raise UsageError("One run is deleted at a time.", hint="Name one of them.")
        return None
    try:
        find_run(repo, first)
    except NotFoundError:
        if args.is_run or args.keep_versions:
            raise
        return None
    if args.is_run or args.keep_versions:
        return str(first)
    try:
        version = repo.version(first)
    except NotFoundError:
        return str(first)
    raise UsageError(
        f"{first!r} is a run, and also the version {version.reference}.",
        hint=f"For the run: {command()} delete --run {first}\nFor the version: {command()} delete {version.reference}",
    )


def _confirmed(name: str, plan: DeletePlan, found: DeletePreview | None) -> bool:
    """Whether the user agrees; without a terminal nobody can be asked, and the command itself is enough."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return True
    ui.message(f"This deletes {_title(name, plan)}: {size(found.bytes if found is not None else 0)}. Go on? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(args: argparse.Namespace, name: str | None, plan: DeletePlan, found: DeletePreview | None) -> int:
    if args.json:
        ui.write_json(dry_run=True, deleted=_entries(plan), run=name, **_bytes(found))
        return 0
    for version in plan.versions:
        ui.write(f"would delete {version.reference}  {version.id[:10]}")
    if name is not None:
        ui.write(f"would delete {_title(name, plan)}")
    if found is not None:
        parts = {"weights": found.store_bytes, "files": found.file_bytes, "the run's folder": found.run_bytes}
        said = ", ".join(f"{what} {size(number)}" for what, number in parts.items() if number)
        ui.write(f"gc would then free {size(found.bytes)}{': ' if said else ''}{said}")
    ui.message(f"Nothing was changed. Without --dry-run it is done: {typed_without(args, '--dry-run')}")
    return 0


def _title(name: str, plan: DeletePlan) -> str:
    return f"the run {name} with {count(len(plan.versions), 'version')}"


def _entries(plan: DeletePlan) -> list[dict[str, Any]]:
    return [{"reference": each.reference, "id": each.id} for each in plan.versions]


def _bytes(found: DeletePreview | None) -> dict[str, int]:
    if found is None:
        return {}
    parts = {"store_bytes": found.store_bytes, "file_bytes": found.file_bytes, "run_bytes": found.run_bytes}
    return {"bytes": found.bytes, **parts}
