"""Text to tree. Lark is imported here, when the first query is read, and nowhere else.

A syntax error shows the line, a caret below the word, and what could stand there. `complete` returns what could follow
a text, for prompts and editors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from regatta.dql import tree
from regatta.dql.syntax_advice import advice_on_number, advice_on_sign, advice_on_word
from regatta.dql.tree import Expression, Span, Statement, Tree
from regatta.errors import UsageError, nearest

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.tree import Meta

MAX_TEXT_CHARACTERS = 100_000
MAX_DEPTH = 100  # of brackets, and of the tree
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_MAX_INTEGER = 2**63 - 1


class QueryError(UsageError):
    """An error in the text of a query: the message, the line, and a caret below the word."""

    def __init__(
        self, message: str, text: str, span: Span, *, candidates: Iterable[str] = (), hint: str | None = None
    ) -> None:
        self.text, self.span, self.advice = text, span, hint
        shown = show_place(text, span)
        super().__init__(message, hint="\n".join(filter(None, (shown, hint))), candidates=candidates)


def show_place(text: str, span: Span) -> str:
    """The line of a place in a text with carets below it; a long line is cut around the place."""
    start = min(span.start, len(text.rstrip()))
    before = text[:start]
    number, column = before.count("\n") + 1, start - (before.rfind("\n") + 1)
    line = text.split("\n")[number - 1]
    first = max(0, column - 60)
    shown = line[first : first + 110].replace("\t", " ")
    width = max(1, min(span.end - span.start, len(line) - column, len(shown) - (column - first)))
    margin = f"  line {number}: " if "\n" in text else "  "
    start_of_line = margin + ("..." if first else "")
    return f"{start_of_line}{shown}\n{' ' * (len(start_of_line) + column - first)}{'^' * width}"


def parse(text: str) -> Statement:
    """The tree of a query."""
    found: Statement = _parse(text, "statement")
    return found


def parse_condition(text: str) -> Expression:
    """The tree of a condition alone, as after `where`."""
    found: Expression = _parse(text, "expression")
    return found


def complete(text: str) -> tuple[str, ...]:
    """The keywords and kinds of words (NAME, STRING, NUMBER) that may follow a text, which may break off anywhere."""
    from lark import UnexpectedInput

    interactive = _parser().parse_interactive(text, start="statement")
    try:
        for _ in interactive.iter_parse():
            pass
    except UnexpectedInput:
        return ()
    return tuple(sorted({_spelled(name) for name in interactive.accepts()}))  # type: ignore[no-untyped-call]


@cache
def keywords() -> tuple[str, ...]:
    """All keywords of the language, in lower case."""
    return tuple(sorted(_keyword(terminal.name) for terminal in _parser().terminals if terminal.priority == 9))


def _parse(text: str, start: str) -> Any:
    from lark import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken
    from lark.exceptions import VisitError

    _check_text(text)
    try:
        found = _builder().transform(_parser().parse(text, start=start))
    except VisitError as error:
        if not isinstance(error.orig_exc, _TreeError):
            raise
        raise QueryError(error.orig_exc.message, text, error.orig_exc.span) from None
    except UnexpectedToken as error:
        raise _unexpected(text, error.token, error.accepts or error.expected) from None
    except UnexpectedCharacters as error:
        raise _unreadable(text, error.pos_in_stream or 0) from None
    except UnexpectedEOF as error:
        raise QueryError("The query ends too early.", text, Span(len(text), len(text) + 1)) from error
    _check_depth(found, text)
    return found


@cache
def _parser() -> Lark:
    from lark import Lark

    grammar = files("regatta.dql").joinpath("grammar.lark").read_text()
    return Lark(grammar, parser="lalr", start=["statement", "expression"], propagate_positions=True)


# Limits


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"A query is a text, not {type(text).__name__}.")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise UsageError(f"The query has {len(text):,} characters; {MAX_TEXT_CHARACTERS:,} is the limit.")
    if any("\ud800" <= character <= "\udfff" for character in text):  # of bytes that are not UTF-8
        raise UsageError("The query is not valid Unicode.", hint="Write it as UTF-8.")
    if not text.strip():
        raise UsageError("The query is empty.", hint="For example: select m where m.metric.loss.best < 0.1")
    depth = 0
    for match in re.finditer(r""""[^"]*"|'[^']*'|--[^\n]*|[(\[{]|[)\]}]""", text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise _too_deep(text, Span(*match.span()))


def _check_depth(root: Tree, text: str) -> None:
    waiting = [(root, 1)]
    while waiting:
        top, depth = waiting.pop()
        if depth > 2 * MAX_DEPTH:
            raise _too_deep(text, top.span)
        waiting.extend((child, depth + 1) for child in top.children())


def _too_deep(text: str, span: Span) -> QueryError:
    return QueryError(
        f"The query is nested more than {MAX_DEPTH} deep.",
        text,
        span,
        hint="Name its parts: with x as (...) select ...",
    )


# Errors of syntax


_WORDS = {
    "NAME": "a name", "STRING": "a text in quotes", "NUMBER": "a number", "INTEGER": "a whole number",
    "DURATION": "a time such as 7d", "PARAMETER": "a parameter such as :x", "COMPARE": "a comparison",
    "FACTOR": "* / %", "SIGN": "+ -", "STAR": "*", "OPEN": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]", "LBRACE": "{",
    "RBRACE": "}", "COMMA": ",", "DOT": ".", "EQUAL": "=", "SEMICOLON": ";", "MINUS": "-", "__ANON_0": "->",
    "$END": "the end of the query",
}  # fmt: skip
_EXPRESSION = frozenset(("NAME", "STRING", "NUMBER", "INTEGER", "DURATION", "PARAMETER", "OPEN", "LSQB"))
_BEGINNINGS = _EXPRESSION | {"MINUS", "SIGN", "NOT", "ALL", "SOME", "TRUE", "FALSE", "NULL", "_EXISTS"}
_OPERATORS = frozenset(
    ("COMPARE", "FACTOR", "STAR", "SIGN", "EQUAL", "MINUS", "_IN", "_LIKE", "_IS", "_BETWEEN", "_HAS")
)
_CONTINUATIONS = frozenset(("DOT", "OPEN", "LSQB", "__ANON_0"))  # of a name that was just written


def _keyword(terminal: str) -> str:
    return terminal.lstrip("_").lower()


def _spelled(terminal: str) -> str:
    return _WORDS.get(terminal, _keyword(terminal))


def _unexpected(text: str, token: Token, accepted: Iterable[str]) -> QueryError:
    wanted = set(accepted)
    if token.type == "$END":
        span, message = Span(len(text.rstrip()), len(text.rstrip()) + 1), "The query ends too early."
    else:
        span = Span(token.start_pos or 0, token.end_pos or 0)
        message = f"{str(token)!r:.60} cannot stand here."
    candidates: tuple[str, ...] = ()
    advice = None if token.type == "$END" else advice_on_word(text, span.start, str(token))
    if advice is not None:
        return QueryError(message, text, span, candidates=advice.candidates, hint=advice.hint)
    if token.type == "NAME":
        candidates = nearest(str(token), [_keyword(name) for name in wanted if name not in _WORDS])
    return QueryError(message, text, span, candidates=candidates, hint=f"Expected: {_expected(wanted)}.")


def _expected(wanted: set[str]) -> str:
    """What could stand somewhere, in words: an expression and an operator are one word each."""
    listed = []
    if wanted >= _EXPRESSION:
        listed.append("an expression")
        wanted = wanted - _BEGINNINGS
    elif len(wanted & _OPERATORS) > 2:
        listed.append("an operator")
        wanted = wanted - _OPERATORS - _CONTINUATIONS - {"NOT"}
    words = [_spelled(name) for name in wanted - {"SEMICOLON"}]
    listed += sorted(words, key=_place_in_list)
    if listed[-1:] == ["or"]:
        listed.reverse()
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}" if listed else "nothing more"


def _place_in_list(word: str) -> tuple[bool, bool, str]:
    """Words before signs, and the end last; `or` stands beside `and`, since it would read "or or" as the last one."""
    return word == _WORDS["$END"], len(word) < 2, "and or" if word == "or" else word


def _unreadable(text: str, at: int) -> QueryError:
    character = text[at]
    if character in "\"'":
        return QueryError("The text is not closed.", text, Span(at, len(text)), hint=f"Close it with {character}.")
    word = re.match(r"\d\w*(?:\.\w*)*", text[at:])
    if word is not None:
        meant, span = advice_on_number(word[0]), Span(at, at + word.end())
        message = f"{word[0]!r:.60} is not a number."
    else:
        sign, meant = advice_on_sign(text, at)
        message, span = f"{sign!r} cannot stand here.", Span(at, at + len(sign))
    return QueryError(message, text, span, candidates=meant.candidates, hint=meant.hint)


# The tree


class _TreeError(Exception):
    def __init__(self, message: str, span: Span) -> None:
        self.message, self.span = message, span


def _span(meta: Meta) -> Span:
    return Span(meta.start_pos, meta.end_pos) if not meta.empty else tree.NOWHERE


def _place(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0)


def _text(token: Token) -> str:
    """The content of a quoted text: the quote twice stands for itself."""
    quote = token[0]
    return str(token[1:-1]).replace(quote * 2, quote)


def _integer(token: Token) -> int:
    if len(token) > 19 or int(token) > _MAX_INTEGER:
        raise _TreeError("The number is too large.", _place(token))
    return int(token)


def _literal(token: Token) -> Expression:
    span = _place(token)
    match token.type:
        case "STRING":
            return tree.Value(_text(token), span=span)
        case "INTEGER":
            return tree.Value(_integer(token), span=span)
        case "NUMBER":
            value = float(token)
            if value == float("inf"):
                raise _TreeError("The number is too large.", span)
            return tree.Value(value, span=span)
        case "DURATION":
            match_ = re.fullmatch(r"([\d.]+)(\w+)", token)
            assert match_ is not None
            return tree.Duration(float(match_[1]) * _SECONDS[match_[2]], span=span)
        case "PARAMETER":
            return tree.QueryParameter(str(token[1:]), span=span)
    return tree.Value({"TRUE": True, "FALSE": False, "NULL": None}[token.type], span=span)


def _count(token: Token) -> tree.Count:
    return _integer(token) if token.type == "INTEGER" else tree.QueryParameter(str(token[1:]), span=_place(token))


def _chain(meta: Meta, parts: Sequence[Any]) -> Expression:
    """a + b - c, from the left."""
    found = parts[0]
    for operator, right in zip(parts[1::2], parts[2::2], strict=True):
        span = Span(found.span.start, right.span.end)
        found = tree.ArithmeticTree(str(operator), found, right, span=span)  # type: ignore[arg-type]
    return found  # type: ignore[no-any-return]


def _many(parts: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(part for part in parts if part is not None)


def _comparison(meta: Meta, parts: Sequence[Any]) -> Expression:
    left, operator, right = parts
    known = {"==": "=", "!=": "<>"}.get(str(operator), str(operator))
    return tree.CompareTree(known, left, right, span=_span(meta))  # type: ignore[arg-type]


def _field(meta: Meta, parts: Sequence[Any]) -> tree.Field:
    name, has_arguments, *arguments = parts
    spelled = _text(name) if name.type == "STRING" else str(name)
    return tree.Field(spelled, _many(arguments) if has_arguments else None, span=_place(name))


def _selector(meta: Meta, parts: Sequence[Any]) -> tree.Selector:
    (token,) = parts
    if token.type == "STRING":
        return tree.Selector(_text(token), span=_place(token))
    return tree.Selector(tree.QueryParameter(str(token[1:]), span=_place(token)), span=_place(token))


def _template(meta: Meta, parts: Sequence[Any]) -> tree.NodeTemplate:
    return tree.NodeTemplate(str(parts[0]), _many(parts[1:]), span=_span(meta))


def _arrow(meta: Meta, parts: Sequence[Any]) -> tree.Arrow:
    repeat, template = parts
    least, most = repeat or (1, 1)
    if most is not None and most < least:
        raise _TreeError(f"A path of {least} to {most} steps does not exist.", _span(meta))
    return tree.Arrow(template, least, most, span=_span(meta))


def _repeat(meta: Meta, parts: Sequence[Any]) -> tuple[int, int | None]:
    """{2} is exactly two steps, {1,3} one to three, {1,} one or more."""
    least, comma, most = parts
    return _integer(least), _integer(least) if comma is None else None if most is None else _integer(most)


def _call(meta: Meta, parts: Sequence[Any]) -> tree.Call:
    name, (distinct, star, arguments) = parts[0], parts[1] or (False, False, ())
    return tree.Call(str(name), arguments, distinct, star, span=_span(meta))


def _arguments(meta: Meta, parts: Sequence[Any]) -> tuple[bool, bool, tuple[Any, ...]]:
    if len(parts) == 1 and getattr(parts[0], "type", "") == "STAR":
        return False, True, ()
    return parts[0] is not None, False, tuple(parts[1:])


def _evaluate(meta: Meta, parts: Sequence[Any]) -> tree.Evaluate:
    name, sources, where, settings, vary, using, keep, into = parts
    return tree.Evaluate(
        str(name), sources, where, settings or (), vary or (), using, keep or (), into, span=_span(meta)
    )


def _select(meta: Meta, parts: Sequence[Any]) -> tree.Select:
    distinct, items, sources, where, group, having, order, limit = parts
    most, offset = limit or (None, None)
    return tree.Select(
        items, distinct is not None, sources or (), where, group or (), having, order or (), most, offset,
        span=_span(meta),
    )  # fmt: skip


def _name(token: Token | None) -> str | None:
    return None if token is None else str(token)


def _explained(meta: Meta, parts: Sequence[Any]) -> str:
    return "plan" if parts[0] is None else "analyze"


_Rule = Callable[["Meta", Sequence[Any]], Any]
_RULES: Mapping[str, _Rule] = {
    "statement": lambda m, p: Statement(p[1], p[0] or "no", span=_span(m)),
    "explain": _explained,
    "query": lambda m, p: tree.Query(p[1], p[0] or (), span=_span(m)),
    "bindings": lambda m, p: tuple(p),
    "binding": lambda m, p: tree.Binding(str(p[0]), p[1], span=_place(p[0])),
    "select": _select,
    "slice": lambda m, p: tree.Slice(str(p[0]), *p[1:], span=_span(m)),
    "construct": lambda m, p: tree.Construct(str(p[0]), p[1], p[2], p[3], p[4] is not None, p[5], span=_span(m)),
    "evaluate": _evaluate,
    "items": lambda m, p: tuple(p),
    "all_columns": lambda m, p: tree.AllColumns(span=_span(m)),
    "item": lambda m, p: tree.SelectItem(p[0], _name(p[1]), span=_span(m)),
    "from": lambda m, p: tuple(p),
    "named_source": lambda m, p: tree.NamedSource(str(p[0]), _name(p[1]), span=_place(p[0])),
    "saved_source": lambda m, p: tree.SavedSource(_text(p[0]), _name(p[1]), span=_place(p[0])),
    "nested_source": lambda m, p: tree.NestedSource(p[0], _name(p[1]), span=_span(m)),
    "where": lambda m, p: p[0],
    "group": lambda m, p: tuple(p),
    "having": lambda m, p: p[0],
    "order": lambda m, p: tuple(p),
    "order_key": lambda m, p: tree.OrderKeyTree(p[0], p[1] == "desc", span=_span(m)),
    "direction": lambda m, p: p[0].lower(),
    "limit": lambda m, p: tuple(p),
    "count": lambda m, p: _count(p[0]),
    "mutate": lambda m, p: p[0],
    "fit": lambda m, p: True,
    "into": lambda m, p: _text(p[0]),
    "settings": lambda m, p: tuple(p),
    "setting": lambda m, p: tree.ConfigSetting(*p, span=_span(m)),
    "vary": lambda m, p: tuple(p),
    "varied_in": lambda m, p: tree.Varied(*p, span=_span(m)),
    "varied_fixed": lambda m, p: tree.Varied(p[0], tree.List((p[1],), span=p[1].span), span=_span(m)),
    "varied_auto": lambda m, p: tree.Varied(p[0], None, span=_span(m)),
    "using": lambda m, p: p[0],
    "keep": lambda m, p: tuple(p),
    "keep_call": lambda m, p: tree.KeepCall(p[0], span=_span(m)),
    "keep_where": lambda m, p: tree.KeepWhere(*p, span=_span(m)),
    "unit": lambda m, p: "epochs" if p[0].type == "EPOCHS" else "iterations",
    "expression": lambda m, p: tree.OrTree(tuple(p), span=_span(m)),
    "conjunction": lambda m, p: tree.AndTree(tuple(p), span=_span(m)),
    "negation": lambda m, p: tree.NotTree(p[1], span=_span(m)),
    "compare": _comparison,
    "equal": lambda m, p: tree.CompareTree("=", *p, span=_span(m)),
    "like": lambda m, p: tree.LikeTree(p[0], p[2], p[1] is not None, span=_span(m)),
    "contained": lambda m, p: tree.Contained(p[0], p[2], p[1] is not None, span=_span(m)),
    "between": lambda m, p: tree.Between(p[0], p[2], p[3], p[1] is not None, span=_span(m)),
    "is_null": lambda m, p: tree.IsNullTree(p[0], p[1] is not None, span=_span(m)),
    "has": lambda m, p: tree.HasTree(p[1], p[2], p[0] or "some", span=_span(m)),
    "quantifier": lambda m, p: p[0].lower(),
    "templates": lambda m, p: tuple(p),
    "additive": _chain,
    "product": _chain,
    "negative": lambda m, p: tree.NegativeTree(p[0], span=_span(m)),
    "subquery": lambda m, p: tree.Subquery(p[0], span=_span(m)),
    "exists": lambda m, p: tree.ExistsTree(p[0], span=_span(m)),
    "list": lambda m, p: tree.List(_many(p), span=_span(m)),
    "call": _call,
    "arguments": _arguments,
    "template": _template,
    "path": lambda m, p: tree.Path(str(p[0]), tuple(p[1:]), span=_span(m)),
    "field": _field,
    "selector": lambda m, p: tree.Selector(
        _text(p[0]) if p[0].type == "STRING" else tree.QueryParameter(str(p[0][1:]), span=_place(p[0])),
        span=_place(p[0]),
    ),
    "arrow": _arrow,
    "repeat": _repeat,
    "literal": lambda m, p: _literal(p[0]),
}


@cache
def _builder() -> Any:
    """Turns Lark's tree into ours, bottom up and without recursion: a method for each rule of the grammar."""
    from lark import v_args
    from lark.visitors import Transformer_NonRecursive

    methods = {name: v_args(meta=True)(_method(rule)) for name, rule in _RULES.items()}
    return type("TreeBuilder", (Transformer_NonRecursive,), methods)()


def _method(rule: _Rule) -> Callable[..., Any]:
    return lambda self, meta, parts: rule(meta, parts)
