"""`regatta list`: the versions of a repository, and what came out of what."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo, assignments, moment, opened_repo
from regatta.errors import NotFoundError, UsageError, nearest

if TYPE_CHECKING:
    from regatta.repo import Repo, Versions

LAST = 30


def add_parser(verbs: Verbs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        "list",
        help="the versions that are kept, and which came out of which",
        description="Versions, the newest first, with the lineage among them; of metrics the best value, not the last.",
    )
    parser.add_argument("pattern", metavar="NAME", nargs="?", help="only of this name; * and ? stand for others")
    parser.add_argument("--search", metavar="WORDS", help="words of names, messages, hyperparameters, file names")
    parser.add_argument(
        "--where", metavar="NAME=VALUE", action="append", default=[],
        help="with this hyperparameter; said twice for one name, either value",
    )  # fmt: skip
    parser.add_argument("--metric", metavar="NAME", help="only what has this metric, and show it")
    parser.add_argument("--best", action="store_true", help="the best by --metric first, instead of the newest")
    parser.add_argument("--mode", choices=("min", "max"), help="which values of a metric are good; by its name if not")
    parser.add_argument("--run", metavar="RUN", dest="of_run", help="only what this run left")
    parser.add_argument("--since", metavar="WHEN", type=moment, help="a date, or a time ago: 30min, 3h, 2d")
    parser.add_argument("--until", metavar="WHEN", type=moment, help="the same, for the other end")
    parser.add_argument("-n", "--last", metavar="N", type=int, help=f"so many; {LAST} by default")
    parser.add_argument("--all", action="store_true", help="every version and every column")
    parser.add_argument("--names", action="store_true", help="only the names of models, one a line")
    parser.add_argument("--no-graph", action="store_true", help="without the lines of the lineage")
    add_repo(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    with opened_repo(args) as repo:
        limit = None if args.all or (args.json and args.last is None) else args.last or LAST
        found = _chosen(repo, args, limit)
        if args.names:
            _show_names(found, args.json)
        elif args.json:
            _write_json(repo, found)
        else:
            _show(repo, found, args)
    return 0


def _chosen(repo: Repo, args: argparse.Namespace, limit: int | None) -> Versions:
    from regatta.repo import Versions
    from regatta.repo.intake.metrics import usual_mode

    if args.last is not None and args.last < 1:
        raise UsageError(f"{args.last} versions were asked for.", hint="Give a number from 1, or --all.")
    if args.best and args.metric is None:
        raise UsageError("The best come first by some metric.", hint="Name it: --metric loss --best")
    filters: dict[str, Any] = {"search": args.search, "run": args.of_run, "since": args.since, "until": args.until}
    filters |= {"where": _where(args.where), "metric": args.metric, "order": "best" if args.best else "newest"}
    mode = args.mode or usual_mode(args.metric or "")
    found = repo.versions(args.pattern, **filters, mode=mode, limit=None if args.names else limit)
    if not found and args.metric is not None and args.metric not in (known := repo.catalog.metric_names()):
        raise NotFoundError(
            f"No version has the metric {args.metric!r:.100}.",
            candidates=nearest(args.metric, known),
            hint=f"There are: {', '.join(known[:10])}" if known else None,
        )
    return Versions(found, repo.links(found))


def _where(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for word in words:
        for name, value in assignments([word], "optimizer=adam").items():
            found.setdefault(name, []).append(value)
    return found


def _show_names(found: Versions, as_json: bool) -> None:
    from regatta.cli.output.json_documents import document

    counts: dict[str, int] = {}
    for version in found:
        counts[version.name] = counts.get(version.name, 0) + 1
    if as_json:
        ui.write_json(document(names=[{"name": name, "versions": counts[name]} for name in sorted(counts)]))
        return
    for name in sorted(counts):
        ui.write(name)


def _write_json(repo: Repo, found: Versions) -> None:
    from regatta.cli.output.json_documents import document
    from regatta.cli.output.version_tables import listed_entries

    ui.write_json(document(versions=listed_entries(found, repo.tags()), total=repo.catalog.count()))


def _show(repo: Repo, found: Versions, args: argparse.Namespace) -> None:
    from regatta.cli.output.version_tables import tags_by_version, version_table
    from regatta.format import count

    total = repo.catalog.count()
    if not found:
        ui.message(_nothing(total))
        return
    shown = {version.id for version in found}
    graph = not args.no_graph and not args.best and any(link.base in shown for link in found.links)
    tags = tags_by_version(repo.tags())
    look = {"metric": args.metric, "mode": args.mode, "graph": graph, "wide": args.all, "room": ui.room()}
    ui.write_table(version_table(found, tags, **look))
    if len(found) < total:
        ui.message(f"{len(found)} of {count(total, 'version')}")


def _nothing(total: int) -> str:
    from regatta.cli.arguments import command

    if total:
        return f"None of the {total:,} versions is like that."
    words = command()
    return f"There is no version yet. Runs leave some ({words} demo); or: {words} add FILE, {words} commit NAME"
