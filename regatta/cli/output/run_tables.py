"""Tables of a run: leaderboard, resources, costs, one configuration, and the list of runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from regatta import format as fmt
from regatta.cli.output.table import (
    Cell,
    Table,
    ValueCell,
    left,
    right,
    seconds_cell,
    sentences,
    shared_lines,
    size_cell,
    split_values,
    value_cell,
    values_column,
)
from regatta.journal.accounting import percentages
from regatta.journal.run_record import ConfigRecord, RunRecord

STYLES = {
    "done": "green",
    "training": "cyan",
    "running": "cyan",
    "waiting": "dim",
    "stopped": "yellow",
    "interrupted": "yellow",
    "failed": "red",
}


def status_cell(status: str) -> tuple[str, str]:
    return status, STYLES.get(status, "")


def leaderboard(record: RunRecord, limit: int | None = None, complete: bool = False) -> Table:
    """Configurations by their best value, best first. Failed ones are shown beyond the limit, with their error.

    Values that all configurations share are in a line above the table; a `complete` table has columns for them.
    """
    ranked = record.leaderboard()
    shown = _within(ranked, limit)
    varying, shared = split_values(config.values for config in ranked)
    names, above = ([*varying, *shared], {}) if complete else (varying, shared)
    remarks = [remark(config, record.metric) for config in shown]
    columns = [
        right("#", 0),
        left("configuration", 0),
        left("status", 0),
        right(f"best {record.metric}", 0),
        *(
            values_column(name, [config.values.get(name) for config in ranked], 10 + place)
            for place, name in enumerate(names)
        ),
        right("at epoch", 60),
        right("last", 70),
        *([sentences("remark", 2)] if any(remarks) else []),
    ]
    rank = {config.id: number for number, config in enumerate(ranked, 1)}
    rows = [_ranked_row(record, c, rank[c.id], names) for c in shown]
    if any(remarks):
        rows = [[*row, text] for row, text in zip(rows, remarks, strict=True)]
    left_out = len(ranked) - len(shown)
    more = (f"and {fmt.count(left_out, 'more configuration')}",) if left_out else ()
    return Table(columns, rows, above=(*_heading(record), *shared_lines(above)), below=more)


def remark(config: ConfigRecord, metric: str) -> str:
    """The last line of a failed configuration's error, or the epoch at which its metric became NaN."""
    if config.error is not None:
        lines = config.error.strip().splitlines()
        return lines[-1] if lines else "failed without a message"
    for epoch, value in zip(sorted(config.reports), config.series(metric), strict=True):
        if math.isnan(value):
            return f"{metric} was NaN at epoch {epoch}"
    return ""


def last_value(config: ConfigRecord, metric: str) -> float | None:
    series = config.series(metric)
    return series[-1] if series else None


def resources(record: RunRecord) -> Table:
    """Where the time of the workers went, and how many bytes hopped."""
    used = record.resources()
    workers = record.most_workers() or len({unit.worker for unit in record.units})
    units = Counter(unit.kind for unit in record.units)
    each = f", {fmt.size(used.bytes_hopped / used.hops)} each" if used.hops else ""
    hops = f"part of the above: {fmt.count(used.hops, 'hop')}, {fmt.size(used.bytes_hopped)}{each}"
    journal = f"after units, until states and records are on the disk; the journal has {fmt.size(used.journal_bytes)}"
    percent = {kind: f"{share}%" for kind, share in percentages(used).items()}
    parts = [
        ("training", used.train, percent.get("train", "-"), fmt.count(units["train"], "unit")),
        ("evaluation", used.eval, percent.get("eval", "-"), fmt.count(units["eval"], "evaluation")),
        ("profiling", used.pilot, percent.get("pilot", "-"), "a few batches, to estimate times"),
        ("idle", used.idle, percent.get("idle", "-"), ""),
        ("hops", used.hop, fmt.share(used.hop, used.workers), hops),
        ("saving", used.save, fmt.share(used.save, used.workers), "part of the above: states"),
        ("loading", used.load, fmt.share(used.load, used.workers), "part of the above: data, once per worker"),
    ]
    rows: list[list[Cell]] = [["wall", fmt.seconds(used.wall), "", fmt.count(workers, "worker")]]
    for name, spent, share, remark in parts:
        rows.append([name, fmt.seconds(spent), share, remark])
    rows.append(["journal", fmt.seconds(used.journal), "", journal])
    return Table([left("resources", 0), right("time", 0), right("of workers", 0), sentences("")], rows)


def accounts(record: RunRecord) -> Table:
    """The cost of each configuration: seconds by kind of work, and bytes."""
    kinds = ("train", "eval", "hop", "load", "save", "wait", "journal")
    columns = [left("configuration", 0), *(right(kind) for kind in kinds)]
    columns += [right("hopped"), right("journal size")]
    rows: list[list[Cell]] = []
    for config in record.leaderboard():
        cost = record.account(config.id)
        seconds = [seconds_cell(getattr(cost, f"{kind}_seconds")) for kind in kinds]
        rows.append([config.id, *seconds, size_cell(cost.hop_bytes), size_cell(cost.journal_bytes)])
    return Table(columns, rows)


def run_list(records: Sequence[RunRecord]) -> Table:
    """A row for each run, newest last."""
    columns = [
        left("run", 0), left("status", 0), right("best", 0), left("metric"), right("configurations", 2),
        right("units", 4), right("wall", 3), left("started", 2),
    ]  # fmt: skip
    return Table(columns, [_run_row(record) for record in records])


def configuration(record: RunRecord, config: ConfigRecord) -> Table:
    """One configuration: its metrics after each epoch, and the order of its visits to partitions."""
    names = list(dict.fromkeys(name for metrics in config.reports.values() for name in metrics))
    numbers = [right(name, 2 + place) for place, name in enumerate(names)]
    columns = [right("epoch", 0), *numbers, sentences("visits")]
    rows: list[list[Cell]] = [
        [
            value_cell(epoch),
            *(_number_cell(config.reports[epoch].get(name)) for name in names),
            " ".join(str(partition) for partition in config.visits(epoch)),
        ]
        for epoch in sorted(config.reports)
    ]
    above = [f"{config.id} of {record.name}: {config.status}, epoch {config.epoch} of {config.epochs}"]
    above.extend(f"  {name} = {fmt.scalar(value)}" for name, value in config.values.items())
    below = () if config.error is None else (config.traceback or config.error,)
    return Table(columns, rows, above=tuple(above), below=below)


def _within(ranked: list[ConfigRecord], limit: int | None) -> list[ConfigRecord]:
    if limit is None or len(ranked) <= limit:
        return ranked
    failed = [config for config in ranked[limit:] if config.status == "failed"]
    return [*ranked[:limit], *failed[:limit]]


def _ranked_row(record: RunRecord, config: ConfigRecord, rank: int, names: Sequence[str]) -> list[Cell]:
    best = config.best(record.metric, record.mode)
    return [
        value_cell(rank),
        config.id,
        status_cell(config.status),
        value_cell(best[1], "bold") if best else ValueCell("none", "", None),
        *(value_cell(config.values.get(name)) for name in names),
        ValueCell(f"{best[0]}/{config.epochs}", "", best[0]) if best else value_cell(None),
        _number_cell(last_value(config, record.metric)),
    ]


def _number_cell(value: float | None) -> Cell:
    return value_cell(value, "red" if value is not None and math.isnan(value) else "")


def _heading(record: RunRecord) -> tuple[str, ...]:
    better = "lower" if record.mode == "min" else "higher"
    configs = fmt.count(len(record.configs), "configuration")
    line = f"{record.name}: {record.status}, {configs}, {record.metric} ({better} is better)"
    return (line, record.error.strip().splitlines()[0]) if record.error else (line,)


def _run_row(record: RunRecord) -> list[Cell]:
    ranked = record.leaderboard()
    best = ranked[0].best(record.metric, record.mode) if ranked else None
    started = datetime.fromtimestamp(record.started)
    return [
        record.name,
        status_cell(record.status),
        value_cell(best[1] if best else None),
        record.metric,
        value_cell(len(record.configs)),
        value_cell(sum(unit.kind == "train" for unit in record.units)),
        seconds_cell(record.resources().wall),
        ValueCell(started.strftime("%Y-%m-%d %H:%M"), "", started.isoformat(timespec="seconds")),
    ]
