"""The output of `list` and `log`: versions as tables, lines of text, and JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from regatta import format as fmt
from regatta.cli.output.lineage_graph import DrawnNode, children_first, draw, strokes
from regatta.cli.output.table import (
    Cell,
    Table,
    TableColumn,
    ValueCell,
    left,
    right,
    sentences,
    shared_lines,
    size_cell,
    split_values,
    value_cell,
    values_column,
)

if TYPE_CHECKING:
    from regatta.repo import Repo, Version, Versions
    from regatta.repo.catalog.records import Link, MetricRange, Tag

SHORT = 10  # digits of an id that are shown


def run_names(repo: Repo, versions: Iterable[Version]) -> dict[str | None, str]:
    """The present name of each run that versions come from, by its series, which keeps the first name."""
    runs = map(repo.catalog.run, {version.run for version in versions if version.run is not None})
    return {run.series: run.name for run in runs if run is not None}


def version_entry(version: Version, runs: Mapping[str | None, str]) -> dict[str, Any]:
    """A version as JSON; the keys are stable."""
    return {
        **version.fields("reference", "id", "name", "number", "created", "message", "hyperparameters"),
        "metrics": {name: asdict(found) for name, found in version.metrics.items()},
        **version.fields("metadata", "git"),
        "run": runs.get(version.run),
        **version.fields("config", "network", "snapshots", "parameters", "bytes"),
    }


def listed_entries(repo: Repo, versions: Versions) -> list[dict[str, Any]]:
    """Versions as JSON, with their tags and parents."""
    tagged, links = tags_by_version(repo.tags()), links_by_version(versions.links)
    found, runs = [], run_names(repo, versions)
    for version in versions:
        parents = [{"id": link.base, "kind": link.kind, "epoch": link.epoch} for link in links.get(version.id, [])]
        found.append({**version_entry(version, runs), "tags": tagged.get(version.id, []), "parents": parents})
    return found


def tags_by_version(tags: Iterable[Tag]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tag in tags:
        found.setdefault(tag.version, []).append(tag.name)
    return found


def links_by_version(links: Iterable[Link]) -> dict[str, list[Link]]:
    """The links of each version to its parents."""
    found: dict[str, list[Link]] = {}
    for link in links:
        found.setdefault(link.derived, []).append(link)
    return found


def drawn(versions: Sequence[Version], links: Iterable[Link]) -> list[DrawnNode]:
    """The lineage between these versions, children first."""
    parents = {ident: [link.base for link in own] for ident, own in links_by_version(links).items()}
    ids = [version.id for version in versions]
    return draw(children_first(ids, parents), parents, strokes(sys.stdout.encoding))


def version_table(
    versions: Versions,
    tags: Mapping[str, list[str]],
    *,
    metric: str | None = None,
    mode: str | None = None,
    graph: bool = False,
    complete: bool = False,
) -> Table:
    """A row for each version: the best values of its metrics, and its hyperparameters that vary.

    Values that all versions share are in a line above the table; a `complete` table has columns for them.
    """
    varying, shared = split_values(version.hyperparameters for version in versions)
    if len(versions) < 2 or complete:
        varying, shared = [*varying, *shared], {}
    columns = _columns(versions, varying, _metrics(versions, metric), tags, mode)
    cells = {version.id: [column.cell(version) for column in columns] for version in versions}
    shown = [each.column for each in columns]
    if not graph:
        return Table(shown, list(cells.values()), shared_lines(shared))
    rows = _beside(drawn(versions, versions.links), cells)
    return Table([left("", 0), *shown], rows, shared_lines(shared))


class _VersionColumn(NamedTuple):
    column: TableColumn
    cell: Callable[[Version], Cell]


def _columns(
    versions: Sequence[Version],
    names: Sequence[str],
    metrics: Sequence[str],
    tags: Mapping[str, list[str]],
    mode: str | None,
) -> list[_VersionColumn]:
    def hyperparameter(name: str, priority: int) -> _VersionColumn:
        values = [v.hyperparameters[name] for v in versions if name in v.hyperparameters]
        shown = f"param.{name}" if name in metrics else name
        return _VersionColumn(values_column(shown, values, priority), lambda v: value_cell(v.hyperparameters.get(name)))

    def metric(name: str, priority: int) -> _VersionColumn:
        return _VersionColumn(right(name, priority), lambda v: _metric_cell(v, name, mode))

    epochs = "epochs" if all(version.config for version in versions) else "snapshots"
    found = [
        _VersionColumn(left("version", 0), lambda v: (v.reference, "bold")),
        *(metric(name, 60 + place if place else 0) for place, name in enumerate(metrics)),
        *(hyperparameter(name, 10 + min(place, 40)) for place, name in enumerate(names)),
        _VersionColumn(right(epochs, 75), lambda v: value_cell(v.snapshots or None)),
        _VersionColumn(right("size", 80), lambda v: size_cell(v.bytes)),
        _VersionColumn(left("created", 70), lambda v: _when(v.created)),
        _VersionColumn(left("id", 90), lambda v: ValueCell(v.id[:SHORT], "dim", v.id)),
    ]
    if any(_remark(version, tags.get(version.id, [])) for version in versions):
        found.append(_VersionColumn(sentences("remark", 5), lambda v: _remark(v, tags.get(v.id, []))))
    return found


def best_of(found: MetricRange, name: str, mode: str | None = None) -> tuple[float, int | None]:
    """The best value of a metric and its step; without `mode`, the name of the metric tells what is better."""
    from regatta.repo.intake.metrics import usual_mode

    least = (mode or usual_mode(name)) == "min"
    return (found.lowest, found.lowest_step) if least else (found.highest, found.highest_step)


def log_lines(version: Version, links: Iterable[Link], names: Mapping[str, str]) -> list[str]:
    """The lines of `log` for a version, below its name; `links` are those to its parents."""
    when = datetime.fromtimestamp(version.created).strftime("%Y-%m-%d %H:%M:%S")
    kept = fmt.count(version.snapshots, "snapshot") if version.snapshots else "no weights"
    weights = f", {version.parameters:,} parameters" if version.parameters else ""
    git = "" if version.git is None else f"  git {git_text(version.git, 'changed')}"
    lines = [f"{when}  {kept}{weights}{git}"]
    lines += [_link_text(link, names) for link in links]
    if version.hyperparameters:
        lines.append(", ".join(f"{name}={fmt.scalar(value)}" for name, value in version.hyperparameters.items()))
    lines += [_metric_line(name, found) for name, found in version.metrics.items()]
    return [*lines, *(f"    {line}" for line in version.message.splitlines())]


def heading(version: Version, tags: Sequence[str]) -> str:
    return f"{version.reference}  {version.id[:SHORT]}{_tagged(tags)}"


def git_text(git: Mapping[str, Any], changed: str) -> str:
    branch = f" on {git['branch']}" if git.get("branch") else ""
    return f"{git['commit'][:SHORT]}{branch}{f', {changed}' if git.get('dirty') else ''}"


LINKS = {
    "derived": "derived from", "copy": "copy of", "clone": "clone of", "child": "child of", "trained": "trained from",
}  # fmt: skip


def _link_text(link: Link, names: Mapping[str, str]) -> str:
    epoch = "" if link.epoch is None else f" after epoch {link.epoch}"
    return f"{LINKS.get(link.kind, link.kind)} {names.get(link.base, link.base[:SHORT])}{epoch}"


def _metric_line(name: str, found: MetricRange) -> str:
    value, step = best_of(found, name)
    at = "" if step in (None, 0) else f" at {step}"
    last = "" if found.last == value or step in (None, 0) else f", last {fmt.metric(found.last)}"
    return f"{name} {fmt.metric(value)}{at}{last}"


def _tagged(tags: Sequence[str]) -> str:
    return f"  [{', '.join(tags)}]" if tags else ""


def _remark(version: Version, tags: Sequence[str]) -> str:
    text = version.message.strip().splitlines()[0] if version.message.strip() else ""
    own = "" if version.config is not None and text.startswith("run ") else text
    status = version.metadata.get("status") if version.config is not None else None
    parts = [_tagged(tags).strip(), str(status) if status not in (None, "done") else "", own]
    return " ".join(part for part in parts if part)


def _metrics(versions: Sequence[Version], wanted: str | None) -> list[str]:
    """The most common metrics first, but the wanted one before them."""
    counts = Counter(name for version in versions for name in version.metrics)
    common = [name for name, _ in counts.most_common()]
    return [name for name in dict.fromkeys([*([wanted] if wanted else []), *common]) if name in counts]


def _when(created: float) -> ValueCell:
    when = datetime.fromtimestamp(created)
    return ValueCell(when.strftime("%Y-%m-%d %H:%M"), "", when.isoformat(timespec="seconds"))


def _metric_cell(version: Version, name: str, mode: str | None) -> Cell:
    found = version.metrics.get(name)
    return value_cell(None if found is None else best_of(found, name, mode)[0])


def _beside(nodes: Sequence[DrawnNode], cells: Mapping[str, list[Cell]]) -> list[list[Cell]]:
    """Rows with the lineage in front; lines between nodes are rows with empty cells."""
    width = len(next(iter(cells.values()), []))
    rows: list[list[Cell]] = []
    for node in nodes:
        rows += [[line, *[""] * width] for line in node.above]
        rows.append([node.prefix, *cells[node.id]])
        rows += [[line, *[""] * width] for line in node.below]
    return rows
