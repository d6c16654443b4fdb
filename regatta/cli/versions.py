"""Versions as people and programs see them: rows of a table, lines of a log, documents of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from regatta.cli import figures
from regatta.cli.lineage import Drawn, children_first, draw, strokes
from regatta.cli.tables import Cell, Column, Table

if TYPE_CHECKING:
    from regatta.repo import Version, Versions
    from regatta.repo.records import Link, MetricRange, Tag

SHORT = 10  # digits of an id that are shown
COLUMNS, METRICS = 6, 2  # hyperparameters and metrics that are shown beside each other, unless all are wanted
_MISSING = object()


def version_entry(version: Version) -> dict[str, Any]:
    """A version as JSON; the keys stay."""
    return {
        "reference": version.reference,
        "id": version.id,
        "name": version.name,
        "number": version.number,
        "created": version.created,
        "message": version.message,
        "hyperparameters": version.hyperparameters,
        "metrics": {name: asdict(found) for name, found in version.metrics.items()},
        "metadata": version.metadata,
        "git": version.git,
        "run": run_name(version),
        "config": version.config,
        "network": version.network,
        "snapshots": version.snapshots,
        "parameters": version.parameters,
        "bytes": version.bytes,
    }


def listed_entries(versions: Versions, tags: Iterable[Tag]) -> list[dict[str, Any]]:
    """The same of several, with their tags and parents."""
    tagged, links = tags_by_version(tags), links_by_version(versions.links)
    found = []
    for version in versions:
        parents = [{"id": link.base, "kind": link.kind, "epoch": link.epoch} for link in links.get(version.id, [])]
        found.append({**version_entry(version), "tags": tagged.get(version.id, []), "parents": parents})
    return found


def run_name(version: Version) -> str | None:
    """The name of the run that left it: a series is a name and a hash."""
    return None if version.run is None else version.run.rpartition(".")[0]


def tags_by_version(tags: Iterable[Tag]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tag in tags:
        found.setdefault(tag.version, []).append(tag.name)
    return found


def links_by_version(links: Iterable[Link]) -> dict[str, list[Link]]:
    """The links of each to its parents."""
    found: dict[str, list[Link]] = {}
    for link in links:
        found.setdefault(link.derived, []).append(link)
    return found


def drawn(versions: Sequence[Version], links: Iterable[Link]) -> list[Drawn]:
    """The lineage among these versions, children first."""
    parents = {ident: [link.base for link in own] for ident, own in links_by_version(links).items()}
    ids = [version.id for version in versions]
    return draw(children_first(ids, parents), parents, strokes(sys.stdout.encoding))


def version_table(
    versions: Versions, tags: Mapping[str, list[str]], *, metric: str | None, mode: str | None, graph: bool, wide: bool
) -> Table:
    """A row for each version: what tells it from the others, and the best that it came to."""
    shared, varying = _split([version.hyperparameters for version in versions])
    names = varying if wide else varying[:COLUMNS]
    metrics = _metrics(versions, metric, wide)
    messages = [_remark(version, tags.get(version.id, [])) for version in versions]
    columns = [
        *([Column("")] if graph else []),
        Column("version"),
        Column("id"),
        Column("created"),
        *(Column(name, right=_numeric(name, versions)) for name in names),
        *(Column(name, right=True) for name in metrics),
        Column("epochs" if all(version.config for version in versions) else "snapshots", right=True),
        Column("size", right=True),
        *([Column("")] if any(messages) else []),
    ]
    cells = {
        version.id: _row(version, names, metrics, mode, [text] if any(messages) else [])
        for version, text in zip(versions, messages, strict=True)
    }
    rows = _beside(drawn(versions, versions.links), cells) if graph else list(cells.values())
    return Table(columns, rows, above=_in_all(shared), below=_left_out(varying, names))


def best_of(found: MetricRange, name: str, mode: str | None = None) -> tuple[float, int | None]:
    """The best value of a metric and the step at which it was; which is better is guessed by its name unless said."""
    from regatta.repo.metrics import usual_mode

    least = (mode or usual_mode(name)) == "min"
    return (found.lowest, found.lowest_step) if least else (found.highest, found.highest_step)


def log_lines(version: Version, links: Iterable[Link], names: Mapping[str, str]) -> list[str]:
    """What `log` says of a version, under its name; these are the links to its parents."""
    when = datetime.fromtimestamp(version.created).strftime("%Y-%m-%d %H:%M:%S")
    kept = figures.count(version.snapshots, "snapshot") if version.snapshots else "no weights"
    weights = f", {version.parameters:,} parameters" if version.parameters else ""
    lines = [f"{when}  {kept}{weights}{_git(version)}"]
    lines += [_sentence(link, names) for link in links]
    if version.hyperparameters:
        lines.append(", ".join(f"{name}={figures.scalar(value)}" for name, value in version.hyperparameters.items()))
    lines += [_metric_line(name, found) for name, found in version.metrics.items()]
    return [*lines, *(f"    {line}" for line in version.message.splitlines())]


def heading(version: Version, tags: Sequence[str]) -> str:
    return f"{version.reference}  {version.id[:SHORT]}{_tagged(tags)}"


def _git(version: Version) -> str:
    if version.git is None:
        return ""
    branch = f" on {version.git['branch']}" if version.git.get("branch") else ""
    return f"  git {version.git['commit'][:SHORT]}{branch}{', changed' if version.git.get('dirty') else ''}"


def _sentence(link: Link, names: Mapping[str, str]) -> str:
    epoch = "" if link.epoch is None else f" after epoch {link.epoch}"
    what = {"derived": "derived from", "copy": "copy of", "clone": "clone of", "child": "child of"}
    return f"{what.get(link.kind, link.kind)} {names.get(link.base, link.base[:SHORT])}{epoch}"


def _metric_line(name: str, found: MetricRange) -> str:
    value, step = best_of(found, name)
    at = "" if step in (None, 0) else f" at {step}"
    last = "" if found.last == value or step in (None, 0) else f", last {figures.metric(found.last)}"
    return f"{name} {figures.metric(value)}{at}{last}"


def _tagged(tags: Sequence[str]) -> str:
    return f"  [{', '.join(tags)}]" if tags else ""


def _remark(version: Version, tags: Sequence[str]) -> str:
    text = version.message.strip().splitlines()[0] if version.message.strip() else ""
    own = "" if version.config is not None and text == f"run {run_name(version)}" else text
    status = version.metadata.get("status") if version.config is not None else None
    parts = [_tagged(tags).strip(), str(status) if status not in (None, "done") else "", own]
    return " ".join(part for part in parts if part)


def _split(values: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The hyperparameters that all share, and the names of those that tell them apart."""
    names = list(dict.fromkeys(name for row in values for name in row))
    if len(values) < 2:
        return {}, names
    shared = {}
    for name in names:
        found = [row.get(name, _MISSING) for row in values]
        if all(type(value) is type(found[0]) and value == found[0] for value in found):
            shared[name] = found[0]
    return shared, [name for name in names if name not in shared]


def _metrics(versions: Sequence[Version], wanted: str | None, wide: bool) -> list[str]:
    """The metrics that most of them have; the one that was asked for first."""
    counts: dict[str, int] = {}
    for version in versions:
        for name in version.metrics:
            counts[name] = counts.get(name, 0) + 1
    common = sorted(counts, key=lambda name: -counts[name])
    chosen = [name for name in dict.fromkeys([*([wanted] if wanted else []), *common]) if name in counts]
    return chosen if wide else chosen[:METRICS]


def _row(
    version: Version, names: Sequence[str], metrics: Sequence[str], mode: str | None, remark: Sequence[str]
) -> list[Cell]:
    values = version.hyperparameters
    return [
        (version.reference, "bold"),
        (version.id[:SHORT], "dim"),
        datetime.fromtimestamp(version.created).strftime("%Y-%m-%d %H:%M"),
        *(figures.scalar(values[name]) if name in values else "-" for name in names),
        *(_metric_cell(version, name, mode) for name in metrics),
        str(version.snapshots) if version.snapshots else "-",
        figures.size(version.bytes) if version.bytes is not None else "-",
        *remark,
    ]


def _metric_cell(version: Version, name: str, mode: str | None) -> str:
    found = version.metrics.get(name)
    return "-" if found is None else figures.metric(best_of(found, name, mode)[0])


def _beside(nodes: Sequence[Drawn], cells: Mapping[str, list[Cell]]) -> list[list[Cell]]:
    """Rows with the lineage before them; the lines between nodes are rows with nothing else."""
    width = len(next(iter(cells.values()), []))
    rows: list[list[Cell]] = []
    for node in nodes:
        rows += [[line, *[""] * width] for line in node.above]
        rows.append([node.prefix, *cells[node.id]])
        rows += [[line, *[""] * width] for line in node.below]
    return rows


def _numeric(name: str, versions: Sequence[Version]) -> bool:
    found = [version.hyperparameters[name] for version in versions if name in version.hyperparameters]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)


def _in_all(shared: Mapping[str, Any]) -> tuple[str, ...]:
    text = ", ".join(f"{name}={figures.scalar(value)}" for name, value in shared.items())
    return (f"in all: {text}",) if text else ()


def _left_out(varying: Sequence[str], shown: Sequence[str]) -> tuple[str, ...]:
    hidden = [name for name in varying if name not in shown]
    return (f"not shown: {', '.join(hidden[:8])}{' ...' if len(hidden) > 8 else ''} (--all)",) if hidden else ()
