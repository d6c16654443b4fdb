"""Random selects over the repository of AlexNets (alexnets.py), as texts."""

from __future__ import annotations

from hypothesis import strategies as st


def words(*options: str) -> st.SearchStrategy[str]:
    return st.sampled_from(options)


def joined(*parts: st.SearchStrategy[str] | str) -> st.SearchStrategy[str]:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


SIGNS = words(" = ", " <> ", " < ", " <= ", " > ", " >= ")
SAME = words(" = ", " <> ")
NUMBERS = words("0", "1", "2", "0.01", "0.1", "1.0", "0.25", "1.9", "128", "-1", "2.25")
TEXTS = words(
    '"sgd"',
    '"auto"',
    '"alexnet_max"',
    '"onnx"',
    '"grid"',
    '"best"',
    '"done"',
    '"c0"',
    '""',
    '"alexnet_max@1"',
    '"with max max max pools"',
)
PATTERNS = words(
    '"alexnet_%"', '"%a%"', '"alexnet-%"', '"%"', '"_nnx"', '"%max%"', '"grid/c_"', '"with % pools"', '"sg%"', '"[a]*%"'
)
DATES = words('"2015-11-22"', '"2015-11-30"', '"2015-11-25 12:00"', "now() - 7d", 'date("2015-11-24") + 24h')
SELECTORS = words(
    "conv1",
    "conv[1,3,5]",
    "conv*",
    "pool*",
    "fc[6-8]",
    "*",
    "relu?",
    "POOL",
    "conv9",
    "features.2",
    "1",
    "[conv,pool]*",
    "conv*($1)",
    "add",
    "input",
    "?c*",
    "conv[2-4]",
    "/Relu",
    "out*",
    "c*5",
).map(lambda text: f'"{text}"')
TESTS = words(
    "POOL",
    'POOL("MAX")',
    'POOL("avg")',
    "CONV",
    "CONV(kernel = 3)",
    "CONV(out > 4)",
    "CONV(in in [1, 4], bias = true)",
    "RELU",
    "ANY(out >= 8)",
    'ANY("conv*")',
    "FULL",
    "CONV(groups > 1)",
    'RELU("relu[1,2]")',
    "POOL(stride = 2)",
    "ANY(kernel <> 3)",
    "ADD",
    "CONV(kernel = [3, 3])",
    "CONV(padding = 0)",
    "ANY",
    "FLATTEN",
    "CONV(padding <> 1)",
)
REPEATS = words("->", "->{2}", "->{1,3}", "->{1,}", "->{3,}", "->{0,1}", "->{4,9}")
STEPS = st.lists(st.one_of(words(".next", ".prev"), joined(" ", REPEATS, " ", TESTS)), max_size=3).map("".join)


def layers(m: str) -> st.SearchStrategy[str]:
    return joined(m, "[", SELECTORS, "]", STEPS)


def has(m: str) -> st.SearchStrategy[str]:
    templates = st.one_of(TESTS, st.lists(TESTS, min_size=1, max_size=3).map(lambda each: f"[{', '.join(each)}]"))
    return joined(layers(m), " has ", templates)


def numbers(m: str) -> st.SearchStrategy[str]:
    """Values that are numbers, or may be."""
    metrics = words("last", "best", "min", "max", "at(1)", "at(2)", "at(3)")
    plain = st.one_of(
        words(
            f"{m}.number",
            f"{m}.param.lr",
            f"{m}.param.batch_size",
            f"{m}.meta.data.images",
            f"{m}.parameters",
            f"{m}.snapshots",
            f"length({m}.name)",
            f"count({m}.tags)",
        ),
        joined(m, words(".metric.loss.", ".metric.accuracy."), metrics),
        joined("count(", words("ancestors", "descendants", "parents", "children"), f"({m}))"),
        joined("count(", layers(m), ")"),
        joined("count(", has(m), ")"),
        NUMBERS,
    )
    return st.one_of(
        plain,
        plain,
        joined("(", plain, words(" + ", " - ", " * ", " / ", " % "), plain, ")"),
        joined("- ", plain),
        joined("abs(", plain, ")"),
        joined("coalesce(", words(f"{m}.param.lr", f"{m}.metric.loss"), ", ", NUMBERS, ")"),
    )


def texts(m: str) -> st.SearchStrategy[str]:
    return words(
        f"{m}.name",
        f"{m}.reference",
        f"{m}.message",
        f"{m}.param.optimizer",
        f"{m}.param.lr",
        f"{m}.run",
        f"{m}.run.status",
        f"{m}.config",
        f"{m}.git.branch",
        f"{m}.meta.data.name",
        f"upper({m}.name)",
        f"lower({m}.reference)",
        f"{m}.id",
    )


def leaves(m: str, others: tuple[str, ...], depth: int) -> st.SearchStrategy[str]:
    kinds = words("parents", "children", "ancestors", "descendants")
    found = [
        joined(numbers(m), SIGNS, numbers(m)),
        joined(texts(m), SIGNS, TEXTS),
        joined(texts(m), words(" like ", " not like "), PATTERNS),
        joined(
            texts(m),
            words(" in ", " not in "),
            st.lists(TEXTS, min_size=1, max_size=3).map(lambda v: f"[{', '.join(v)}]"),
        ),
        joined(words(f"{m}.param.lr", f"{m}.param.nesterov"), words(" in ", " not in "), '[0.1, "auto", true, 1]'),
        joined(numbers(m), words(" between ", " not between "), NUMBERS, " and ", NUMBERS),
        joined(st.one_of(numbers(m), texts(m)), words(" is null", " is not null")),
        joined(f"{m}.created", SIGNS, DATES),
        joined(f"{m}.created - ", DATES, SIGNS, words("1d", "2w", "0s")),
        joined(TEXTS, f" in {m}.tags"),
        joined(m, ".param.pools", SAME, words('["max", "max", "max"]', '["avg", "avg", "max"]', "[1]")),
        words(
            f"{m}.tags",
            f"{m}.parents",
            f"descendants({m})",
            f"{m}.meta.checked",
            f"{m}.param.nesterov",
            f"{m}.git.dirty",
            "true",
        ),
        joined(kinds, f"({m})"),
        layers(m),
        has(m),
        joined("all ", has(m)),
        joined("some ", has(m)),
    ]
    for other in others:
        found += [
            joined(f"{m} in ", kinds, f"({other})"),
            joined(m, SAME, other),
            joined(numbers(m), SIGNS, numbers(other)),
            joined(texts(m), SAME, texts(other)),
        ]
    if depth:
        inner = f"n{depth}"
        where = conditions(inner, (m,), depth - 1)
        found += [
            joined("exists (select ", inner, " where ", where, ")"),
            joined(m, words(" in ", " not in "), f"(select {inner} where ", where, ")"),
            joined(texts(m), words(" in ", " not in "), "(select ", texts(inner), f" from {inner} where ", where, ")"),
            joined(numbers(m), SIGNS, f"(select max({inner}.metric.loss) from {inner} where ", where, ")"),
            joined(numbers(m), SIGNS, "(select ", numbers(inner), f" from {inner} where ", where, " limit 1)"),
        ]
    return st.one_of(found)


def conditions(m: str, others: tuple[str, ...] = (), depth: int = 1) -> st.SearchStrategy[str]:
    return st.recursive(
        leaves(m, others, depth),
        lambda inner: st.one_of(
            joined("(", inner, words(" and ", " or "), inner, ")"), joined("not ", inner), joined("not (", inner, ")")
        ),
        max_leaves=4,
    )


def values(m: str) -> st.SearchStrategy[str]:
    return st.one_of(numbers(m), texts(m), words(m, f"{m}.created", f"{m}.meta.checked", f"{m}.param.pools"), has(m))


def order(keys: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(joined(keys, words("", " asc", " desc")), min_size=1, max_size=2)
    return st.one_of(st.just(""), listed.map(lambda each: f" order by {', '.join(each)}"))


LIMITS = words("", "", " limit 3", " limit 2 offset 1", " limit 0")
TIDY = values("m").filter(lambda text: text not in ("m",))


def plain_selects() -> st.SearchStrategy[str]:
    items = st.one_of(st.just("m"), st.lists(values("m"), min_size=1, max_size=3).map(", ".join))
    return joined("select ", items, " from m where ", conditions("m"), order(TIDY), LIMITS)


def joins() -> st.SearchStrategy[str]:
    columns = st.lists(st.one_of(values("m"), values("k")), min_size=1, max_size=2).map(", ".join)
    return joined(
        "select ",
        st.one_of(st.just("m, k"), columns),
        " from m, k where ",
        conditions("m", ("k",), 0),
        words(" and ", " or "),
        conditions("k", ("m",), 0),
        order(TIDY),
        LIMITS,
    )


def distinct_selects() -> st.SearchStrategy[str]:
    return joined(
        "select distinct ",
        st.lists(values("m"), min_size=1, max_size=2).map(", ".join),
        " from m where ",
        conditions("m"),
        words("", " order by 1", " order by 1 desc"),
        LIMITS,
    )


def grouped_selects() -> st.SearchStrategy[str]:
    key = st.one_of(
        texts("m"), words("m.param.lr", "m.number", "m.param.nesterov", "m.network is null", "m.param.pools")
    )
    aggregates = st.one_of(
        st.just("count(*)"),
        joined(words("sum", "avg", "min", "max", "count", "count(distinct "), "(", numbers("m"), ")").map(
            lambda text: text.replace("count(distinct (", "count(distinct ")
        ),
        joined("count(", texts("m"), ")"),
    )
    listed = st.lists(aggregates, min_size=1, max_size=2).map(", ".join)
    having = st.one_of(st.just(""), joined(" having ", words("count(*)", "max(m.number)"), SIGNS, words("1", "2", "3")))

    def grouped(keys: list[str]) -> st.SearchStrategy[str]:
        head = f"select {', '.join([*keys, ''])}"
        groups = f" group by {', '.join(keys)}" if keys else ""
        ordered = order(st.one_of(aggregates, st.sampled_from(keys or ["count(*)"])))
        return joined(head, listed, " from m where ", conditions("m"), groups, having, ordered, LIMITS)

    return st.lists(key, max_size=2, unique=True).flatmap(grouped)


def nested_selects() -> st.SearchStrategy[str]:
    inner = joined("select m where ", conditions("m", (), 0), order(TIDY), LIMITS)
    pairs = joined(
        "(select m.param.lr as lr, m.name as name, m from m where ", conditions("m", (), 0), order(TIDY), LIMITS, ")"
    )
    return st.one_of(
        joined("select k from (", inner, ") k where ", conditions("k", (), 0), LIMITS),
        joined("select k.name, q.m from (", inner, ") k, ", pairs, " q where q.name = k.name or q.lr > 0.05", LIMITS),
        joined(
            "with a as (", inner, ") select x.reference, count(*) from a x, a y where x.number = y.number group by x"
        ),
        joined("select q.lr, count(*), min(q.name) from ", pairs, " q group by q.lr", words("", " order by 2 desc")),
    )


QUERIES = st.one_of(plain_selects(), plain_selects(), joins(), distinct_selects(), grouped_selects(), nested_selects())
