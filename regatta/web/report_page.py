"""The report page of a search: best model, learning curves, hyperparameters, their importance, and the budget.

The data is reduced to what a page can show. A curve keeps its ends, its best epoch and points between. If there are
more than a few thousand configurations, the worst are left out, and the page says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.run import Run
from regatta.web.importance import importance
from regatta.web.page_base import fill, rounded
from regatta.web.scales import Axis, axes_of

STYLES = ("page.css", "report.css")
SCRIPTS = ("page.js", "plots.js", "learning.js", "parallel.js", "budget.js", "report.js")
VERSION = 1
MAX_CONFIGS = 2000
MAX_METRICS = 12
MAX_VALUES = 160_000  # of all curves together
MIN_POINTS = 8  # of a curve, however many curves there are
MAX_TEXT_LENGTH = 200  # of a value in a configuration
PARTS = ("train", "eval", "pilot", "hop", "load", "save", "idle")


def page(run: Run) -> str:
    return fill("report.html", run.name, STYLES, SCRIPTS, page_data(run))


def page_data(run: Run) -> dict[str, Any]:
    """The data of the page, best configuration first."""
    record = run.record
    ranked = record.leaderboard()
    shown = ranked[:MAX_CONFIGS]
    axes = axes_of(ranked, without=("member",) if _search(record).get("kind") == "pbt" else ())
    metrics = _metrics(record)
    points = max(MIN_POINTS, MAX_VALUES // max(1, len(shown) * len(metrics)))
    efficiency = run.efficiency()
    return {
        "version": VERSION,
        "run": _header(record, len(ranked)),
        "efficiency": efficiency.ratio if efficiency.bound > 0 else None,
        "axes": [asdict(axis) for axis in axes],
        "shared": _shared(ranked, axes),
        "configs": _configs(record, shown, axes),
        "metrics": metrics,
        "curves": {metric: _curves(shown, metric, record, points) for metric in metrics},
        "importance": asdict(importance(record, axes)),
        "rungs": _rungs(shown),
        "time": _time(record),
    }


def _header(record: RunRecord, configs: int) -> dict[str, Any]:
    header = record.header
    dataset = header.get("dataset", {})
    return {
        "name": record.name,
        "status": record.status,
        "error": record.error,
        "started": record.started,
        "seconds": record.resources().wall,
        "metric": record.metric,
        "mode": record.mode,
        "search": str(_search(record).get("kind", "")),
        "epochs": header.get("epochs"),
        "seed": header.get("seed"),
        "dataset": dataset.get("name"),
        "partitions": len(dataset.get("train", [])),
        "configs": configs,
        "notes": [f"{level}: {text}" for level, text in record.notes[:20]],
    }


def _search(record: RunRecord) -> dict[str, Any]:
    search = record.header.get("search")
    return search if isinstance(search, dict) else {"kind": search or ""}


def _metrics(record: RunRecord) -> list[str]:
    """The metric of the run, then the others by the number of reports that have them."""
    seen = Counter(name for config in record.configs.values() for report in config.reports.values() for name in report)
    others = [name for name, _ in seen.most_common() if name != record.metric]
    return [record.metric, *others][:MAX_METRICS]


def _shared(configs: Sequence[ConfigRecord], axes: Sequence[Axis]) -> dict[str, Any]:
    varied = {axis.name for axis in axes}
    return {
        name: _short(v) for c in configs[:1] for name, v in c.values.items() if name not in varied and name != "member"
    }


def _configs(record: RunRecord, shown: Sequence[ConfigRecord], axes: Sequence[Axis]) -> list[dict[str, Any]]:
    number = {config.id: place for place, config in enumerate(shown)}
    born = _births(record)
    found = []
    for config in shown:
        best = config.best(record.metric, record.mode)
        found.append(
            {
                "id": config.id,
                "values": [_short(config.values[axis.name]) if axis.name in config.values else None for axis in axes],
                "has": None if all(a.name in config.values for a in axes) else [a.name in config.values for a in axes],
                "status": config.status,
                "epoch": config.epoch,
                "epochs": config.epochs,
                "best": [best[0], rounded(best[1])] if best else None,
                "seconds": rounded(sum(unit.seconds for unit in config.units), 4),
                "error": _last_line(config.error),
                "parent": number.get(config.parent or ""),
                "born": born[config.id],
            }
        )
    return found


def _births(record: RunRecord) -> dict[str, int]:
    """The epochs of its ancestors before each configuration started: 0 unless it started from another's state."""
    born: dict[str, int] = {}
    for config in record.configs.values():  # a parent comes before its children
        born[config.id] = born.get(config.parent, 0) + (config.parent_epoch or 0) if config.parent is not None else 0
    return born


def _curves(shown: Sequence[ConfigRecord], metric: str, record: RunRecord, points: int) -> list[Any]:
    """The epochs and values of each configuration; epochs that count from 1 are left out."""
    curves = []
    for config in shown:
        epochs = [epoch for epoch in sorted(config.reports) if metric in config.reports[epoch]]
        best = config.best(metric, record.mode) if metric == record.metric else None
        kept = _reduced(epochs, points, best[0] if best else None)
        values = [rounded(config.reports[epoch][metric], 5) for epoch in kept]
        curves.append([[] if kept == list(range(1, len(kept) + 1)) else kept, values])
    return curves


def _reduced(epochs: list[int], points: int, best: int | None) -> list[int]:
    """Evenly spaced epochs, as many as `points`, with both ends and the best."""
    if len(epochs) <= points:
        return epochs
    places = {round(i * (len(epochs) - 1) / (points - 1)) for i in range(points)}
    return sorted({epochs[place] for place in places} | ({best} if best is not None else set()))


def _rungs(shown: Sequence[ConfigRecord]) -> list[list[int]]:
    """Epochs at which several configurations ended, and their number: the rungs of a halving search."""
    ends = Counter(config.epoch for config in shown if config.epoch and config.status != "failed")
    several = sorted((epoch, count) for epoch, count in ends.items() if count > 1)
    return [list(rung) for rung in several] if 1 < len(ends) <= 12 else []


def _time(record: RunRecord) -> dict[str, Any]:
    """Seconds of each worker by kind of work; hops, loading and saving are subtracted from their units."""
    units = record.units
    sums: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    for unit in units:
        spent = sums[unit.worker]
        inside = {"hop": unit.hop_seconds, "load": unit.load_seconds, "save": unit.save_seconds}
        # A member of a pack may load the data of all members in more than its share of the time.
        scale = min(1.0, unit.seconds / sum(inside.values())) if any(inside.values()) else 1.0
        inside = {part: seconds * scale for part, seconds in inside.items()}
        for part, seconds in {**inside, unit.kind: unit.seconds - sum(inside.values())}.items():
            spent[part] += unit.width * max(0.0, seconds)
    for worker, account in record.worker_accounts().items():
        sums[worker]["idle"] = account.idle
    names = sorted(sums, key=lambda name: (len(name), name))  # w2 before w10
    return {"parts": list(PARTS), "workers": names, "seconds": [[rounded(sums[w][p]) for p in PARTS] for w in names]}


def _last_line(error: str | None) -> str | None:
    if error is None:
        return None
    return (error.strip().splitlines() or ["failed without a message"])[-1][:300]


def _short(value: Any) -> Any:
    """A value as the page shows it; long texts are cut."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT_LENGTH else value[: MAX_TEXT_LENGTH - 1] + "…"
    return rounded(value) if isinstance(value, float) else value
