"""The protocols of sinks, and sinks by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

from regatta.errors import MissingExtraError, UsageError, nearest
from regatta.format import brief
from regatta.journal.journal_file import Record
from regatta.journal.run_record import RunRecord

KINDS = ("csv", "mlflow", "parquet", "tensorboard")


class Writer(Protocol):
    """Writes one run, record by record; `place` is where users find the output."""

    place: str

    def write(self, record: RunRecord, line: Record) -> None:
        """Write one line of the journal; `record` contains it already."""

    def close(self) -> None:
        """Finish the output: the run or its journal has ended."""


class Sink(Protocol):
    """A destination of results. It is pickled with its sweep, so it holds settings only until `open`."""

    def check(self) -> None:
        """Raise UsageError for problems that can be found before training."""

    def open(self, folder: Path) -> Writer:
        """Start to write the run of this folder; called on the thread that writes."""


SinkInput: TypeAlias = str | Sink


def usable_sinks(given: SinkInput | Iterable[SinkInput] | None) -> tuple[Sink, ...]:
    """Sinks from names or objects, after their check."""
    if given is None:
        return ()
    listed = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    sinks = tuple(sink_named(one) if isinstance(one, str) else one for one in listed)
    for sink in sinks:
        if not (callable(getattr(sink, "check", None)) and callable(getattr(sink, "open", None))):
            raise UsageError(
                f"sinks has {brief(sink)}, which is not a sink.",
                hint='Use sinks=["tensorboard"], or regatta.sinks.csv("out.csv").',
            )
        sink.check()
    return sinks


def sink_named(name: str) -> Sink:
    """The sink of a text such as "tensorboard" or "csv:results.csv": a kind, and the argument of its function."""
    from regatta import sinks

    kind, _, rest = name.partition(":")
    if kind not in KINDS:
        raise UsageError(
            f"There is no sink {name!r}.",
            candidates=nearest(kind, KINDS),
            hint=f"Use one of {', '.join(KINDS)}, optionally with a destination: csv:results.csv",
        )
    make: Callable[[str | None], Sink] = getattr(sinks, kind)
    return make(rest or None)


def require_package(package: str, extra: str, needed_for: str) -> None:
    """Raise MissingExtraError if the package is not installed; it is not imported."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(package, extra, needed_for)
