"""The documents of `--json`. Keys stay the same within a version; NaN and infinity become null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.cli.output.run_tables import last_value

if TYPE_CHECKING:
    from regatta.journal.run_record import ConfigRecord, RunRecord

VERSION = 1


def document(**content: Any) -> dict[str, Any]:
    """A document of the current version, with JSON values only."""
    return {"version": VERSION, **{key: plain(value) for key, value in content.items()}}


def plain(value: Any) -> Any:
    """The value as JSON has it: without NaN, tuples and paths."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def run_summary(record: RunRecord) -> dict[str, Any]:
    ranked = record.leaderboard()
    best = _best(record, ranked[0]) if ranked else None
    return {
        "name": record.name,
        "status": record.status,
        "error": record.error,
        "started": record.started,
        "seconds": record.resources().wall,
        "metric": record.metric,
        "mode": record.mode,
        "configurations": len(record.configs),
        "units": len(record.units),
        "best": {"config": ranked[0].id, **best} if best else None,
    }


def run_document(record: RunRecord, folder: Path) -> dict[str, Any]:
    done, wanted = record.progress()
    keys = ("seed", "epochs", "rule", "search", "dataset", "cluster", "versions")
    return document(
        run={**run_summary(record), "folder": folder, **{key: record.header.get(key) for key in keys}},
        progress={"done": done, "wanted": wanted},
        configurations=[configuration(record, config) for config in record.leaderboard()],
        resources=asdict(record.resources()),
        notes=[{"level": level, "text": text} for level, text in record.notes],
    )


def configuration(record: RunRecord, config: ConfigRecord) -> dict[str, Any]:
    return {
        "id": config.id,
        "values": config.values,
        "status": config.status,
        "epoch": config.epoch,
        "epochs": config.epochs,
        "parent": config.parent,
        "parent_epoch": config.parent_epoch,
        "best": _best(record, config),
        "last": last_value(config, record.metric),
        "reports": [{"epoch": epoch, "metrics": config.reports[epoch]} for epoch in sorted(config.reports)],
        "account": asdict(record.account(config.id)),
        "error": config.error,
        "traceback": config.traceback,
    }


def runs_document(records: Sequence[RunRecord]) -> dict[str, Any]:
    return document(runs=[run_summary(record) for record in records])


def _best(record: RunRecord, config: ConfigRecord) -> dict[str, Any] | None:
    best = config.best(record.metric, record.mode)
    return {"epoch": best[0], "value": best[1]} if best else None
