"""What `explain` says of an evaluate, and that it makes and trains nothing to find it out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from evaluations import project

from regatta import Cluster
from regatta.dql.relation import Relation, query
from regatta.dql.run import QueryContext
from regatta.errors import UsageError
from regatta.repo import Repo

CONSTRUCT = 'construct c from n where n.name like "alexnet%" mutate n["relu3"].replace in [GELU, SILU]'
SETTINGS = 'with config = "config.toml" vary config.base_lr in [0.1, 0.01]'


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[Repo]:
    monkeypatch.chdir(tmp_path)
    with project(tmp_path, "avg", "max") as opened:
        yield opened


def asked(repo: Repo, text: str) -> Relation:
    return query(QueryContext(repo, text, launch={"cluster": Cluster.inline(1), "progress": False}), {})


def content(repo: Repo) -> tuple[int, list[str]]:
    """The size of the log of the catalog, and the runs."""
    return repo.catalog.log.size(), sorted(path.name for path in repo.folder.glob("runs/*"))


def test_models_to_build_and_to_train(repo: Repo) -> None:
    before = content(repo)
    found = asked(repo, f"evaluate m from ({CONSTRUCT}) {SETTINGS}").explain()
    assert (found["trains"], len(found["models"]), found["epochs"]) == (8, 4, 3)
    assert found["from"]["models_to_make"] == 4 and found["from"]["from"]["rows_expected"] == 2
    assert "plan" not in found and content(repo) == before


def test_analyze_adds_the_time_and_memory_of_the_planner(repo: Repo) -> None:
    before = content(repo)
    found = asked(repo, f'explain analyze evaluate m from m where m.name like "%avg%" {SETTINGS}').explain()
    estimate = found["plan"]["root"]["estimate"]
    assert estimate["seconds"] > 0 and estimate["memory"] > 0
    assert content(repo) == before


@pytest.mark.parametrize(
    "inner", [f"select c from ({CONSTRUCT}) c", f"evaluate c from ({CONSTRUCT}) {SETTINGS}"], ids=["construct", "train"]
)
def test_models_that_another_query_must_make_first_are_not_made(inner: str, repo: Repo) -> None:
    before = content(repo)
    for text in (
        f"evaluate m from ({inner}) {SETTINGS}",
        f"select m.name from (evaluate m from ({inner}) {SETTINGS}) m",
    ):
        found = asked(repo, text).explain(analyze=False)
        assert "trains" not in found and content(repo) == before


def test_a_text_that_begins_with_explain_never_trains(repo: Repo) -> None:
    before = content(repo)
    for text in (f"evaluate m from m {SETTINGS}", CONSTRUCT, f"select m.name from ({CONSTRUCT}) m"):
        relation = asked(repo, f"explain {text}")
        for act in (relation.tuples, relation.to_pandas, relation.first):
            with pytest.raises(UsageError, match="begins with explain"):
                act()
        assert relation._repr_html_().startswith("<pre>query: explain")
    with pytest.raises(UsageError, match="begins with explain"):
        asked(repo, f"explain evaluate m from m {SETTINGS}").launch()
    assert content(repo) == before
