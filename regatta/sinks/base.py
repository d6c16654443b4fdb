"""What a sink is, and how one is named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from regatta.errors import MissingExtraError, UsageError, nearest

if TYPE_CHECKING:
    from regatta.journal.journal import Record
    from regatta.journal.record import RunRecord

KINDS = ("csv", "mlflow", "parquet", "tensorboard")


class Writer(Protocol):
    """Takes in one run, record after record; `place` says where people find what it wrote."""

    place: str

    def write(self, record: RunRecord, line: Record) -> None:
        """One line of the journal, which `record` has taken in already."""

    def close(self) -> None:
        """Nothing follows: the run ended, or the journal does."""


class Sink(Protocol):
    """Where results go. It is kept with its sweep, so it holds settings and opens nothing before `open`."""

    def check(self) -> None:
        """A UsageError for what can be known to be wrong before anything is trained."""

    def open(self, folder: Path) -> Writer:
        """Begin with a run, whose folder this is; called on the thread that will write."""


Given: TypeAlias = str | Sink


def usable_sinks(given: Given | Iterable[Given] | None) -> tuple[Sink, ...]:
    """The sinks that are named, or are there already; each has been checked."""
    if given is None:
        return ()
    listed = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    sinks = tuple(sink_named(one) if isinstance(one, str) else _checked_kind(one) for one in listed)
    for sink in sinks:
        sink.check()
    return sinks


def sink_named(name: str) -> Sink:
    """The sink that a text like "tensorboard" or "csv:results.csv" names: a kind, and what its function takes."""
    from regatta import sinks

    kind, _, rest = name.partition(":")
    if kind not in KINDS:
        raise UsageError(
            f"There is no sink {name!r}.",
            candidates=nearest(kind, KINDS),
            hint=f"Say one of {', '.join(KINDS)}, perhaps with a place, as in csv:results.csv.",
        )
    make: Callable[[str | None], Sink] = getattr(sinks, kind)
    return make(rest or None)


def need(package: str, extra: str, needed_for: str) -> None:
    """A MissingExtraError unless the package can be imported; it is not imported yet."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(package, extra, needed_for)


def _checked_kind(sink: Sink) -> Sink:
    if not (callable(getattr(sink, "check", None)) and callable(getattr(sink, "open", None))):
        raise UsageError(
            f"sinks has {sink!r}, which is not a sink.",
            hint='Say sinks=["tensorboard"], or regatta.sinks.csv("out.csv").',
        )
    return sink
