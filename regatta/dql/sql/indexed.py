"""Conditions that an index answers: a metric or a hyperparameter of a version, compared with constants.

As conditions of a `where` they are written the other way round: not "the loss of this version is below 0.1" for each
version, but "this version is one of those whose loss is below 0.1". An index lists those. Null and false are one there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regatta.dql import bound
from regatta.dql.bound import Expression
from regatta.dql.sql.expressions import EXACT_BELOW, SqlWriter

_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_METRIC_COLUMNS = {"min": "lowest", "max": "highest", "last": "last"}


def by_index(writer: SqlWriter, part: Expression, alone: bool) -> str | None:
    """The condition as one on the keys of the versions; None if no index answers it.

    If the select reads from this source alone, SQLite may begin with the index. Elsewhere, as in a join, it only looks
    keys up in the list: it would else go through the whole list for each row of the others.
    """
    match part:
        case bound.Compare(operator, left, bound.Constant() as right) if operator in _TURNED:
            return _listed(writer, left, operator, [right], alone)
        case bound.Compare(operator, bound.Constant() as left, right) if operator in _TURNED:
            return _listed(writer, right, _TURNED[operator], [left], alone)
        case bound.InList(item, options) if all(isinstance(option, bound.Constant) for option in options):
            return _listed(writer, item, "=", options, alone)
    return None


def _listed(writer: SqlWriter, value: Expression, operator: str, constants: Sequence[Any], alone: bool) -> str | None:
    if not isinstance(value, bound.Metric | bound.Hyperparameter) or not _is_version(writer, value.model):
        return None
    test = _test(writer, value, operator, constants)
    if test is None:
        return None
    table = "metric_range" if isinstance(value, bound.Metric) else "hyperparameter"
    keys = f"SELECT version FROM {table} WHERE name = {writer.parts.bind(value.name)} AND {test}"
    return f"{'' if alone else '+'}{writer.key(value.model)} IN ({keys})"


def _is_version(writer: SqlWriter, model: Expression) -> bool:
    if not isinstance(model, bound.Variable):
        return False
    return isinstance(writer.rows[model].source, bound.VersionSource | bound.IdsSource)


def _test(writer: SqlWriter, value: bound.Metric | bound.Hyperparameter, operator: str, constants: Any) -> str | None:
    """The condition on the column of the index."""
    types = {constant.type for constant in constants}
    if types == {"number"}:
        if isinstance(value, bound.Hyperparameter):
            if any(abs(constant.value) >= EXACT_BELOW for constant in constants):
                return None
            return _compared(writer, "number", operator, [constant.value for constant in constants])
        if value.which in _METRIC_COLUMNS:
            return _compared(writer, _METRIC_COLUMNS[value.which], operator, [each.value for each in constants])
    if types == {"text"} and isinstance(value, bound.Hyperparameter) and operator == "=":
        texts = [json.dumps(constant.value, ensure_ascii=False) for constant in constants]
        return _compared(writer, "json", "=", texts)
    return None


def _compared(writer: SqlWriter, column: str, operator: str, values: Sequence[Any]) -> str:
    if len(values) == 1:
        return f"{column} {operator} {writer.parts.bind(values[0])}"
    return f"{column} IN ({', '.join(writer.parts.bind(each) for each in dict.fromkeys(values))})"
