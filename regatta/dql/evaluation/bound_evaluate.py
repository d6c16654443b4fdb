"""A bound evaluate: which models, which settings and values, which search, and which models are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from regatta.configuration import Scalar
from regatta.dql.bound import BoundPart, BoundSelect
from regatta.dql.selectors import SelectorPattern
from regatta.search.keep import KeepRule
from regatta.search.spaces import Space


@dataclass(frozen=True)
class BoundSetting(BoundPart):
    """`config.epochs = 5`; with a selector, the rate of some layers. `key` is its name in configurations."""

    key: str
    value: Any
    selector: SelectorPattern | None = None


AxisValues: TypeAlias = "tuple[Scalar, ...] | Space | None"  # None: auto


@dataclass(frozen=True)
class BoundAxis(BoundPart):
    """`config.base_lr in [0.1, 0.01]`"""

    key: str
    values: AxisValues
    selector: SelectorPattern | None = None


@dataclass(frozen=True)
class BoundUsing(BoundPart):
    """`using asha(n = 20, eta = 3)`"""

    search: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BoundRule(BoundPart):
    """`top(5, m["loss"], 100)`, and the metrics that it names."""

    rule: KeepRule
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class BoundEvaluate(BoundPart):
    """`config` is the path of a file. `text` is what was written, so that errors can show a place in it.

    `saved` is the saved query that this is a part of: a Python file is not taken from there.
    """

    name: str
    models: BoundSelect  # of one column: the models, each once
    config: BoundSetting | None
    settings: tuple[BoundSetting, ...]
    axes: tuple[BoundAxis, ...]
    using: BoundUsing | None
    rules: tuple[BoundRule, ...]
    text: str
    into: str | None = None
    saved: str | None = None
