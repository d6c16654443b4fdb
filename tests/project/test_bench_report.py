"""What `make bench-report` says about the recorded results of benchmarks."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from locations import ROOT


def test_bars_hold_are_missed_or_were_not_measured(tmp_path: Path) -> None:
    bar = {"name": "ratio", "sense": "at most", "limit": 1.0}
    bars = [{**bar, "measured": measured} for measured in (0.5, 2.0, None)]
    machine = {"processor": "a processor", "cores": 2}
    content = {"machine": machine, "date": "2026-01-01", "bars": [*bars, {**bars[1], "kept": True}]}
    (tmp_path / "hop.json").write_text(json.dumps(content))
    found = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["recorded_bars"](tmp_path)
    assert [state for name, _, state, _ in found if name == "hop"] == ["holds", "missed", "not measured", "missed"]
    assert found[0][3] == "a processor, 2 cores, 2026-01-01"
    assert {("chaos", "not measured"), ("archiver", "not measured")} <= {(name, state) for name, _, state, _ in found}
