"""Random queries: SQLite's answer is that of the slow evaluator, rewritten or not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from random_queries import QUERIES
from slow_queries import Model, SlowQueries

from regatta.dql.bind import bind
from regatta.dql.bound import BoundSelect
from regatta.dql.parse import QueryError, parse
from regatta.dql.rewrite import rewrite
from regatta.dql.schema import known_names
from regatta.dql.sql.execute import select_rows
from regatta.dql.sql.select import compile_select
from regatta.repo import Repo, Version

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
NOW = 1_450_000_000.0  # in December 2015
REFUSED = ("may differ", "cannot be compared", "has no meaning", "has no order", "no column number", "a condition is")


@pytest.fixture(scope="module")
def slow(alexnets_folder: Path) -> SlowQueries:
    with Repo.open(alexnets_folder, read_only=True) as repo:
        return SlowQueries(repo)


def plain(value: Any) -> Any:
    """A value of either side in one form."""
    match value:
        case Model():
            return value.columns["reference"]
        case Version():
            return value.reference
        case bool() | None | str():
            return value
        case int() | float():
            return pytest.approx(float(value), rel=1e-9, abs=1e-12)
        case list() | tuple():
            return tuple(plain(item) for item in value)
    return plain(value.timestamp()) if hasattr(value, "timestamp") else plain(value.total_seconds())


def check(text: str, repo: Repo, slow: SlowQueries) -> int:
    """Compare the answers; the number of rows, or -1 if the binder refuses the query."""
    note(text)
    try:
        query = bind(text, parse(text).query, known_names(repo), now=NOW)
    except QueryError as error:
        assert any(part in str(error) for part in REFUSED), error
        return -1
    assert isinstance(query, BoundSelect)
    wanted = [tuple(plain(value) for value in row) for row in slow.rows(query)]
    for form in (query, rewrite(query)):
        note(compile_select(form).text)
        found = [tuple(value.reference if isinstance(value, Version) else _seconds(value) for value in row)
                 for row in select_rows(repo, form)]  # fmt: skip
        assert [tuple(map(_listed, row)) for row in found] == wanted
    return len(wanted)


def _seconds(value: Any) -> Any:
    if hasattr(value, "timestamp"):
        return value.timestamp()
    return value.total_seconds() if hasattr(value, "total_seconds") else value


def _listed(value: Any) -> Any:
    return tuple(map(_listed, value)) if isinstance(value, list) else value


def run_random(count: int, folder: Path, slow: SlowQueries) -> Counter[str]:
    seen: Counter[str] = Counter()
    with Repo.open(folder, read_only=True) as repo:

        @settings(max_examples=count, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(QUERIES)
        def answers_agree(text: str) -> None:
            rows = check(text, repo, slow)
            seen["refused" if rows < 0 else "empty" if rows == 0 else "answered"] += 1

        answers_agree()
    return seen


def test_some_random_queries(alexnets_folder: Path, slow: SlowQueries) -> None:
    seen = run_random(150, alexnets_folder, slow)
    assert seen["answered"] > 50


@pytest.mark.slow
def test_two_thousand_random_queries(alexnets_folder: Path, slow: SlowQueries) -> None:
    seen = run_random(2_500, alexnets_folder, slow)
    assert seen["answered"] + seen["empty"] >= 2_000 and seen["answered"] > 1_000
