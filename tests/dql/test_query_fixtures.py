"""Pairs of a query and its answer, or its error, as text: fixtures/*.txt.

    == title
    {"a parameter": "its value"}      (if there are any)
    the query
    --
    a line for each row, or the error

`--update-fixtures` writes the answers again; then read the difference.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from regatta.dql.relation import plain_value
from regatta.dql.saved_queries import save_query
from regatta.errors import RegattaError
from regatta.repo import Repo

FOLDER = Path(__file__).parent / "fixtures"
SAVED = {
    "best": "select m where m.metric.loss.best < 1.7 order by m.metric.loss.best",
    "named": 'select m from "best" where m.name like "alex%"',
    "loop": 'select m from "loop" m',
}


class Case(NamedTuple):
    file: str
    title: str
    query: str
    answer: str

    def __str__(self) -> str:
        return f"{self.file}: {self.title}"


def read_cases() -> list[Case]:
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in path.read_text().split("== ")[1:]:
            title, _, rest = block.partition("\n")
            query, _, answer = rest.partition("\n--\n")
            found.append(Case(path.name, title, query, answer.rstrip("\n")))
    return found


CASES = read_cases()


@pytest.fixture(scope="module")
def folder(alexnets_folder: Path) -> Path:
    with Repo.open(alexnets_folder) as repo:
        for name, text in SAVED.items():
            save_query(repo.folder, name, text)
    return alexnets_folder


def answer(repo: Repo, query: str) -> str:
    parameters: dict[str, Any] = {}
    if query.startswith("{"):
        first, _, query = query.partition("\n")
        parameters = json.loads(first)
    try:
        relation = repo.query(query, **parameters)
        rows = relation.tuples()
    except RegattaError as error:
        return f"{type(error).__name__}: {error}"
    head = [] if relation.models else [" | ".join(relation.columns)]
    return "\n".join([*head, *(" | ".join(map(shown, row)) for row in rows)]) or "(nothing)"


def shown(value: Any) -> str:
    value = plain_value(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_is_as_written(case: Case, folder: Path, update_fixtures: bool) -> None:
    with Repo.open(folder, read_only=True) as repo:
        found = answer(repo, case.query)
    if update_fixtures:
        path = FOLDER / case.file
        old, new = (f"== {case.title}\n{case.query}\n--\n{text}\n" for text in (case.answer, found))
        assert path.read_text().count(old) == 1, "two cases have one title and query"
        path.write_text(path.read_text().replace(old, new))
        return
    assert found == case.answer


def test_there_are_many_cases_and_titles_are_unique() -> None:
    assert len(CASES) >= 60
    assert len({str(case) for case in CASES}) == len(CASES)
    assert sum("Error" in case.answer for case in CASES) >= 30


def test_query_1_of_the_paper(alexnets: Repo) -> None:
    """Letter for letter; the answer is made by hand from the table of models in alexnets.py.

    alexnet_early is too old. alexnet_max has maxima after conv1 and conv5, alexnet_mixed after conv5. alexnet_second
    has one after conv2 alone, alexnet_avg none, and alexnet_relu has ReLUs between. `_` stands for one character, so
    that alexnet-origin1 matches as well. The second alexnet_max has the network of alexnet_avg.
    """
    query = (
        'select m1\nwhere m1.name like "alexnet_%" and\nm1.creation_time > "2015-11-22" and\n'
        'm1["conv[1,3,5]"].next has POOL("MAX")'
    )
    assert [m.reference for m in alexnets.query(query)] == ["alexnet_max@1", "alexnet_mixed@1", "alexnet-origin1@1"]
