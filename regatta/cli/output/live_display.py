"""A run while it goes on: a picture that stays in its place on a terminal, plain lines elsewhere.

The runner calls the listener after each record of its journal, from its own thread. The display folds the records
once more into a `RunRecord` of its own, under a lock: its refreshing thread never looks at the runner's.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

from regatta import format as fmt
from regatta.cli.arguments import command
from regatta.cli.output.live_frame import picture
from regatta.cli.output.run_tables import remark

if TYPE_CHECKING:
    from regatta.journal.record import RunRecord

Listener: TypeAlias = "Callable[[RunRecord, dict[str, Any]], None]"

LINE_SECONDS = 2.0  # between lines of progress where there is no terminal
FRAME_SECONDS = 0.2  # between pictures on a terminal
FRAME_SHARE = 0.04  # of a core, at most, goes into drawing them
RATE_WINDOW = 256  # units over which the rate is measured
STYLES = {"warning": "yellow", "error": "red", "failed": "red"}


@contextmanager
def open_display(stream: TextIO | None = None) -> Iterator[Listener]:
    """A listener that shows a run on the stream (stderr) for as long as the context is open."""
    console = _Console(file=stream, stderr=stream is None, highlight=False)
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
        """Nobody looks any more, as with `| head`; the run goes on."""
        self.quiet = True


@contextmanager
def _refreshing(live: Live) -> Iterator[None]:
    """Redraw the picture now and then, but never for more than a small part of the time: the models need it."""
    over = threading.Event()

    def redraw() -> None:
        pause = FRAME_SECONDS
        while not over.wait(pause):
            begun = time.thread_time()
            live.refresh()
            pause = max(FRAME_SECONDS, (time.thread_time() - begun) / FRAME_SHARE)

    thread = threading.Thread(target=redraw, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class DisplayState:
    """The run as the display knows it, and the pace of its units."""

    def __init__(self) -> None:
        self.record: RunRecord | None = None
        self.pace = UnitRate()
        self._lock = threading.Lock()

    def hear(self, record: RunRecord, line: dict[str, Any]) -> None:
        with self._lock:
            if self.record is None:
                self.record = copy.deepcopy(record)  # it holds this line already, and what a resumed run had before
            else:
                self.record.apply(line)
            self.pace.hear(line)

    def show(self, console: Console) -> Any:
        with self._lock:
            if self.record is None or not self.record.header:
                return Text("starting", style="dim")
            return picture(self.record, self.pace, time.time(), console.width, console.height)


class UnitRate:
    """How many training units a second, over the last of them, and so the time left."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=RATE_WINDOW)

    def hear(self, line: dict[str, Any]) -> None:
        if line["event"] == "unit" and line["kind"] == "train":
            self._ends.append(line["time"])

    @property
    def rate(self) -> float | None:
        """None until two units at two times are known."""
        if len(self._ends) < 2 or self._ends[-1] <= self._ends[0]:
            return None
        return (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])

    def left(self, units: int, longest: float, now: float) -> float | None:
        """For so many units, of which one after another take `longest` seconds."""
        rate = self.rate
        return None if rate is None else max(0.0, max(units / rate, longest) - max(0.0, now - self._ends[-1]))


class LineDisplay:
    """Where nobody can redraw: start, failures, notes and the end always, reports every few seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._last = float("-inf")
        self._started = False
        self._pace = UnitRate()

    def __call__(self, record: RunRecord, line: dict[str, Any]) -> None:
        self._pace.hear(line)
        if line["event"] == "run":
            self._say(Text(f"{record.name}: starting"))
        if not self._started and line["event"] in ("pilot", "start", "unit", "end"):
            self._started = True
            self._say(opening(record))
        remarkable = announcement(record, line)
        if remarkable is not None:
            self._say(remarkable)
        elif line["event"] == "report" and self._clock() - self._last >= LINE_SECONDS:
            self._last = self._clock()
            self._say(Text(report_line(record, line, self._pace)))

    def _say(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _on_terminal(live: Live, state: DisplayState, record: RunRecord, line: dict[str, Any]) -> None:
    state.hear(record, line)
    text = announcement(record, line)
    if text is not None:
        live.console.print(text)


def opening(record: RunRecord) -> Text:
    """What is about to be trained, and on what."""
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
    """What people should see at once and find again above the picture: failures, notes, lost workers, the end."""
    event = line["event"]
    if event == "failed":
        lines = str(line["error"]).strip().splitlines()
        return Text(f"failed: {line['config']}: {lines[-1] if lines else 'no message'}", style="red")
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
    """One line that stays: how it ended and what is best."""
    text = f"{record.name}: {record.status}"
    if record.units:
        used = record.resources()
        text += f", {fmt.count(used.units, 'unit')} in {fmt.seconds(used.wall)}"
    ranked = record.leaderboard() if record.header else []
    best = ranked[0].best(record.metric, record.mode) if ranked else None
    if best:
        text += f", best {record.metric} {fmt.metric(best[1])} (configuration {ranked[0].id}, epoch {best[0]})"
    failed = sum(config.status == "failed" for config in record.configs.values())
    if failed:
        text += f", {fmt.count(failed, 'configuration')} failed"
    if record.error:
        text += f": {record.error.strip().splitlines()[0]}"
    if record.status == "interrupted":
        text += f"; what counts is kept, and `{command()} resume {record.name}` goes on"
    return Text(text, style={"done": "green", "interrupted": "yellow"}.get(record.status, "red"))


def report_line(record: RunRecord, line: dict[str, Any], pace: UnitRate) -> str:
    config = record.configs[line["config"]]
    done, wanted = record.progress()
    value = fmt.metric(line["metrics"].get(record.metric))
    text = f"{done}/{wanted} units, {config.id} epoch {line['epoch']}/{config.epochs}: {record.metric} {value}"
    left = pace.left(wanted - done, record.longest_model_seconds(), line["time"])
    trouble = remark(config, record.metric)
    return text + (f", {fmt.seconds(left)} left" if left is not None else "") + (f" ({trouble})" if trouble else "")
