"""Bound queries that make networks: slice and construct, and the mutations of construct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from regatta.dql.bound import BoundPart, BoundSelect, DerivedSource, Expression, LayerPath, Source
from regatta.dql.templates import AttributeTest
from regatta.network.mutate import LayerTemplate


@dataclass(frozen=True)
class BoundInsert(BoundPart):
    """A layer after each selected one; of several options, each makes a variant."""

    layers: LayerPath
    options: tuple[LayerTemplate, ...]


@dataclass(frozen=True)
class BoundDelete(BoundPart):
    """Without `reconnect`, what used the output of a deleted layer loses that operand."""

    layers: LayerPath
    reconnect: bool = True


@dataclass(frozen=True)
class BoundReplace(BoundPart):
    layers: LayerPath
    options: tuple[LayerTemplate, ...]


@dataclass(frozen=True)
class BoundSet(BoundPart):
    """Other hyperparameters; one with several values makes a variant for each."""

    layers: LayerPath
    changes: tuple[AttributeTest, ...]


BoundMutation: TypeAlias = BoundInsert | BoundDelete | BoundReplace | BoundSet


@dataclass(frozen=True)
class BoundSlice(BoundPart):
    """The sub-networks of the selected models between these layers. `name` is the variable of what is made."""

    name: str
    models: BoundSelect  # of one column: the models, each once
    inputs: LayerPath
    outputs: LayerPath
    into: str | None = None


@dataclass(frozen=True)
class BoundConstruct(BoundPart):
    """The selected models with other networks.

    `conditions` are those of `where` that capture text of layer names. A mutation whose selector has the same captures
    applies to a layer if they hold for what its name captures.
    """

    name: str
    models: BoundSelect
    mutations: tuple[BoundMutation, ...]
    conditions: tuple[Expression, ...] = ()
    fit: bool = False
    into: str | None = None


BoundDerivation: TypeAlias = BoundSlice | BoundConstruct


def inner_derivation(sources: Sequence[Source]) -> BoundDerivation | None:
    """The slice or construct that is all that a query reads from: its models need not become versions first."""
    match tuple(sources):
        case (DerivedSource(_, (BoundSlice() | BoundConstruct()) as inner),):
            return inner
    return None
