"""The Gantt page of a run: a row for each worker, and the learning curves below."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from regatta.journal.accounting import merged, percentages, presence
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.run import Run
from regatta.web.page_base import fill, rounded

STYLES = ("page.css", "gantt.css")
SCRIPTS = ("page.js", "timeline.js", "curves.js", "gantt.js")
VERSION = 1


def page(run: Run) -> str:
    return fill("gantt.html", run.name, STYLES, SCRIPTS, page_data(run))


def page_data(run: Run) -> dict[str, Any]:
    """The data of the page. Units are stored as columns, in a third of the size of a list of objects."""
    record = run.record
    origin = min((unit.start for unit in record.units), default=record.started)
    ranked = record.leaderboard()
    named = {*record.workers, *(unit.worker for unit in record.units)}
    workers = sorted(named, key=lambda name: (len(name), name))  # w2 before w10
    efficiency, resources = run.efficiency(), record.resources()
    return {
        "version": VERSION,
        "run": {
            "name": record.name,
            "status": record.status,
            "error": record.error,
            "started": record.started,
            "metric": record.metric,
            "mode": record.mode,
            "seed": record.header.get("seed"),
            "rule": record.header.get("rule"),
            "partitions": len(record.header.get("dataset", {}).get("train", [])),
        },
        "resources": asdict(resources),
        "percentages": percentages(resources),
        "efficiency": {**asdict(efficiency), "ratio": efficiency.ratio},
        "workers": workers,
        "present": _present(record, workers, origin),
        "configs": [_config(record, config) for config in ranked],
        "units": _columns(record, [config.id for config in ranked], workers, origin),
    }


def _present(record: RunRecord, workers: list[str], origin: float) -> list[list[list[float]]]:
    """When each worker was present: from and until, in seconds since the first unit."""
    spans = {worker: [(span.start, span.end) for span in spans] for worker, spans in presence(record).items()}
    for unit in record.units:
        spans[unit.worker].append((unit.start, unit.end))
    return [
        [[round(start - origin, 6), round(end - origin, 6)] for start, end in merged(spans.get(worker, []))]
        for worker in workers
    ]


def _config(record: RunRecord, config: ConfigRecord) -> dict[str, Any]:
    best = config.best(record.metric, record.mode)
    return {
        "id": config.id,
        "values": config.values,
        "status": config.status,
        "error": config.error,
        "epochs": config.epochs,
        "best": list(best) if best else None,
        "series": [[epoch, config.reports[epoch].get(record.metric)] for epoch in sorted(config.reports)],
    }


def _columns(record: RunRecord, configs: list[str], workers: list[str], origin: float) -> dict[str, Any]:
    units = sorted((u for u in record.units if u.config in record.configs), key=lambda unit: unit.start)
    config_number = {name: number for number, name in enumerate(configs)}
    worker_number = {name: number for number, name in enumerate(workers)}
    metrics = list(dict.fromkeys(name for unit in units for name in unit.metrics))
    return {
        "kind": [unit.kind for unit in units],
        "config": [config_number[unit.config] for unit in units],
        "worker": [worker_number[unit.worker] for unit in units],
        "epoch": [unit.epoch for unit in units],
        "partition": [unit.partition for unit in units],
        "start": [round(unit.start - origin, 6) for unit in units],
        "end": [round(unit.end - origin, 6) for unit in units],
        "rows": [unit.rows for unit in units],
        "hop_bytes": [unit.hop_bytes for unit in units],
        "hop_seconds": [round(unit.hop_seconds, 6) for unit in units],
        "metrics": {name: [rounded(unit.metrics.get(name)) for unit in units] for name in metrics},
    }
