"""Queries that are made to take long or to break out: an error or an answer at once, and nothing pasted into SQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regatta.dql.saved_queries import save_query
from regatta.dql.sql.select import compile_select
from regatta.errors import RegattaError, UsageError
from regatta.repo import Repo

SECONDS = 20.0  # of this process: a generous end, each takes at most 1 s on a quiet machine


def nested(times: int, around: Callable[[str], str], inside: str) -> str:
    for _ in range(times):
        inside = around(inside)
    return inside


ERRORS = {
    "brackets": ("select m where " + "(" * 200 + "true" + ")" * 200, "nested more than 100 deep"),
    "calls": ("select m where 1 = " + "abs(" * 200 + "1" + ")" * 200, "nested more than 100 deep"),
    "not": ("select m where " + "not " * 200 + "true", "nested more than 100 deep"),
    "and in or": (
        "select m where " + nested(100, lambda x: f"(m.number = 1 and (m.number = 2 or {x}))", "true"),
        "nested more than 100 deep",
    ),
    "queries": (nested(200, lambda x: f"select m from ({x}) limit 5", "select m"), "nested more than 100 deep"),
    "exists": (
        "select m where " + nested(200, lambda x: f"exists (select m where {x})", "true"),
        "nested more than 100 deep",
    ),
    "with that doubles": (
        "with a0 as (select m), "
        + ", ".join(f"a{i} as (select x from a{i - 1} x, a{i - 1} y)" for i in range(1, 60))
        + " select m from a59 m",
        "more than 256 sources",
    ),
    "a megabyte": ("select m where m.name = '" + "x" * 1_000_000 + "'", "1,000,026 characters"),
    "a long path": ('select m where m["conv1"]' + ".next" * 5_000 + " has POOL", "at most 20 steps"),
    "a selector of many alternatives": ('select m where m["' + "[a,b]" * 12 + '"]', "4,096 alternatives"),
    "many sources": ("select count(*) from " + ", ".join(f"m{i}" for i in range(17)), "at most 16 sources"),
    "many columns": ("select " + ", ".join(["m.name"] * 300), "at most 200 columns"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_it_is_an_error_at_once(name: str, alexnets: Repo) -> None:
    text, message = ERRORS[name]
    begin = time.process_time()
    with pytest.raises(UsageError, match=message):
        alexnets.query(text).tuples()
    assert time.process_time() - begin < SECONDS


ANSWERS = {
    "an or of thousands": "select m where " + " or ".join(f"m.name = 'a{i}'" for i in range(4_000)),
    "a long list": f"select m where m.number in [{', '.join(map(str, range(2, 15_000)))}]",
    "many templates": f'select m where m["conv1"] has [{", ".join(f"CONV(out = {i})" for i in range(2_000, 4_000))}]',
    "paths in their thousands": 'select m where m["*"]' + " ->{1,} ANY" * 19 + ' has CONV("none")',
    "long arrows": 'select m where m["conv1"]' + " ->{1,100} ANY" * 19 + ' has CONV("none")',
    "back and forth": 'select m where m["*"]' + ".next.prev" * 10 + ' has CONV("none")',
    "like of many wildcards": f"""select m where "{"a" * 5_000}" like "{"%a" * 5_000}b" """,
    "a selector of many wildcards": f'select m where m["{"*a" * 120}"]',
    "nested a dozen deep": "select m where " + nested(12, lambda x: f"exists (select m where {x})", "false"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_it_is_answered_at_once(name: str, alexnets: Repo) -> None:
    begin = time.process_time()
    assert len(alexnets.query(ANSWERS[name])) <= 1
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize("depth", [60, 95])
def test_what_sqlite_cannot_nest_is_an_error_of_ours(depth: int, alexnets: Repo) -> None:
    for text in (
        "select m where 1 = " + "abs(" * depth + "m.number" + ")" * depth,
        "select m where " + "m.number + " * depth + "1 > 0",
        nested(depth // 3, lambda x: f"select m from ({x}) limit 5", "select m"),
    ):
        try:
            assert len(alexnets.query(text)) > 0
        except UsageError as error:
            assert "SQLite cannot run" in str(error) or "nested" in str(error)


def test_saved_queries_that_read_each_other(own_alexnets: Repo) -> None:
    save_query(own_alexnets.folder, "q0", "select m")
    for number in range(1, 30):
        save_query(own_alexnets.folder, f"q{number}", f'select x from "q{number - 1}" x, "q{number - 1}" y')
    with pytest.raises(UsageError, match=r"deep|256 sources"):
        own_alexnets.query('select m from "q29"')


HOSTILE = ('"', "'", "a'b", "x' OR 1=1 --", 'x" OR 1=1', "; DROP TABLE tag", "?1", "v0.key", "\0", "%s", "{row}", "*/")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_never_become_sql(text: str, own_alexnets: Repo) -> None:
    quoted = '"' + text.replace('"', '""') + '"'
    own_alexnets.commit("hostile", hyperparameters={text: 1}, metrics={text: 1.0}, metadata={text: {"k": text}},
                        git=False)  # fmt: skip
    for query in (
        f'select m where m.name = {quoted} or m.message like {quoted[:-1]}%"',
        f"select m where m.param.{quoted} = 1",
        f"select m where m.metric.{quoted}.best = 1",
        f"select m where m.meta.{quoted}.k = {quoted}",
        f"select m.meta.{quoted}.k as a from m where {quoted} in m.tags or m.number in [{quoted.count('x')}]",
        "select m where m.name = :x or m.param.optimizer in [:x]",
    ):
        relation = own_alexnets.query(query, **({"x": text} if ":x" in query else {}))
        relation.tuples()
        statement = compile_select(relation._prepared.query)  # type: ignore[arg-type]
        if len(text) > 3 and text not in ("v0.key", "{row}"):
            assert text not in statement.text
    assert [m.name for m in own_alexnets.query(f"select m where m.param.{quoted} = 1")] == ["hostile"]
    assert [m.name for m in own_alexnets.query(f"select m where m.meta.{quoted}.k = {quoted}")] == ["hostile"]


@pytest.mark.parametrize("function", ["load_extension", "readfile", "writefile", "eval", "system", "dql_quote", "glob"])
def test_no_function_of_sqlite_or_python_can_be_called(function: str, alexnets: Repo) -> None:
    with pytest.raises(UsageError, match="There is no function"):
        alexnets.query(f"select {function}('/etc/passwd') from m")


def test_a_query_changes_nothing(own_alexnets: Repo) -> None:
    before = own_alexnets.catalog.read_entries()
    files = sorted(path.name for path in Path(own_alexnets.folder).rglob("*"))
    for text in ("select m", "explain analyze select m", 'select m where m["conv1"] -> POOL'):
        relation = own_alexnets.query(text)
        relation.tuples()
        str(relation.explain(analyze=True))
    assert own_alexnets.catalog.read_entries() == before
    assert sorted(path.name for path in Path(own_alexnets.folder).rglob("*")) == files


def test_a_lock_or_damage_of_the_catalog_is_not_a_query_error(own_alexnets: Repo) -> None:
    relation = own_alexnets.query("select m")
    own_alexnets.catalog.close()
    with pytest.raises(RegattaError):
        relation.tuples()
