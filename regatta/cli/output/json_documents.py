"""What `--json` says about runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from regatta.cli.output.run_tables import last_value
from regatta.journal.run_record import ConfigRecord, RunRecord


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
    return {
        "run": {**run_summary(record), "folder": folder, **{key: record.header.get(key) for key in keys}},
        "progress": {"done": done, "wanted": wanted},
        "configurations": [configuration(record, config) for config in record.leaderboard()],
        "resources": asdict(record.resources()),
        "notes": [{"level": level, "text": text} for level, text in record.notes],
    }


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


def _best(record: RunRecord, config: ConfigRecord) -> dict[str, Any] | None:
    best = config.best(record.metric, record.mode)
    return {"epoch": best[0], "value": best[1]} if best else None
