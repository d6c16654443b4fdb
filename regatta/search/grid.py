"""Every combination of the values of each axis."""

from __future__ import annotations

from collections.abc import Mapping

from regatta.errors import UsageError
from regatta.format import brief
from regatta.search.base import Listed
from regatta.search.domain import Where, function_name, make_domain
from regatta.search.spaces import Choice


def grid(space: Mapping[str, object] | None = None, *, where: Where | None = None, **axes: object) -> Listed:
    """All combinations, the last axis varying fastest. An axis is a list of values, or one value.

    `where(config)` says which combinations are valid; the others are left out.
    """
    domain = make_domain("grid", space, axes, where)
    for name, axis in domain.axes.items():
        if not isinstance(axis, Choice):
            raise UsageError(
                f"The axis {name!r} is {brief(axis)}; a grid needs the values themselves.",
                hint=f"Give a list, or draw with search.random(n=..., {name}=...).",
            )
    valid = list(domain.all_valid())
    if not valid:
        raise UsageError(f"where={function_name(where)} excludes all {domain.size} combinations of the grid.")
    return Listed({"kind": "grid", **domain.describe()}, valid)
