"""Text to tree: the paper's queries, every construct, and errors that show their place."""

from __future__ import annotations

import time

import pytest

from regatta.dql import tree
from regatta.dql.parse import QueryError, complete, keywords, parse, parse_condition
from regatta.errors import UsageError

QUERY_1 = """select m1
where m1.name like "alexnet_%" and
m1.creation_time > "2015-11-22" and
m1["conv[1,3,5]"].next has POOL("MAX")"""
QUERY_2 = """slice m2 from m1
where m1.name like "alexnet-origin%"
mutate m2.input = m1["conv1"] and
m2.output = m1["fc7"]"""
QUERY_3 = """construct m2 from m1
where m1.name like "alexnet-avgv1%" and
m1["conv*($1)"].next has POOL("AVG")
mutate m1["conv*($1)"].insert = RELU("relu$1")"""
QUERY_4 = """evaluate m
from "query3"
with config = "path to config"
vary config.base_lr in [0.1, 0.01, 0.001] and
config.net["conv*"].lr auto and
config.input_data in ["path1", "path2"]
keep top(5, m["loss"], 100)"""


def path(root: str, *steps: str | tree.Step) -> tree.Path:
    return tree.Path(root, tuple(tree.Field(step) if isinstance(step, str) else step for step in steps))


def body(text: str) -> tree.Body:
    return parse(text).query.body


def test_query_1_of_the_paper() -> None:
    pool = tree.NodeTemplate("POOL", (tree.Value("MAX"),))
    assert body(QUERY_1) == tree.Select(
        (tree.SelectItem(path("m1")),),
        where=tree.AndTree(
            (
                tree.LikeTree(path("m1", "name"), tree.Value("alexnet_%")),
                tree.CompareTree(">", path("m1", "creation_time"), tree.Value("2015-11-22")),
                tree.HasTree(path("m1", tree.Selector("conv[1,3,5]"), "next"), (pool,)),
            )
        ),
    )


def test_query_2_of_the_paper() -> None:
    assert body(QUERY_2) == tree.Slice(
        "m2",
        (tree.NamedSource("m1"),),
        tree.LikeTree(path("m1", "name"), tree.Value("alexnet-origin%")),
        tree.AndTree(
            (
                tree.CompareTree("=", path("m2", "input"), path("m1", tree.Selector("conv1"))),
                tree.CompareTree("=", path("m2", "output"), path("m1", tree.Selector("fc7"))),
            )
        ),
    )


def test_query_3_of_the_paper() -> None:
    found = body(QUERY_3)
    assert isinstance(found, tree.Construct)
    assert found.mutate == tree.CompareTree(
        "=", path("m1", tree.Selector("conv*($1)"), "insert"), tree.Call("RELU", (tree.Value("relu$1"),))
    )
    assert not found.fit and found.into is None


def test_query_4_of_the_paper() -> None:
    rates = tree.List((tree.Value(0.1), tree.Value(0.01), tree.Value(0.001)))
    assert body(QUERY_4) == tree.Evaluate(
        "m",
        (tree.SavedSource("query3"),),
        settings=(tree.ConfigSetting(path("config"), tree.Value("path to config")),),
        vary=(
            tree.Varied(path("config", "base_lr"), rates),
            tree.Varied(path("config", "net", tree.Selector("conv*"), "lr"), None),
            tree.Varied(path("config", "input_data"), tree.List((tree.Value("path1"), tree.Value("path2")))),
        ),
        keep=(
            tree.KeepCall(tree.Call("top", (tree.Value(5), path("m", tree.Selector("loss")), tree.Value(100)))),
        ),
    )  # fmt: skip


def condition(text: str) -> tree.Expression:
    return parse_condition(text)


M = path("m", "x")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3 - 4", tree.ArithmeticTree("-", tree.ArithmeticTree("+", tree.Value(1),
            tree.ArithmeticTree("*", tree.Value(2), tree.Value(3))), tree.Value(4))),
        ("m.x - -1.5e3", tree.ArithmeticTree("-", M, tree.NegativeTree(tree.Value(1500.0)))),
        ("now() - 7d", tree.ArithmeticTree("-", tree.Call("now"), tree.Duration(604_800.0))),
        ("m.x >= 30min", tree.CompareTree(">=", M, tree.Duration(1800.0))),
        ("m.x != 1 OR m.x == 2 Or NOT m.x <> 3", tree.OrTree((tree.CompareTree("<>", M, tree.Value(1)),
            tree.CompareTree("=", M, tree.Value(2)), tree.NotTree(tree.CompareTree("<>", M, tree.Value(3)))))),
        ("not m.x = 1 and true", tree.AndTree((
            tree.NotTree(tree.CompareTree("=", M, tree.Value(1))), tree.Value(True)))),
        ("m.x not in [1, 'two', null]", tree.Contained(M, tree.List((tree.Value(1), tree.Value("two"),
            tree.Value(None))), True)),
        ("m.x in :values", tree.Contained(M, tree.QueryParameter("values"))),
        ("m.x in []", tree.Contained(M, tree.List(()))),
        ("m.x not like 'a''b'", tree.LikeTree(M, tree.Value("a'b"), True)),
        ("m.x between 1 and 2 and false", tree.AndTree((tree.Between(M, tree.Value(1), tree.Value(2)),
            tree.Value(False)))),
        ("m.x is not null", tree.IsNullTree(M, True)),
        ('m.metric."val/loss".at(10)', path("m", "metric", "val/loss", tree.Field("at", (tree.Value(10),)))),
        ("m.param.in = m.select", tree.CompareTree("=", path("m", "param", "in"), path("m", "select"))),
        ("all m[:s].next has [POOL, NORM('batch')]", tree.HasTree(path("m", tree.Selector(tree.QueryParameter("s")),
            "next"), (tree.NodeTemplate("POOL"), tree.NodeTemplate("NORM", (tree.Value("batch"),))), "all")),
        ("m['a'] -> POOL ->{1,3} FULL ->{2,} RELU ->{2} ANY", path("m", tree.Selector("a"),
            tree.Arrow(tree.NodeTemplate("POOL")), tree.Arrow(tree.NodeTemplate("FULL"), 1, 3),
            tree.Arrow(tree.NodeTemplate("RELU"), 2, None), tree.Arrow(tree.NodeTemplate("ANY"), 2, 2))),
        ("count(distinct m.x)", tree.Call("count", (M,), distinct=True)),
        ("count(*)", tree.Call("count", star=True)),
        ("m['c'] has CONV(in = 3, out > 64, kernel in [1, 3])", tree.HasTree(path("m", tree.Selector("c")),
            (tree.NodeTemplate("CONV", (tree.CompareTree("=", path("in"), tree.Value(3)),
            tree.CompareTree(">", path("out"), tree.Value(64)),
            tree.Contained(path("kernel"), tree.List((tree.Value(1), tree.Value(3)))))),))),
    ],
)  # fmt: skip
def test_expressions(text: str, wanted: tree.Expression) -> None:
    assert condition(text) == wanted


def test_every_clause_of_select() -> None:
    text = """with best as (select a), more as (select b) -- a comment
        select distinct m.name as n, count(*) from best m, runs r, "saved" s, (select c) as d
        where true group by m.name, 2 having count(*) > 1 order by n desc, 2 limit 10 offset :from;"""
    query = parse(text).query
    assert [binding.name for binding in query.bindings] == ["best", "more"]
    found = query.body
    assert isinstance(found, tree.Select) and found.distinct
    assert [item.alias for item in found.items if isinstance(item, tree.SelectItem)] == ["n", None]
    assert found.sources[:3] == (
        tree.NamedSource("best", "m"), tree.NamedSource("runs", "r"), tree.SavedSource("saved", "s"),
    )  # fmt: skip
    assert isinstance(found.sources[3], tree.NestedSource) and found.sources[3].alias == "d"
    assert [key.descending for key in found.order] == [True, False]
    assert found.limit == 10 and found.offset == tree.QueryParameter("from")
    assert parse("explain select *").explain == "plan"
    assert parse("EXPLAIN ANALYSE select *").explain == "analyze"


def test_every_clause_of_construct_and_evaluate() -> None:
    made = body("construct b from a mutate a['x'].delete and a['y'].set(out in [1, 2]) fit into 'new'")
    assert isinstance(made, tree.Construct) and made.fit and made.into == "new"
    found = body(
        "evaluate m from (select a) with config.epochs = 5, batch_size = 3 vary config.lr in loguniform(1e-4, 0.1) and "
        "config.n = 3 using asha(n = 20) keep where m['accuracy'] > 0.9 "
        "after 3 epochs and top(5, m['loss'], 10) into 'r'"
    )
    assert isinstance(found, tree.Evaluate)
    assert [setting.path for setting in found.settings] == [path("config", "epochs"), path("batch_size")]
    assert found.vary[1] == tree.Varied(path("config", "n"), tree.List((tree.Value(3),)))
    assert found.using == tree.NodeTemplate("asha", (tree.CompareTree("=", path("n"), tree.Value(20)),))
    accurate = tree.CompareTree(">", path("m", tree.Selector("accuracy")), tree.Value(0.9))
    assert found.keep[0] == tree.KeepWhere(accurate, 3, "epochs")
    assert isinstance(found.keep[1], tree.KeepCall) and found.into == "r"


def test_spans_are_places_in_the_text() -> None:
    text = "select m where m.metric.loss > 3 and m['conv1'] has POOL('MAX')"
    found = {type(part).__name__: text[part.span.start : part.span.end] for part in tree.walk(parse(text))}
    assert found["HasTree"] == "m['conv1'] has POOL('MAX')"
    assert found["NodeTemplate"] == "POOL('MAX')"
    assert found["CompareTree"] == "m.metric.loss > 3"
    assert found["Selector"] == "'conv1'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slect m", "'slect' cannot stand here.\nDid you mean select?\n  slect m\n  ^^^^^\n"
            "Expected: construct, evaluate, explain, select, slice or with."),
        ("select m where", "The query ends too early.\n  select m where\n                ^\nExpected: an expression."),
        ("select m where m.x inn [1]", "'inn' cannot stand here.\nDid you mean in?\n  select m where m.x inn [1]\n"
            "                     ^^^\n"),
        ('select m where m.x = "abc', 'The text is not closed.\n  select m where m.x = "abc\n'
            '                       ^^^^\nClose it with ".'),
        ("select m\nwhere m.x = 2x", "'2x' is not a number.\n  line 2: where m.x = 2x\n                      ^^"),
        ("select m where m.x ~ 3", "'~' cannot stand here.\n  select m where m.x ~ 3\n                     ^"),
        ("select m limit 99999999999999999999", "The number is too large.\n"),
        ("select m where m.x = 1e999", "The number is too large.\n"),
        ("select m where m -> {3,1} POOL", "A path of 3 to 1 steps does not exist.\n"),
        ("construct m2 from m1", "The query ends too early.\n  construct m2 from m1\n                      ^\n"
            "Expected: mutate or where."),
        ("select m from m where m.a between 1 or 2", "'or' cannot stand here.\n"),
        ("select m where m.name like and true",
            "'and' cannot stand here.\n  select m where m.name like and true\n                             ^^^\n"
            "Expected: an expression."),
        ("select m FROM WHERE true", "'WHERE' cannot stand here.\n"),
    ],
)  # fmt: skip
def test_a_syntax_error_shows_the_place_and_what_could_stand_there(text: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select m where " + "(" * 200 + "1" + ")" * 200, "nested more than 100 deep"),
        ("select m where " + "not " * 500 + "true", "nested more than 100 deep"),
        ("select m where " + "1 + " * 10_000 + "1", "nested more than 100 deep"),
        ("select m -- " + "x" * 1_000_000, "1,000,012 characters; 100,000 is the limit"),
        ("select m where " + "- " * 40_000 + "1", "nested more than 100 deep"),
        (" \n ", "The query is empty"),
    ],
)
def test_a_huge_query_is_an_error_at_once(text: str, message: str) -> None:
    begin = time.process_time()
    with pytest.raises(UsageError, match=message):
        parse(text)
    assert time.process_time() - begin < 5  # a generous end: it takes milliseconds


def test_long_flat_queries_are_fine() -> None:
    found = condition(" or ".join(f"m.x = {number}" for number in range(5000)))
    assert isinstance(found, tree.OrTree) and len(found.operands) == 5000


def test_keywords_are_names_after_a_dot_and_kinds_of_layers() -> None:
    assert condition("m.param.from = 1") == condition('m.param."from" = 1')
    parse('select m where m["x"] has SELECT and m.Where in [android, orange] and m["x"] has CONV(in = 3)')


def test_words_that_may_follow() -> None:
    assert "select" in complete("") and "from" in complete("select m ") and "and" in complete("select m where m.x = 1 ")
    assert complete("select m where )") == ()
    assert {"select", "mutate", "between"} < set(keywords())
