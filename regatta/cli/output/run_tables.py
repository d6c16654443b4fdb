"""Tables of a run: leaderboard, resources, costs, one configuration, and the list of runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from regatta import format as fmt
from regatta.cli.output.table import Cell, Table, left, right, shared_lines, split_values, values_column
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


def leaderboard(record: RunRecord, limit: int | None = None) -> Table:
    """Configurations by their best value, best first. Failed ones are shown beyond the limit, with their error."""
    ranked = record.leaderboard()
    shown = _within(ranked, limit)
    varying, shared = split_values(config.values for config in ranked)
    remarks = [remark(config, record.metric) for config in shown]
    columns = [
        right("#"),
        left("configuration"),
        *(values_column(name, [config.values.get(name) for config in ranked]) for name in varying),
        right(f"best {record.metric}"),
        right("at epoch"),
        right("last"),
        left("status"),
        *([left("remark")] if any(remarks) else []),
    ]
    rank = {config.id: number for number, config in enumerate(ranked, 1)}
    rows = [_ranked_row(record, c, rank[c.id], varying) for c in shown]
    if any(remarks):
        rows = [[*row, text] for row, text in zip(rows, remarks, strict=True)]
    left_out = len(ranked) - len(shown)
    more = (f"and {fmt.count(left_out, 'more configuration')}",) if left_out else ()
    return Table(columns, rows, above=(*_heading(record), *shared_lines(shared)), below=more)


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
    parts = [
        ("training", used.train, fmt.count(units["train"], "unit")),
        ("evaluation", used.eval, fmt.count(units["eval"], "evaluation")),
        ("profiling", used.pilot, "a few batches, to estimate times"),
        ("idle", used.idle, ""),
        ("hops", used.hop, hops),
        ("saving", used.save, "part of the above: states"),
        ("loading", used.load, "part of the above: data, once per worker"),
    ]
    rows: list[list[Cell]] = [["wall", fmt.seconds(used.wall), "", fmt.count(workers, "worker")]]
    for name, spent, remark in parts:
        rows.append([name, fmt.seconds(spent), fmt.share(spent, used.workers), remark])
    rows.append(["journal", fmt.seconds(used.journal), "", journal])
    return Table([left("resources"), right("time"), right("of workers"), left("")], rows)


def accounts(record: RunRecord) -> Table:
    """The cost of each configuration: seconds by kind of work, and bytes."""
    kinds = ("train", "eval", "hop", "load", "save", "wait", "journal")
    columns = [left("configuration"), *(right(kind) for kind in kinds)]
    columns += [right("hopped"), right("journal size")]
    rows: list[list[Cell]] = []
    for config in record.leaderboard():
        cost = record.account(config.id)
        seconds = [fmt.seconds(getattr(cost, f"{kind}_seconds")) for kind in kinds]
        rows.append([config.id, *seconds, fmt.size(cost.hop_bytes), fmt.size(cost.journal_bytes)])
    return Table(columns, rows)


def run_list(records: Sequence[RunRecord]) -> Table:
    """A row for each run, newest last."""
    numbers = (right(name) for name in ("configurations", "units", "wall", "best"))
    columns = [left("run"), left("started"), left("status"), *numbers, left("metric")]
    return Table(columns, [_run_row(record) for record in records])


def configuration(record: RunRecord, config: ConfigRecord) -> Table:
    """One configuration: its metrics after each epoch, and the order of its visits to partitions."""
    names = list(dict.fromkeys(name for metrics in config.reports.values() for name in metrics))
    columns = [right("epoch"), *(right(name) for name in names), left("visits")]
    rows: list[list[Cell]] = [
        [
            str(epoch),
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


def _ranked_row(record: RunRecord, config: ConfigRecord, rank: int, varying: Sequence[str]) -> list[Cell]:
    best = config.best(record.metric, record.mode)
    return [
        str(rank),
        config.id,
        *(fmt.scalar(config.values.get(name, "-")) for name in varying),
        (fmt.metric(best[1]), "bold") if best else "none",
        f"{best[0]}/{config.epochs}" if best else "-",
        _number_cell(last_value(config, record.metric)),
        status_cell(config.status),
    ]


def _number_cell(value: float | None) -> Cell:
    return (fmt.metric(value), "red") if value is not None and math.isnan(value) else fmt.metric(value)


def _heading(record: RunRecord) -> tuple[str, ...]:
    better = "lower" if record.mode == "min" else "higher"
    configs = fmt.count(len(record.configs), "configuration")
    line = f"{record.name}: {record.status}, {configs}, {record.metric} ({better} is better)"
    return (line, record.error.strip().splitlines()[0]) if record.error else (line,)


def _run_row(record: RunRecord) -> list[Cell]:
    ranked = record.leaderboard()
    best = ranked[0].best(record.metric, record.mode) if ranked else None
    return [
        record.name,
        datetime.fromtimestamp(record.started).strftime("%Y-%m-%d %H:%M"),
        status_cell(record.status),
        str(len(record.configs)),
        str(sum(unit.kind == "train" for unit in record.units)),
        fmt.seconds(record.resources().wall),
        fmt.metric(best[1] if best else None),
        record.metric,
    ]
