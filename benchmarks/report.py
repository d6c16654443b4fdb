"""What every benchmark ends with: a table on the terminal, a JSON file, and an honest exit code.

    report("hop_schedules", ["suite", "mean"], rows, bars=[Bar("grid: mean", measured=1.0002, limit=1.003)])

prints the rows, then the bars with their margins, writes `results/hop_schedules.json` next to this file with
the machine, the Python, the package versions and the date, and exits with 1 when a bar is missed.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("regatta", "numpy", "scipy", "torch")


@dataclass(frozen=True)
class Bar:
    """A figure and the limit that it has to keep."""

    name: str
    measured: float
    limit: float
    sense: Literal["at most", "at least"] = "at most"

    @property
    def kept(self) -> bool:
        """NaN keeps no bar."""
        if self.sense == "at most":
            return self.measured <= self.limit
        return self.measured >= self.limit

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "measured": self.measured,
            "sense": self.sense,
            "limit": self.limit,
            "kept": self.kept,
        }


def report(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    bars: Sequence[Bar] = (),
    peers: Sequence[str] = (),
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Print the table and the bars, write the JSON, exit with 1 when a bar is missed.

    `peers` are the packages that were measured beside ours: their versions go into the file.
    `notes` are further facts to keep: seeds, sizes, the command.
    """
    rows = [list(row) for row in rows]
    print_table(columns, rows)
    if bars:
        print()
        verdicts = [[b.name, b.measured, f"{b.sense} {b.limit:g}", "kept" if b.kept else "MISSED"] for b in bars]
        print_table(["bar", "measured", "limit", ""], verdicts)
    path = _write(name, columns, rows, bars, peers, notes or {})
    print(f"\n{_where(peers)}")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    if not all(bar.kept for bar in bars):
        sys.exit(1)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they need to be; numbers to the right, words to the left."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    for line in ([*columns], ["-" * width for width in widths], *cells):
        parts = zip(line, widths, numeric, strict=True)
        print("  ".join(t.rjust(w) if right else t.ljust(w) for t, w, right in parts).rstrip())


def environment(peers: Sequence[str] = ()) -> dict[str, Any]:
    """The machine and the versions that the figures hold for."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            **_accelerator(),
        },
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in dict.fromkeys((*PACKAGES, *peers))},
    }


def _where(peers: Sequence[str]) -> str:
    found = environment(peers)
    machine = found["machine"]
    versions = ", ".join(f"{package} {number}" for package, number in found["packages"].items() if number)
    gpu = f"{machine['gpu']}, " if "gpu" in machine else ""
    host = f"{gpu}{machine['processor']}, {machine['cores']} cores, {machine['system']}"
    return f"{host}; Python {found['python']}, {versions}"


def _write(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    bars: Sequence[Bar],
    peers: Sequence[str],
    notes: Mapping[str, Any],
) -> Path:
    content = {
        "benchmark": name,
        **environment(peers),
        "notes": dict(notes),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        "bars": [bar.as_json() for bar in bars],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, default=float) + "\n")
    return path


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _accelerator() -> dict[str, str]:
    """The GPU, when the benchmark has loaded PyTorch and used one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}


def _processor() -> str:
    """The processor's name as the kernel gives it; the architecture where it does not."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def recorded_bars(results: Path = RESULTS) -> list[tuple[str, str, str, str]]:
    """Benchmark, bar, whether it holds, is missed or was not measured, and where and when, from the files alone."""
    found = []
    for path in sorted(results.glob("*.json")):
        content = json.loads(path.read_text())
        machine = content.get("machine") or {}
        recorded = f"{machine.get('processor', 'unknown')}, {machine.get('cores', '?')} cores, {content.get('date')}"
        if not content.get("bars"):
            found.append((path.stem, "-", "not measured", recorded))
        for bar in content.get("bars") or ():
            measured = bar.get("measured")
            if not isinstance(measured, int | float) or measured != measured:
                found.append((path.stem, bar["name"], "not measured", recorded))
                continue
            holds = Bar(bar["name"], measured, bar["limit"], bar["sense"]).kept
            figures = f"{bar['name']}: {measured:.4g}, {bar['sense']} {bar['limit']:.4g}"
            found.append((path.stem, figures, "holds" if holds else "missed", recorded))
    return found + [(name, "-", "not measured", "no file") for name in _without_results(results)]


def _without_results(results: Path) -> list[str]:
    """The benchmarks for which there is no file, nor one for a variant of theirs, such as `groups_gpu`."""
    names = [path.stem.removeprefix("bench_") for path in sorted(Path(__file__).parent.glob("bench_*.py"))]
    files = [path.stem for path in results.glob("*.json")]
    return [name for name in names if not any(file == name or file.startswith(f"{name}_") for file in files)]


def print_recorded_bars() -> int:
    """Print each recorded bar; the exit code is 1 if one is missed or was not measured."""
    bars = recorded_bars()
    for benchmark, bar, state, recorded in bars:
        print(f"{state:12}  {benchmark:18}  {bar}  ({recorded})")
    states = [state for _, _, state, _ in bars]
    print(", ".join(f"{states.count(state)} {state}" for state in ("holds", "missed", "not measured")))
    return int(any(state != "holds" for state in states))


if __name__ == "__main__":
    sys.exit(print_recorded_bars())
