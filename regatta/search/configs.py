"""Configurations listed one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from regatta.configuration import Scalar
from regatta.errors import UsageError
from regatta.format import brief
from regatta.search.base import Listed, distinct


def configs(configurations: Iterable[Mapping[str, Scalar]]) -> Listed:
    """Exactly these configurations; equal ones are trained once."""
    if isinstance(configurations, Mapping | str) or not isinstance(configurations, Iterable):
        raise UsageError(
            f"configs takes a list of configurations, not {brief(configurations)}.",
            hint="Write configs([{...}, {...}]).",
        )
    listed = distinct(configurations)
    if not listed:
        raise UsageError("The list of configurations is empty: there is nothing to train.")
    return Listed({"kind": "configs", "configs": listed}, listed)
