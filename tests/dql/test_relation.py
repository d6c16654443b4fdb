"""Relations, as Python sees queries: lazy, with conditions added, in other forms, launched."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regatta import Cluster
from regatta.errors import UsageError
from regatta.network import from_torch
from regatta.repo import Repo, Version

ALL = "select m"
EVALUATE = """evaluate m from m where m.name = "net"
with config.input_data = "digits", config.epochs = 2, config.batch_size = 256 vary config.base_lr in [0.1, 0.01]
keep top(1, m["loss"], 2, "epochs")"""


@pytest.fixture
def statements(alexnets: Repo, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that queries run, in their order."""
    found: list[str] = []
    select = alexnets.catalog.select

    def noted(statement: str, *others: Any) -> Any:
        found.append(statement)
        return select(statement, *others)

    monkeypatch.setattr(alexnets.catalog, "select", noted)
    return found


@pytest.fixture
def project(tmp_path: Path, one_thread: None) -> Repo:
    torch.manual_seed(0)
    net = nn.Sequential(OrderedDict(fc1=nn.Linear(64, 8), relu1=nn.ReLU(), fc2=nn.Linear(8, 10)))
    repo = Repo.init(tmp_path)
    repo.commit("net", net.state_dict(), network=from_torch(net, torch.zeros(1, 64)), git=False)
    return repo


def test_nothing_runs_before_rows_are_asked_for_and_then_once(alexnets: Repo, statements: list[str]) -> None:
    relation = alexnets.query(ALL).where("number = 1").limit(3)
    assert statements == [] and "select m" in repr(relation)
    assert len(relation) == len(list(relation)) == len(relation.rows()) == 3
    assert len(statements) == 1 and "LIMIT" in statements[0]


def test_an_error_comes_at_once(alexnets: Repo, statements: list[str]) -> None:
    with pytest.raises(UsageError, match="Did you mean name"):
        alexnets.query("select m where m.nme = 3")
    with pytest.raises(UsageError, match="Did you mean name"):
        alexnets.query(ALL).where("nme = 3")
    with pytest.raises(UsageError, match=r"Did you mean param\.lr"):
        alexnets.query(ALL).where("lr < 0.1")
    with pytest.raises(UsageError, match="no value"):
        alexnets.query(ALL).where("name = :name")
    assert statements == []


def test_conditions_are_added(alexnets: Repo) -> None:
    models = alexnets.query(ALL)
    assert [m.name for m in models.where('name like "alexnet_a%"')] == ["alexnet_avg", "alexnet-avgv1"]
    assert [m.name for m in models.where('m["pool1"] has POOL("avg")').where("m.param.lr < 0.05")] == [
        "alexnet_mixed", "alexnet_second",
    ]  # fmt: skip
    assert [m.name for m in models.where("name = :name", name="onnx' or true")] == []
    assert len(models.where("true")) == len(models) == 13
    best = alexnets.query("select m where m.metric.loss is not null order by m.metric.loss limit 4")
    assert [m.reference for m in best.where("param.lr < 0.2")] == ["grid/c0@1", "alexnet-avgv1@1", "alexnet-origin1@1"]
    assert [m.reference for m in best.limit(1, offset=1)] == ["grid/c0@1"]


def test_conditions_on_columns(alexnets: Repo) -> None:
    rows = alexnets.query("select m.param.lr as rate, count(*) as n from m group by rate")
    assert rows.where("n > 3").tuples() == [(0.01, 4), (0.1, 6)]
    assert rows.where("n > :least and rate < 0.1", least=3).rows() == [{"rate": 0.01, "n": 4}]
    with pytest.raises(UsageError, match="no variable 'nn'"):
        rows.where("nn > 3")


def test_a_limit_is_a_whole_number(alexnets: Repo) -> None:
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(UsageError, match="whole number from 0"):
            alexnets.query(ALL).limit(wrong)  # type: ignore[arg-type]
    assert alexnets.query(ALL).limit(0).first() is None


def test_options_of_what_is_made(own_alexnets: Repo) -> None:
    text = 'construct c from m where m.name = "alexnet_avg" mutate m["fc8"].replace = FULL("head", out = 3) into "h"'
    with pytest.raises(UsageError, match=r"1; 0 is the limit(.|\n)*with_options\(max_models=1\)"):
        own_alexnets.query(text).with_options(max_models=0).versions()
    first, second = (own_alexnets.query(text).with_options(max_models=1, seed=seed).first() for seed in (1, 2))
    assert (first.metadata["seed"], second.metadata["seed"]) == (1, 2)
    assert (own_alexnets.load(first)["head.weight"] != own_alexnets.load(second)["head.weight"]).any()
    for wrong in ({"max_models": -1}, {"seed": True}, {"max_models": 1.5}):
        with pytest.raises(UsageError, match="whole number from 0"):
            own_alexnets.query(text).with_options(**wrong)  # type: ignore[arg-type]


def test_what_iteration_gives(alexnets: Repo) -> None:
    assert all(isinstance(model, Version) for model in alexnets.query(ALL))
    rows = alexnets.query('select m.name, m, m.created from m where m.name = "onnx"')
    assert rows.tuples() == [("onnx", alexnets.version("onnx"), datetime(2015, 11, 30, tzinfo=UTC))]
    assert rows.first() == {
        "name": "onnx",
        "m": alexnets.version("onnx"),
        "created": datetime(2015, 11, 30, tzinfo=UTC),
    }
    with pytest.raises(UsageError, match="not models"):
        rows.versions()
    assert alexnets.query("select m where false").first() is None
    assert bool(alexnets.query("select m where false")), "a relation is not asked whether it has rows"


def test_parameters_of_every_type(alexnets: Repo) -> None:
    wanted = ["alexnet_max", "alexnet_avg", "alexnet_mixed"]
    names = alexnets.query(
        "select m.name from m where m.created between :first and :last and m.number = :one and m.name in :names "
        "and m.param.optimizer = :text and m.network is not null and m.meta.checked in :flags and m <> :model",
        first=datetime(2015, 11, 11, tzinfo=UTC), last="2015-11-25", one=1, names=wanted, text="sgd",
        flags=[True, False], model=alexnets.version("alexnet_mixed"),
    )  # fmt: skip
    assert [row["name"] for row in names] == ["alexnet_max", "alexnet_avg"]
    text = "select m.name from m where m.created - date(:day) > :span"
    assert len(alexnets.query(text, day="2015-11-29", span=timedelta(days=2))) == 2
    with pytest.raises(UsageError, match="Did you mean :nmae"):
        alexnets.query("select m where m.name = :name", nmae="x")


def test_lists_with_equal_numbers_are_one_value(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        for place, kernel in enumerate(([1, 2], [1.0, 2.0])):
            repo.commit(f"m{place}", hyperparameters={"kernel": kernel}, git=False)
        assert repo.query("select m.param.kernel, count(*) from m group by m.param.kernel").tuples() == [([1, 2], 2)]


def test_whole_numbers_are_compared_exactly(tmp_path: Path) -> None:
    """Seeds have up to 64 bits; a float cannot tell large ones apart."""
    with Repo.init(tmp_path) as repo:
        for place, seed in enumerate((2**53, 2**53 + 1, 2**62 + 1, -(2**53) - 1)):
            repo.commit(f"m{place}", hyperparameters={"seed": seed}, git=False)

        def names(condition: str, **parameters: object) -> list[str]:
            return [m.name for m in repo.query(f"select m where {condition}", **parameters)]

        assert names("m.param.seed = :seed", seed=2**53 + 1) == ["m1"]
        assert names("m.param.seed > :seed", seed=2**53) == ["m1", "m2"]
        assert names("m.param.seed in :seeds", seeds=[2**53, -(2**53) - 1]) == ["m0", "m3"]
        assert names("not m.param.seed <> :seed", seed=2**53) == ["m0"]
        assert names("m.param.seed < 9007199254740991") == ["m3"]
        assert repo.query("select max(m.param.seed) from m").tuples() == [(2**62 + 1,)]


def test_lists_of_versions_and_dates_as_parameters(alexnets: Repo) -> None:
    found = [alexnets.version("alexnet_mixed"), alexnets.version("alexnet_avg")]
    assert [m.name for m in alexnets.query("select m where m in :found", found=found)] == [
        "alexnet_avg",
        "alexnet_mixed",
    ]
    times = [datetime.fromtimestamp(version.created, UTC) for version in found]
    query = "select m where m.created in :times and not m in :found"
    assert not alexnets.query(query, times=times, found=found[:1]).versions()[1:]


def test_texts_that_are_not_unicode_are_refused(alexnets: Repo) -> None:
    with pytest.raises(UsageError, match="not valid Unicode"):
        alexnets.query('select m where m.name = "\udcff"')
    for value in ("\udcff", ["\udcff"]):
        operator = "in" if isinstance(value, list) else "="
        with pytest.raises(UsageError, match="not valid Unicode"):
            alexnets.query(f"select m where m.name {operator} :name", name=value).versions()


def test_rows_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that another process deletes between two reads of a query is in its answer, whole."""
    repo = Repo.init(tmp_path)
    repo.commit("net", {"w": torch.ones(2)}, git=False)
    select = repo.catalog.select

    def deleting_after(*arguments: Any) -> Any:
        rows = select(*arguments)
        with Repo.open(tmp_path) as other:
            other.delete("net")
        return rows

    monkeypatch.setattr(repo.catalog, "select", deleting_after)
    ((version, name),) = repo.query("select m, m.name").tuples()
    assert isinstance(version, Version) and version.name == name == "net"


def test_a_data_frame(alexnets: Repo) -> None:
    frame = alexnets.query(ALL).to_pandas()
    assert list(frame["name"])[:2] == ["alexnet_early", "alexnet_max"] and frame["lr"][0] == 0.1
    assert list(alexnets.query("select m.name, m.number from m where false").to_pandas().columns) == ["name", "number"]
    columns = alexnets.query('select m, m.created - date("2015-11-10") as age from m limit 2').to_pandas()
    assert columns.to_dict("list") == {"m": ["alexnet_early@1", "alexnet_max@1"], "age": [0.0, 13 * 86_400.0]}


def test_a_table_of_arrow(alexnets: Repo) -> None:
    table = alexnets.query("select m, m.param.lr as lr, m.tags, m.created, m.metric.loss from m").to_arrow()
    assert [str(field.type) for field in table.schema] == [
        "string", "string", "list<item: string>", "timestamp[us, tz=UTC]", "double",
    ]  # fmt: skip
    assert table.to_pylist()[1]["tags"] == ["best"] and table.to_pylist()[8]["lr"] == "auto"
    models = alexnets.query(ALL).to_arrow()
    assert {"name", "number", "lr", "metric.loss"} <= set(models.column_names) and models.num_rows == 13
    assert alexnets.query("select m where false").to_arrow().num_rows == 0
    assert alexnets.query("select m.name where false").to_arrow().schema.names == ["name"]


def test_notebooks_show_tables(alexnets: Repo, own_alexnets: Repo) -> None:
    assert "<td>alexnet_max@1</td>" in alexnets.query(ALL)._repr_html_()
    own_alexnets.commit("<script>", git=False)
    shown = own_alexnets.query("select m.name as n from m")._repr_html_()
    assert "<th>n</th>" in shown and "&lt;script&gt;" in shown and "<script>" not in shown
    made = own_alexnets.query(
        'slice s from m where m.name = "onnx" mutate s.input = m["conv1"] and s.output = m["add"]'
    )
    assert "It has not run" in made._repr_html_() and made.makes_versions
    assert not own_alexnets.query('select m where m.name = "onnx-s"').rows()


def test_an_explanation_is_a_mapping_and_a_text(alexnets: Repo, statements: list[str]) -> None:
    relation = alexnets.query('select m where m["conv1"].next has POOL("max")')
    found = relation.explain()
    assert {"query", "seconds", "kind", "sql", "parameters", "plan", "rows_expected"} == set(found)
    assert found["rows_expected"] == len(relation) == 3  # the ONNX layer /conv1/Conv is followed by a ReLU
    assert statements[-1] == found["sql"], "it shows the statement that runs"
    assert found["sql"] in str(found) and found["parameters"] == ["conv1", "POOL"]
    analyzed = relation.explain(analyze=True)
    assert analyzed["rows"] == 3 and analyzed["sql_seconds"] > 0
    assert relation.where("number = 1").explain()["rows_expected"] == 3


def test_launch_returns_the_run(project: Repo) -> None:
    relation = project.query(EVALUATE)
    assert relation.trains and relation.explain()["trains"] == 2
    run = relation.launch(name="two", cluster=Cluster.inline(1), progress=False)
    assert run.name == "two" and run.record.status == "done"
    found = project.query('select m where m.run = "two" order by m.metric.loss.best').versions()
    assert [parent.reference for version in found for parent in project.parents(version)] == ["net@1", "net@1"]
    with pytest.raises(UsageError, match="Did you mean name"):
        project.query(EVALUATE).launch(nam="three")
    with pytest.raises(UsageError, match="Only an evaluate can be launched"):
        project.query(ALL).launch()


def test_rows_of_an_evaluate_are_the_versions_that_were_kept(project: Repo) -> None:
    [kept] = project.query(EVALUATE).versions()
    assert kept.metrics["loss"].lowest_step == 2
    assert project.parents(kept)[0].name == "net"
    nested = project.query(f"select k.name, k.param.base_lr as rate from ({EVALUATE}) k")
    assert nested.makes_versions and nested.rows() == [{"name": nested.rows()[0]["name"], "rate": 0.1}]
