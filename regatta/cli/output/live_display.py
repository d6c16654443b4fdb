"""The display of a run in progress: a live frame on a terminal, plain lines elsewhere.

The runner calls the listener after each record of its journal, on the runner's thread. The display has a `RunRecord` of
its own, under a lock, so its refresh thread never reads the record of the runner.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from regatta import format as fmt
from regatta.cli import ui
from regatta.cli.arguments import command
from regatta.cli.output.live_frame import UnitRate, frame
from regatta.cli.output.run_tables import remark
from regatta.journal.run_record import Listener, RunRecord

LINE_INTERVAL_S = 2.0  # between lines of progress without a terminal
FRAME_INTERVAL_S = 0.2  # between frames on a terminal
MAX_FRAME_SHARE = 0.04  # of a core for drawing frames
STYLES = {"warning": "yellow", "error": "red", "failed": "red"}


@contextmanager
def open_display(stream: TextIO | None = None) -> Iterator[Listener]:
    """A listener that shows a run on the stream (stderr) for as long as the context is open."""
    colors: Literal["auto"] | None = "auto" if ui.styled() else None  # None: no bold and dim text either
    console = _Console(file=stream, stderr=stream is None, highlight=False, color_system=colors)
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineDisplay(console)
        return
    state = DisplayState()
    live = Live(
        console=console,
        get_renderable=lambda: state.show(console),
        auto_refresh=False,
        transient=True,
        vertical_overflow="crop",
    )
    with live, _refreshing(live):
        yield lambda record, line: _on_terminal(live, state, record, line)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader of the pipe is gone, as with `| head`; the run continues without display."""
        self.quiet = True


@contextmanager
def _refreshing(live: Live) -> Iterator[None]:
    """Redraw the frame at intervals, with a limited share of the time: the models need the core."""
    over = threading.Event()

    def redraw() -> None:
        pause = FRAME_INTERVAL_S
        while not over.wait(pause):
            begun = time.thread_time()
            live.refresh()
            pause = max(FRAME_INTERVAL_S, (time.thread_time() - begun) / MAX_FRAME_SHARE)

    thread = threading.Thread(target=redraw, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class DisplayState:
    """The display's own record of the run, and the rate of its units."""

    def __init__(self) -> None:
        self.record: RunRecord | None = None
        self.rate = UnitRate()
        self._lock = threading.Lock()

    def on_record(self, record: RunRecord, line: dict[str, Any]) -> None:
        with self._lock:
            if self.record is None:
                self.record = copy.deepcopy(record)  # it contains this line already, and the history of a resumed run
            else:
                self.record.apply(line)
            self.rate.on_record(line)

    def show(self, console: Console) -> Any:
        with self._lock:
            if self.record is None or not self.record.header:
                return Text("starting", style="dim")
            return frame(self.record, self.rate, time.time(), console.width, console.height)


class LineDisplay:
    """Without a terminal: start, failures, notes and the end are always printed, reports every few seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._last = float("-inf")
        self._started = False
        self._rate = UnitRate()

    def __call__(self, record: RunRecord, line: dict[str, Any]) -> None:
        self._rate.on_record(line)
        if line["event"] == "run":
            self._print(Text(f"{record.name}: starting"))
        if not self._started and line["event"] in ("pilot", "start", "unit", "end"):
            self._started = True
            self._print(opening(record))
        text = announcement(record, line)
        if text is not None:
            self._print(text)
        elif line["event"] == "report" and self._clock() - self._last >= LINE_INTERVAL_S:
            self._last = self._clock()
            self._print(Text(report_line(record, line, self._rate)))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _on_terminal(live: Live, state: DisplayState, record: RunRecord, line: dict[str, Any]) -> None:
    state.on_record(record, line)
    text = announcement(record, line)
    if text is not None:
        live.console.print(text)


def opening(record: RunRecord) -> Text:
    """What the run trains, and on how many workers."""
    header = record.header
    parts = [fmt.count(len(record.configs), "configuration")]
    if header:
        parts.append(fmt.count(len(header["dataset"]["train"]), "partition"))
        parts.append(fmt.count(header["epochs"], "epoch"))
    cluster = header.get("cluster", {})
    workers = cluster.get("workers") or len(record.workers)
    where = fmt.count(workers, "worker") if workers else str(cluster.get("kind", "workers")).capitalize()
    return Text(f"{record.name}: {', '.join(parts)} on {where}")


def announcement(record: RunRecord, line: dict[str, Any]) -> Text | None:
    """Text that is printed at once and stays above the frame: failures, notes, lost workers, the end."""
    event = line["event"]
    if event == "failed":
        lines = str(line["error"]).strip().splitlines()
        more = f"see: {command()} show {record.name} {line['config']}"
        return Text(f"failed: {line['config']}: {lines[-1] if lines else 'no message'}; {more}", style="red")
    if event == "note":
        return Text(f"{line['level']}: {line['text']}", style=STYLES.get(line["level"], ""))
    if event == "worker" and line["state"] == "down" and line.get("reason"):
        return Text(f"worker {line['worker']} is gone: {line['reason']}", style="yellow")
    if event == "request":
        return Text(f"{line['verb']}: {line['answer']['text']}", style="bold" if line["answer"]["done"] else "yellow")
    if event == "end":
        return closing(record)
    return None


def closing(record: RunRecord) -> Text:
    """The last line: how the run ended, and its best configuration. An error is raised, so it is not in the line."""
    text = f"{record.name}: {record.status}"
    if record.units:
        trained = sum(unit.kind == "train" for unit in record.units)
        text += f", {fmt.count(trained, 'unit')} in {fmt.seconds(record.resources().wall)}"
    ranked = record.leaderboard() if record.header else []
    best = ranked[0].best(record.metric, record.mode) if ranked else None
    if best:
        text += f", best {record.metric} {fmt.metric(best[1])} (configuration {ranked[0].id}, epoch {best[0]})"
    failed = sum(config.status == "failed" for config in record.configs.values())
    if failed:
        text += f", {fmt.count(failed, 'configuration')} failed"
    if record.status == "interrupted":
        text += f"; finished work is kept; to resume: {command()} resume {record.name}"
    return Text(text, style={"done": "green", "interrupted": "yellow"}.get(record.status, "red"))


def report_line(record: RunRecord, line: dict[str, Any], rate: UnitRate) -> str:
    config = record.configs[line["config"]]
    done, wanted = record.progress()
    value = fmt.metric(line["metrics"].get(record.metric))
    text = f"{done}/{wanted} units, {config.id} epoch {line['epoch']}/{config.epochs}: {record.metric} {value}"
    left = rate.left(record, line["time"])
    note = remark(config, record.metric)
    return text + (f", {fmt.seconds(left)} left" if left is not None else "") + (f" ({note})" if note else "")
