"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.repo.catalog.records import PlainRow, Records, table_html


@dataclass(frozen=True)
class Stage(PlainRow):
    """One step of an evaluation: what it read, all bytes so far, and the number of inputs that became certain.

    `intervals` of them by intervals alone, `backward` by the bound that goes back through the network, `computed` by
    evaluating the model with all weights.
    """

    read: str
    bytes: int
    open: int
    intervals: int = 0
    backward: int = 0
    computed: int = 0

    @property
    def certified(self) -> int:
        return self.intervals + self.backward + self.computed


@dataclass(frozen=True)
class Evaluation:
    """Labels of inputs, and the bytes read.

    `labels` are class numbers, or for the k best rows of k of them in ascending order. They are those of full precision
    where `certain`: everywhere, but for a given number of planes or a budget. `stage` is the number of the stage that
    decided each, -1 where none did.
    """

    version: str
    precision: str
    top_k: int
    labels: NDArray[np.int64] = field(repr=False)
    certain: NDArray[np.bool_] = field(repr=False)
    stage: NDArray[np.int64] = field(repr=False)
    stages: Records[Stage]
    bytes_read: int
    bytes_full: int
    accuracy: float | None = None
    fallback: str | None = None

    @property
    def share(self) -> float:
        """Bytes of weights read, as a share of those that full precision reads."""
        return self.bytes_read / self.bytes_full if self.bytes_full else 1.0

    @property
    def mean_share(self) -> float:
        """The share that a single input needs on average: the bytes read when its label became certain."""
        if not len(self.labels) or not self.bytes_full:
            return self.share
        read = np.array([stage.bytes for stage in self.stages] + [self.bytes_read], np.float64)
        return float(read[self.stage].mean() / self.bytes_full)

    def summary(self) -> dict[str, Any]:
        """Everything but the labels, as JSON values."""
        return {
            "version": self.version,
            "precision": self.precision,
            "top_k": self.top_k,
            "inputs": len(self.labels),
            "certain": int(self.certain.sum()),
            "accuracy": self.accuracy,
            "bytes_read": self.bytes_read,
            "bytes_full": self.bytes_full,
            "share": self.share,
            "mean_share": self.mean_share,
            "fallback": self.fallback,
            "stages": self.stages.rows(),
        }

    def _repr_html_(self) -> str:
        facts = {key: value for key, value in self.summary().items() if key != "stages" and value is not None}
        return table_html(list(facts), [list(facts.items())]) + self.stages._repr_html_()
