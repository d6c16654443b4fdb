"""Values that stand in the text of an evaluate, or are parameters of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regatta.dql import tree

if TYPE_CHECKING:
    from regatta.dql.bind import Binder


def constant(binder: Binder, expression: tree.Expression) -> Any:
    """A number, text, boolean, null, or a list of these."""
    match expression:
        case tree.Value(value):
            return value
        case tree.QueryParameter():
            return binder.parameter(expression)
        case tree.NegativeTree(operand):
            value = constant(binder, operand)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise binder.error(f"A number is expected after the minus, not {value!r:.60}.", operand.span)
            return -value
        case tree.List(items):
            return [constant(binder, item) for item in items]
    raise binder.error("A value is expected here: a number, a text, true, false, or a list of these.", expression.span)
