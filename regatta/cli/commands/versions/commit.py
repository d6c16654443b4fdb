"""`regatta commit NAME`: commits what is staged as a version; `--run RUN` commits a run as versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, assignments, command, opened_repo
from regatta.errors import UsageError
from regatta.format import count

if TYPE_CHECKING:
    from regatta.repo import Repo

NAME, HELP = "commit", "commit what is staged as a version"
DESCRIPTION = (
    "Commit what is staged as a version. The version is durable when the command returns. "
    "The git commit of the current folder is recorded."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the name of the model (default: as the first parent)")
    parser.add_argument("-m", "--message", default="", help="a description")
    parser.add_argument("--parent", metavar="VERSION", action="append", default=[], help="a parent; may be repeated")
    parser.add_argument(
        "--tag", metavar="TAG", action="append", default=[], help="a tag for the version; moved if it exists"
    )
    parser.add_argument(
        "--param", metavar="NAME=VALUE", action="append", default=[], help="a hyperparameter, besides staged files"
    )
    parser.add_argument("--metric", metavar="NAME=NUMBER", action="append", default=[], help="a metric")
    parser.add_argument(
        "--run", metavar="RUN", dest="of_run", help="commit a run instead: a version for each configuration"
    )
    parser.add_argument(
        "--networks", action="store_true", help="with --run: record the networks; calls the functions of the sweep"
    )
    add_repo_and_json(parser)


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        return _commit_run(repo, args) if args.of_run is not None else _commit(repo, args)


def _commit(repo: Repo, args: argparse.Namespace) -> int:
    from regatta.cli.output.version_tables import run_names, version_entry
    from regatta.repo.catalog.names import check_name
    from regatta.repo.intake.staging import commit_staged

    parents = [repo.version(parent) for parent in args.parent]
    if args.name is None and not parents:
        raise UsageError("The version needs a name.", hint=f"Write: {command()} commit NAME -m MESSAGE")
    name = args.name if args.name is not None else parents[0].name
    tags = [check_name(tag, "tag") for tag in args.tag]
    given = {"hyperparameters": assignments(args.param), "metrics": _metric_values(args.metric)}
    ids = [parent.id for parent in parents]
    made = commit_staged(repo, name, **given, parents=ids, message=args.message)
    for tag in tags:
        repo.tag(made, tag, move=True)
    if args.json:
        ui.write_json(committed=version_entry(made, run_names(repo, [made])), tags=tags, parents=ids)
        return 0
    ui.write(f"{made.reference}  {made.id[:10]}{_contents(repo, made.reference)}")
    ui.message(f"To show it: {command()} desc {made.reference}")
    return 0


def _contents(repo: Repo, reference: str) -> str:
    found = repo.describe(reference)
    parts = [
        (len(found.snapshots), "snapshot"),
        (found.version.parameters or 0, "parameter"),
        (len(found.version.hyperparameters), "hyperparameter"),
        (len(found.version.metrics), "metric"),
        (len(found.files), "file"),
    ]
    said = [count(number, what) for number, what in parts if number]
    return f"  {', '.join(said)}" if said else ""


def _commit_run(repo: Repo, args: argparse.Namespace) -> int:
    from regatta.cli.output.version_tables import run_names, version_entry
    from regatta.repo.commit_run import commit_run
    from regatta.run import open_run

    if args.name is not None or args.param or args.metric or args.parent or args.tag:
        raise UsageError("The versions of a run have names, values and parents of their own.", hint="Use --run alone.")
    chosen = open_run(args.of_run, repo=repo.folder)
    networks = chosen.sweep().networks(chosen.record) if args.networks else {}
    versions = commit_run(repo, chosen.folder, record=chosen.record, networks=networks)
    if args.json:
        names = run_names(repo, versions)
        ui.write_json(run=chosen.name, versions=[version_entry(version, names) for version in versions])
        return 0
    snapshots = sum(version.snapshots for version in versions)
    graphs = sum(version.network is not None for version in versions)
    parts = [(len(versions), "version"), (snapshots, "snapshot"), (graphs, "network")]
    ui.write(f"{chosen.name}: {', '.join(count(number, what) for number, what in parts)}")
    ui.message(f"To list them: {command()} list --run {chosen.name}")
    return 0


def _metric_values(words: list[str]) -> dict[str, float]:
    found = {}
    for name, value in assignments(words, "accuracy=0.97").items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"The metric {name!r} is {value!r:.100}, which is not a number.") from None
    return found
