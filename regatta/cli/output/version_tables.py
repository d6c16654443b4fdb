"""The output of `list` and `log`: versions as tables, lines of text, and JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from regatta import format as fmt
from regatta.cli.output.lineage_graph import DrawnNode, children_first, draw, strokes
from regatta.cli.output.table import Cell, Table, TableColumn, left, shared_lines, split_values, values_column

if TYPE_CHECKING:
    from regatta.repo import Version, Versions
    from regatta.repo.catalog.records import Link, MetricRange, Tag

SHORT = 10  # digits of an id that are shown
MAX_HYPERPARAMETERS, MAX_METRICS = 6, 2  # columns of a table without --all
MIN_MESSAGE_WIDTH = 16  # characters; longer messages are wrapped


def version_entry(version: Version) -> dict[str, Any]:
    """A version as JSON; the keys are stable."""
    return {
        **version.fields("reference", "id", "name", "number", "created", "message", "hyperparameters"),
        "metrics": {name: asdict(found) for name, found in version.metrics.items()},
        **version.fields("metadata", "git"),
        "run": run_name(version),
        **version.fields("config", "network", "snapshots", "parameters", "bytes"),
    }


def listed_entries(versions: Versions, tags: Iterable[Tag]) -> list[dict[str, Any]]:
    """Versions as JSON, with their tags and parents."""
    tagged, links = tags_by_version(tags), links_by_version(versions.links)
    found = []
    for version in versions:
        parents = [{"id": link.base, "kind": link.kind, "epoch": link.epoch} for link in links.get(version.id, [])]
        found.append({**version_entry(version), "tags": tagged.get(version.id, []), "parents": parents})
    return found


def run_name(version: Version) -> str | None:
    """The name of the run of a version; a series is a name and a hash."""
    return None if version.run is None else version.run.rpartition(".")[0]


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


@dataclass(frozen=True)
class _TableColumnCells:
    """A column and its cells by version. If a table is too wide, columns of high rank are dropped first; 0 stays."""

    column: TableColumn
    cells: Mapping[str, Cell]
    rank: int
    shrinks: bool = False

    @property
    def width(self) -> int:
        texts = [cell if isinstance(cell, str) else cell[0] for cell in self.cells.values()]
        widest = max(map(len, [self.column.name, *texts]))
        return min(widest, MIN_MESSAGE_WIDTH) if self.shrinks else widest


def version_table(
    versions: Versions,
    tags: Mapping[str, list[str]],
    *,
    metric: str | None = None,
    mode: str | None = None,
    graph: bool = False,
    wide: bool = False,
    room: int | None = None,
) -> Table:
    """A row for each version: its varying hyperparameters, and the best values of its metrics.

    If the table is wider than `room` characters, the least important columns are left out, and named below.
    """
    varying, shared = split_values(version.hyperparameters for version in versions)
    if len(versions) < 2:
        varying, shared = [*shared, *varying], {}
    nodes = drawn(versions, versions.links) if graph else []
    names = varying if wide else varying[:MAX_HYPERPARAMETERS]
    columns = _columns(versions, names, _metrics(versions, metric, wide), tags, mode, room is None)
    if not wide:
        columns = _fitting(columns, room, max((len(node.prefix) + 2 for node in nodes), default=0))
    cells = {version.id: [column.cells[version.id] for column in columns] for version in versions}
    rows = _beside(nodes, cells) if graph else list(cells.values())
    shown = [each.column for each in columns]
    left_out = [name for name in varying if all(column.name != name for column in shown)]
    listed = f"{', '.join(left_out[:8])}{' ...' if len(left_out) > 8 else ''}"
    below = (f"not shown: {listed} (--all)",) if left_out else ()
    return Table([*([left("")] if graph else []), *shown], rows, shared_lines(shared), below)


def _columns(
    versions: Sequence[Version],
    names: Sequence[str],
    metrics: Sequence[str],
    tags: Mapping[str, list[str]],
    mode: str | None,
    dates: bool,
) -> list[_TableColumnCells]:
    def column(
        name: str, cell: Callable[[Version], Cell], rank: int, right: bool = False, shrinks: bool = False
    ) -> _TableColumnCells:
        return _TableColumnCells(
            TableColumn(name, right), {version.id: cell(version) for version in versions}, rank, shrinks
        )

    def hyperparameter(name: str, rank: int) -> _TableColumnCells:
        values = {v.id: v.hyperparameters[name] for v in versions if name in v.hyperparameters}
        cells = {v.id: fmt.scalar(values[v.id]) if v.id in values else "-" for v in versions}
        return _TableColumnCells(values_column(name, values.values()), cells, rank)

    epochs = "epochs" if all(version.config for version in versions) else "snapshots"
    found = [
        column("version", lambda v: (v.reference, "bold"), 0),
        column("id", lambda v: (v.id[:SHORT], "dim"), 90),
        column("created", lambda v: _when(v.created, dates), 70),
        *(hyperparameter(name, 10 + min(place, 40)) for place, name in enumerate(names)),
        *(
            column(name, lambda v, name=name: _metric_cell(v, name, mode), 1 if not place else 60, True)  # type: ignore[misc]
            for place, name in enumerate(metrics)
        ),
        column(epochs, lambda v: str(v.snapshots) if v.snapshots else "-", 75, True),
        column("size", lambda v: fmt.size(v.bytes) if v.bytes is not None else "-", 80, True),
        column("", lambda v: _remark(v, tags.get(v.id, [])), 5, shrinks=True),
    ]
    return [each for each in found if each.column.name or any(each.cells.values())]


def _fitting(columns: Sequence[_TableColumnCells], room: int | None, taken: int) -> list[_TableColumnCells]:
    """The columns that fit into `room` characters beside the `taken` ones, dropping those of high rank."""
    found = list(columns)
    while room is not None and taken + sum(each.width + 2 for each in found) > room + 2:
        last = max(found, key=lambda each: each.rank)
        if not last.rank:
            break
        found.remove(last)
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


def _link_text(link: Link, names: Mapping[str, str]) -> str:
    epoch = "" if link.epoch is None else f" after epoch {link.epoch}"
    what = {"derived": "derived from", "copy": "copy of", "clone": "clone of", "child": "child of"}
    return f"{what.get(link.kind, link.kind)} {names.get(link.base, link.base[:SHORT])}{epoch}"


def _metric_line(name: str, found: MetricRange) -> str:
    value, step = best_of(found, name)
    at = "" if step in (None, 0) else f" at {step}"
    last = "" if found.last == value or step in (None, 0) else f", last {fmt.metric(found.last)}"
    return f"{name} {fmt.metric(value)}{at}{last}"


def _tagged(tags: Sequence[str]) -> str:
    return f"  [{', '.join(tags)}]" if tags else ""


def _remark(version: Version, tags: Sequence[str]) -> str:
    text = version.message.strip().splitlines()[0] if version.message.strip() else ""
    own = "" if version.config is not None and text == f"run {run_name(version)}" else text
    status = version.metadata.get("status") if version.config is not None else None
    parts = [_tagged(tags).strip(), str(status) if status not in (None, "done") else "", own]
    return " ".join(part for part in parts if part)


def _metrics(versions: Sequence[Version], wanted: str | None, wide: bool) -> list[str]:
    """The most common metrics, with the wanted one first."""
    counts = Counter(name for version in versions for name in version.metrics)
    common = [name for name, _ in counts.most_common()]
    chosen = [name for name in dict.fromkeys([*([wanted] if wanted else []), *common]) if name in counts]
    return chosen if wide else chosen[:MAX_METRICS]


def _when(created: float, dates: bool) -> str:
    """The time of a version; on a terminal, the year is left out if it is the current one."""
    when = datetime.fromtimestamp(created)
    same = not dates and when.year == datetime.now().year
    return when.strftime("%m-%d %H:%M" if same else "%Y-%m-%d %H:%M")


def _metric_cell(version: Version, name: str, mode: str | None) -> str:
    found = version.metrics.get(name)
    return "-" if found is None else fmt.metric(best_of(found, name, mode)[0])


def _beside(nodes: Sequence[DrawnNode], cells: Mapping[str, list[Cell]]) -> list[list[Cell]]:
    """Rows with the lineage in front; lines between nodes are rows with empty cells."""
    width = len(next(iter(cells.values()), []))
    rows: list[list[Cell]] = []
    for node in nodes:
        rows += [[line, *[""] * width] for line in node.above]
        rows.append([node.prefix, *cells[node.id]])
        rows += [[line, *[""] * width] for line in node.below]
    return rows
