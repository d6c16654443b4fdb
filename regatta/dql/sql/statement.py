"""What a statement consists of while it is built: numbered parameters, and the functions in Python that it calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regatta.dql.bound import Type

MAX_PARAMETERS = 32_000  # SQLite takes 32,766


@dataclass(frozen=True)
class SqlStatement:
    text: str
    values: tuple[Any, ...]
    functions: tuple[tuple[str, int, Callable[..., Any]], ...]  # name, number of arguments, function
    types: tuple[Type, ...]  # of the columns


@dataclass
class StatementParts:
    values: list[Any] = field(default_factory=list)
    functions: dict[str, tuple[int, Callable[..., Any]]] = field(default_factory=dict)
    rows: int = 0
    _numbers: dict[tuple[type, Any], int] = field(default_factory=dict)

    def bind(self, value: Any) -> str:
        """The parameter that stands for a value: ?1, ?2, ..."""
        key = (type(value), value)
        if key not in self._numbers:
            self.values.append(value)
            self._numbers[key] = len(self.values)
        return f"?{self._numbers[key]}"

    def call(self, function: Callable[..., Any], *arguments: str, name: str | None = None) -> str:
        """A call of a function in Python; one that is made for this statement gets a name of its own."""
        known = name if name is not None else f"dql_{function.__name__.strip('_')}"
        self.functions[known] = (len(arguments), function)
        return f"{known}({', '.join(arguments)})"

    def row(self, prefix: str = "r") -> str:
        """A name for rows that no other rows have."""
        self.rows += 1
        return f"{prefix}{self.rows}"


def junction(operator: str, conditions: Sequence[str]) -> str:
    """Conditions joined by AND or OR as a balanced tree: SQLite takes trees of at most 1,000 levels."""
    if len(conditions) == 1:
        return conditions[0]
    if len(conditions) <= 8:
        return f"({f' {operator} '.join(conditions)})"
    middle = len(conditions) // 2
    return f"({junction(operator, conditions[:middle])} {operator} {junction(operator, conditions[middle:])})"
