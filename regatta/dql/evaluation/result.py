"""The table of a run that an evaluate launched: a row for each model and set of values, best first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.paths import MODELS, STATE_SUFFIX
from regatta.safetensors_io import read_header

if TYPE_CHECKING:
    from regatta.run import Run

ENDED = "ended"  # by the search, before the last epoch


def evaluation_rows(run: Run) -> list[dict[str, Any]]:
    """Model, the values that differ, epochs, iterations, the metric, kept or stopped, and the version of each."""
    record, verdicts, names = run.record, run.verdicts(), _names(run)
    differing = _differing(record)
    rows = []
    for config in record.leaderboard():
        best = config.best(record.metric, record.mode)
        rows.append(
            {
                "model": names.get(str(config.values.get("model")), str(config.values.get("model"))),
                **{name: config.values.get(name) for name in differing},
                "epochs": config.epoch,
                "iterations": config.iterations(config.epoch),
                record.metric: None if best is None else best[1],
                "result": _result(config, record, verdicts),
                "version": run.version(config.id),
            }
        )
    return sorted(rows, key=lambda row: row["result"] != "kept")


def _names(run: Run) -> dict[str, str]:
    """The names of the models; with their key, where several have the same."""
    found = {}
    for path in sorted((run.folder / MODELS).glob(f"*{STATE_SUFFIX}")):
        found[path.stem] = json.loads(read_header(path).metadata["model"])["name"] or path.stem
    counts = Counter(found.values())
    return {key: f"{name} {key}" if counts[name] > 1 else name for key, name in found.items()}


def _differing(record: RunRecord) -> list[str]:
    values: dict[str, set[Any]] = {}
    for config in record.configs.values():
        for name, value in config.values.items():
            values.setdefault(name, set()).add((type(value), value))
    return [name for name, found in values.items() if len(found) > 1 and name != "model"]


def _result(config: ConfigRecord, record: RunRecord, verdicts: Mapping[str, str | None]) -> str:
    rule = verdicts.get(config.id)
    if config.status == "failed":
        return f"failed: {config.error}"
    if rule is not None:
        return f"stopped by {rule}"
    if config.status == "done":
        return "kept" if config.epoch >= int(record.header["epochs"]) else ENDED
    return config.status
