"""Pairs of a slice or construct and what it would make, or its error, as text: fixtures/*.txt.

    == title
    {"a parameter": "its value"}      (if there are any)
    the query
    --
    parent -> name: what is different; and the new weights, or the error

`--update-fixtures` writes the answers again; then read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regatta.dql.networks.commit_models import summary
from regatta.dql.networks.operators import derived_models
from regatta.dql.run import QueryContext, prepare
from regatta.errors import RegattaError
from regatta.repo import Repo

FOLDER = Path(__file__).parent / "fixtures"


def read_cases() -> list[tuple[str, str, str, str]]:
    """The file, title, query and answer of each case."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in path.read_text().split("== ")[1:]:
            title, _, rest = block.partition("\n")
            query, _, answer = rest.partition("\n--\n")
            found.append((path.name, title, query, answer.rstrip("\n")))
    return found


CASES = read_cases()


def answer(repo: Repo, query: str) -> str:
    parameters: dict[str, Any] = {}
    if query.startswith("{"):
        first, _, query = query.partition("\n")
        parameters = json.loads(first)
    context = QueryContext(repo, query, max_models=100)
    try:
        models = derived_models(context, prepare(context, parameters).query)
    except RegattaError as error:
        return f"{type(error).__name__}: {error}"
    lines = []
    for row in summary(models):
        new = f"; new: {', '.join(row['new'])}" if row["new"] else ""
        lines.append(f"{row['parent']} -> {row['name']}: {'; '.join(row['changes'])}{new}")
    return "\n".join(lines) or "(nothing)"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}: {case[1]}")
def test_what_is_made_is_as_written(case: tuple[str, str, str, str], alexnets: Repo, update_fixtures: bool) -> None:
    file, title, query, expected = case
    found = answer(alexnets, query)
    if update_fixtures:
        path = FOLDER / file
        old, new = (f"== {title}\n{query}\n--\n{text}\n" for text in (expected, found))
        assert path.read_text().count(old) == 1, "two cases have one title and query"
        path.write_text(path.read_text().replace(old, new))
        return
    assert found == expected


def test_titles_are_unique() -> None:
    assert len(CASES) >= 60
    assert len({case[:2] for case in CASES}) == len(CASES)
