"""One frame of the live display: progress, workers, configurations. It fits the height of the terminal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regatta import format as fmt
from regatta.cli.output.run_tables import last_value, status_cell
from regatta.cli.output.table import split_values
from regatta.journal.run_record import ConfigRecord, RunRecord, WorkerRecord
from regatta.journal.time_left import TrainingEstimates

DOING = {"train": "trains", "eval": "evaluates", "pilot": "tries"}
RATE_WINDOW_UNITS = 256


class UnitRate:
    """Training units per second, over the most recent units, and the time left at the same throughput."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=RATE_WINDOW_UNITS)
        self._seconds: deque[float] = deque(maxlen=RATE_WINDOW_UNITS)  # that each of these units took
        self._estimates = TrainingEstimates()

    def on_record(self, line: dict[str, Any]) -> None:
        if line["event"] == "unit" and line["kind"] == "train":
            self._ends.append(line["time"])
            self._seconds.append(line["end"] - line["start"])

    @property
    def rate(self) -> float | None:
        """None until two units at two times are known."""
        if len(self._ends) < 2 or self._ends[-1] <= self._ends[0]:
            return None
        return (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])

    def left(self, record: RunRecord, now: float) -> float | None:
        """Seconds until the models are trained; None as long as nothing was measured.

        Before two units are known, every worker that is up is expected to be busy all the time.
        """
        training = self._estimates.left(record)
        throughput = self._throughput() or float(sum(worker.up for worker in record.workers.values()))
        if training is None or not throughput:
            return None
        since = max(0.0, now - self._ends[-1]) if self._ends else 0.0
        return max(0.0, max(training.total / throughput, training.longest) - since)

    def _throughput(self) -> float | None:
        """Seconds of units that were done in a second, by all workers together."""
        if self.rate is None:
            return None
        return sum(list(self._seconds)[1:]) / (self._ends[-1] - self._ends[0])


def frame(record: RunRecord, rate: UnitRate, now: float, width: int, height: int) -> RenderableType:
    """The frame for a terminal of this size; workers and configurations that do not fit are counted."""
    room = max(4, height - 1)  # the line of the cursor stays free
    workers = _choose_workers(record, limit=max(1, room // 3))
    workers_left_out = len(record.workers) - len(workers)
    parts: list[RenderableType] = [_overall(record, rate, now, width), _worker_grid(workers, now)]
    if workers_left_out:
        parts.append(Text(f"and {fmt.count(workers_left_out, 'more worker')}", style="dim"))
    room -= 1 + max(1, len(workers)) + bool(workers_left_out)
    if record.configs and room >= 4:
        parts.extend(_configurations(record, room - 2, width))
    return Group(*parts)


def choose_configs(record: RunRecord, limit: int) -> list[ConfigRecord]:
    """The best and the running configurations, in the order of the leaderboard; running ones get up to half."""
    ranked = record.leaderboard()
    if len(ranked) <= limit:
        return ranked
    running = [config for config in ranked if config.running][: max(1, limit // 2)]
    chosen = {config.id for config in running}
    for config in ranked:
        if len(chosen) >= limit:
            break
        chosen.add(config.id)
    return [config for config in ranked if config.id in chosen]


def _overall(record: RunRecord, rate: UnitRate, now: float, width: int) -> RenderableType:
    done, wanted = record.progress()
    words = [f"{done}/{wanted} units"]
    if rate.rate is not None:
        words.append(f"{rate.rate:.3g}/s")
    left = rate.left(record, now)
    if left is not None:
        words.append(f"{fmt.seconds(left)} left")
    name, text = record.name, "  ".join(words)
    grid, bar_width = Table.grid(padding=(0, 2, 0, 0)), max(10, min(40, width - 50))
    bar = [ProgressBar(total=max(1, wanted), completed=done, width=bar_width)]
    fits = len(name) + bar_width + len(text) + 4 <= width
    grid.add_row(_one_line(name, "bold"), *(bar if fits else ()), _one_line(text))
    return grid


def _one_line(text: str, style: str = "") -> Text:
    """A cell that is cut off where it does not fit, so that each row of a frame has one line."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _choose_workers(record: RunRecord, limit: int) -> list[WorkerRecord]:
    workers = sorted(record.workers.values(), key=lambda worker: (len(worker.name), worker.name))
    if len(workers) <= limit:
        return workers
    busy_first = sorted(workers, key=lambda worker: worker.running is None)
    return sorted(busy_first[: max(1, limit - 1)], key=workers.index)


def _worker_grid(workers: Sequence[WorkerRecord], now: float) -> RenderableType:
    if not workers:
        return Text("workers are starting", style="dim")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for worker in workers:
        grid.add_row(_one_line(worker.name, "dim"), *_doing(worker, now))
    return grid


def _doing(worker: WorkerRecord, now: float) -> tuple[Text, ...]:
    if not worker.up:
        return (_one_line("gone", "red"),)
    if worker.running is None:
        return (_one_line("idle", "dim"),)
    kind, config, epoch, partition = worker.running
    since = _one_line(fmt.seconds(max(0.0, now - worker.since)), "dim")
    if kind == "pilot":
        return _one_line(DOING[kind]), _one_line(config), Text(""), Text(""), since
    doing = DOING.get(kind, kind), config, f"epoch {epoch}", f"partition {partition}"
    return *map(_one_line, doing), since


def _configurations(record: RunRecord, room: int, width: int) -> list[RenderableType]:
    shown = choose_configs(record, room if len(record.configs) <= room else room - 1)
    varying, _ = split_values(config.values for config in record.configs.values())
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    fitting = varying[: max(1, (width - 60) // 10)]
    for name in ("configuration", *fitting, "epoch", record.metric, "", "status"):
        grid.add_column(Text(name), no_wrap=True, justify="right" if name in ("epoch", record.metric) else "left")
    for config in shown:
        grid.add_row(*_row(record, config, fitting))
    parts: list[RenderableType] = [Text(""), grid]
    hidden = [config for config in record.configs.values() if config not in shown]
    if hidden:
        parts.append(Text(_more(hidden), style="dim"))
    return parts


def _row(record: RunRecord, config: ConfigRecord, names: Sequence[str]) -> list[Text]:
    return [
        Text(config.id, style="bold" if config.running else ""),
        *(Text(fmt.scalar(config.values.get(name, "-"))) for name in names),
        Text(f"{config.epoch}/{config.epochs}"),
        Text(fmt.metric(last_value(config, record.metric))),
        Text(fmt.sparkline(config.series(record.metric)), style="cyan"),
        Text(*status_cell(config.status)),
    ]


def _more(hidden: Sequence[ConfigRecord]) -> str:
    by_status = Counter(config.status for config in hidden)
    parts = ", ".join(f"{number} {status}" for status, number in sorted(by_status.items()))
    return f"and {len(hidden)} more: {parts}"
