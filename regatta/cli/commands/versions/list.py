"""`regatta list`: the versions of a repository, with their lineage."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from regatta.cli import table_options, ui
from regatta.cli.arguments import assignments, command, moment, opened_repo
from regatta.errors import NotFoundError, UsageError, nearest
from regatta.format import count

if TYPE_CHECKING:
    from regatta.repo import Repo, Versions

DEFAULT_LIMIT = 30
MAX_LISTED = 10  # known names in an error
NAME, HELP = "list", "list the versions, with their lineage"
DESCRIPTION = "List versions, newest first, with the lineage between them, and the best value of each metric."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", metavar="NAME", nargs="?", help="only versions of this name; * and ? are wildcards")
    parser.add_argument("--search", metavar="WORDS", help="words in names, messages, hyperparameters, file names")
    parser.add_argument(
        "--where", metavar="CONDITION", action="append", default=[],
        help="only versions with this hyperparameter (lr=0.1; repeat a name for alternative values), or for which "
        "this holds: 'metric.loss.best < 0.1 and name like \"a%%\"' (docs/dql.md)",
    )  # fmt: skip
    parser.add_argument("--metric", metavar="NAME", help="only versions with this metric, and show it")
    parser.add_argument("--best", action="store_true", help="sort by --metric, best first")
    parser.add_argument(
        "--mode", choices=("min", "max"), help="which values are better (default: by the name of the metric)"
    )
    parser.add_argument("--run", metavar="RUN", dest="of_run", help="only versions of this run")
    parser.add_argument("--since", metavar="WHEN", type=moment, help="a date, or a time ago: 30min, 3h, 2d")
    parser.add_argument("--until", metavar="WHEN", type=moment, help="a date, or a time ago")
    parser.add_argument("-n", "--last", metavar="N", type=int, help=f"at most N versions (default: {DEFAULT_LIMIT})")
    parser.add_argument("--all", action="store_true", help="show every version and every column")
    parser.add_argument("--names", action="store_true", help="print only the names of models, one per line")
    parser.add_argument("--no-graph", action="store_true", help="do not draw the lineage")
    table_options.add_table(parser)


def run(args: argparse.Namespace) -> int:
    table_options.check(args)
    with opened_repo(args) as repo:
        limit = args.last or (None if args.json or table_options.complete(args) else DEFAULT_LIMIT)
        limit = None if args.all else limit
        found = _chosen(repo, args, None if args.names or args.sort is not None else limit)
        if args.names:
            _show_names(found, args.json)
        elif args.json:
            from regatta.cli.output.version_tables import listed_entries

            ui.write_json(versions=listed_entries(repo, found), total=repo.catalog.count())
        else:
            _show(repo, found, args, limit)
    return 0


def _chosen(repo: Repo, args: argparse.Namespace, limit: int | None) -> Versions:
    from regatta.repo import Versions
    from regatta.repo.intake.metrics import usual_mode

    if args.last is not None and args.last < 1:
        raise UsageError(f"{args.last} versions were asked for.", hint="Give a number from 1, or --all.")
    if args.best and args.metric is None:
        raise UsageError("--best needs a metric.", hint="For example: --metric loss --best")
    filters: dict[str, Any] = {"search": args.search, "run": args.of_run, "since": args.since, "until": args.until}
    values, conditions = _split_where(repo, args.where)
    filters |= {"where": _where(values), "metric": args.metric, "order": "best" if args.best else "newest"}
    mode = args.mode or usual_mode(args.metric or "")
    chosen = _keys_of(repo, conditions)
    found = repo.versions(args.pattern, **filters, mode=mode, limit=limit if chosen is None else None)
    if chosen is not None:
        found = Versions([version for version in found if version.key in chosen][:limit])
    if not found:
        _check_known("metric", [args.metric] if args.metric is not None else [], repo.catalog.metric_names())
        _check_known("hyperparameter", filters["where"], repo.catalog.hyperparameter_names())
    return Versions(found, repo.links(found))


def _check_known(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise a NotFoundError for a name that no version has: then a filter that matches nothing is a mistake."""
    for name in names:
        if name not in known:
            listed = f"{', '.join(known[:MAX_LISTED])}{' ...' if len(known) > MAX_LISTED else ''}"
            raise NotFoundError(
                f"No version has the {what} {name!r:.100}.",
                candidates=nearest(name, known),
                hint=f"There are: {listed}" if known else None,
            )


def _similar(repo: Repo, args: argparse.Namespace) -> str:
    """What NAME and --run may have meant, if there is none like them."""
    if args.pattern in repo.catalog.run_names():
        return f" {args.pattern} is a run: {command()} list --run {args.pattern}"
    found: list[str] = []
    for name, known in ((args.pattern, repo.catalog.names()), (args.of_run, repo.catalog.run_names())):
        if name is not None and name not in known:
            found += nearest(name, known)
    return f" Did you mean {' or '.join(found)}?" if found else ""


def _split_where(repo: Repo, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the form NAME=VALUE, also with spaces around the sign, and conditions of DQL."""
    values, conditions = [], []
    for word in words:
        found = re.fullmatch(r"\s*([^\s=<>!()\[\]\"']+)(=(?!=).*|\s*=\s*[^\s=]+\s*)", word, re.DOTALL)
        if found is not None and _is_hyperparameter(repo, found[1]):
            values.append(f"{found[1]}={found[2].strip().removeprefix('=').strip()}")
        elif re.search(r"[\s=<>!]", word) is None:
            raise UsageError(f"{word!r} is not a condition.", hint="For example: lr=0.01, or 'metric.loss.best < 0.1'")
        else:
            conditions.append(word)
    return values, conditions


def _is_hyperparameter(repo: Repo, name: str) -> bool:
    """Whether a version has it, or it is no name of DQL: then the error is about hyperparameters."""
    from regatta.dql.schema import VERSION_ATTRIBUTES

    return repo.catalog.has_hyperparameter(name) or ("." not in name and name not in VERSION_ATTRIBUTES)


def _keys_of(repo: Repo, conditions: Sequence[str]) -> set[int] | None:
    """The keys of the versions for which conditions of DQL hold; None if there are no conditions."""
    if not conditions:
        return None
    relation = repo.query("select m")
    for condition in conditions:
        relation = relation.where(condition)
    return {version.key for version in relation}


def _where(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for word in words:
        for name, value in assignments([word], "optimizer=adam").items():
            found.setdefault(name, []).append(value)
    return found


def _show_names(found: Versions, as_json: bool) -> None:
    counts = Counter(version.name for version in found)
    if as_json:
        ui.write_json(names=[{"name": name, "versions": counts[name]} for name in sorted(counts)])
        return
    for name in sorted(counts):
        ui.write(name)


def _show(repo: Repo, found: Versions, args: argparse.Namespace, limit: int | None) -> None:
    from regatta.cli.output.version_tables import tags_by_version, version_table
    from regatta.run import list_runs

    total = repo.catalog.count()
    complete = table_options.complete(args)
    if not found and not complete:
        start = f"Try {command()} demo; or {command()} add FILE, then {command()} commit NAME"
        if list_runs(repo.folder):
            start = f"A run leaves versions when it ends, or is interrupted after its first unit. See: {command()} runs"
        ui.message(
            f"None of the {total:,} versions matches.{_similar(repo, args)}"
            if total
            else f"There is no version yet. {start}"
        )
        return
    shown = {version.id for version in found}
    ordered = args.no_graph or args.best or args.sort is not None or complete
    graph = not ordered and any(link.base in shown for link in found.links)
    tags = tags_by_version(repo.tags())
    table = version_table(found, tags, metric=args.metric, mode=args.mode, graph=graph, complete=complete)
    ui.show_wide(args.wide or args.all)
    table_options.write(table, args, most=limit)
    if len(found) < total:
        ui.message(f"{len(found)} of {count(total, 'version')}")
