"""What is meant by a text that is no query: common slips, and what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = ("ms", "s", "min", "h", "d", "w")
_BODY = ("from", "where")
_CLAUSES = {  # in their order
    "select": (*_BODY, "group", "having", "order", "limit", "offset"),
    "slice": (*_BODY, "mutate", "into"),
    "construct": (*_BODY, "mutate", "fit", "into"),
    "evaluate": (*_BODY, "with", "vary", "using", "keep", "into"),
}
_SIGNS = {"&&": "and", "&": "and", "||": "or", "|": "or", "!": "not"}
_QUOTES = "\u201c\u201d\u2018\u2019`"  # of prose and of other languages
_COMMANDS = {"delete": "regatta delete", "drop": "regatta delete", "update": "regatta tag or regatta rename",
             "insert": "regatta commit", "create": "regatta commit"}  # fmt: skip


@dataclass(frozen=True)
class SyntaxAdvice:
    hint: str | None = None
    candidates: tuple[str, ...] = ()


def advice_on_word(text: str, start: int, word: str) -> SyntaxAdvice | None:
    """What is meant by a word that cannot stand where it does; None if that is not known."""
    before = re.sub(r"""--[^\n]*|"[^"]*"|'[^']*'""", '""', text[:start]).rstrip()
    word = word.lower()
    if not before and word in _COMMANDS:
        return SyntaxAdvice(f"Queries change no versions that exist. The command: {_COMMANDS[word]}")
    if word == "," and re.search(r"(\bin\s*\(?|\bvary\b[^,]*=)\s*[^\s()\[\],]+$", before, re.IGNORECASE):
        return SyntaxAdvice("Several values stand in square brackets: in [0.1, 0.01]")
    missing = re.search(r"\.(insert|replace)$", before)
    if missing is not None:
        return SyntaxAdvice(f"A = is missing: .{missing[1]} = RELU, or .{missing[1]} in [RELU, GELU]")
    return _misplaced(before, word)


def _misplaced(before: str, word: str) -> SyntaxAdvice | None:
    """Clauses in a wrong order, a clause that is there twice, and a second query."""
    inner = before
    while (shorter := re.sub(r"\([^()]*\)", "", inner)) != inner:
        inner = shorter
    words = re.findall(r"(?<![.:\w])[a-z]+\b", inner.rpartition("(")[2].lower())
    kinds = [place for place, each in enumerate(words) if each in _CLAUSES]
    begins = (word in _CLAUSES and kinds) or (kinds[1:] and kinds[-1] == len(words) - 1)
    if begins or before.endswith(";"):
        return SyntaxAdvice("One text is one query; a query inside of another stands in parentheses.")
    order = _CLAUSES[words[kinds[-1]]] if kinds else ()
    if word not in order:
        return None
    used = [each for each in words[kinds[-1] :] if each in order]
    if word in used and word == used[-1] == "where":
        return SyntaxAdvice("There is one where; its conditions are joined with and.")
    later = [each for each in used if order.index(each) > order.index(word)]
    return SyntaxAdvice(f"{word} stands before {later[0]}. The order: {', '.join(order)}") if later else None


def advice_on_sign(text: str, at: int) -> tuple[str, SyntaxAdvice]:
    """What cannot be read at a place, and what is meant by it."""
    sign = next((sign for sign in _SIGNS if text.startswith(sign, at)), None)
    if sign is not None:
        return sign, SyntaxAdvice(candidates=(_SIGNS[sign],))
    return text[at], SyntaxAdvice("A text stands in \" or '." if text[at] in _QUOTES else None)


def advice_on_number(word: str) -> SyntaxAdvice:
    """What is meant by a word that begins with a digit: 7days is 7d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]+)", word)
    if found is None:
        hint = 'A text, such as a name, stands in quotes: "..."' if re.search(r"[^\W\d]", word) else None
        return SyntaxAdvice(hint)
    unit = found[2].lower()
    near = "ms" if unit.startswith(("ms", "milli")) else "min" if unit == "m" or unit.startswith("mi") else unit[0]
    meant = (f"{found[1]}{near}",) if near in UNITS else ()
    return SyntaxAdvice(f"The units of time are {' '.join(UNITS)}, as in 7d.", meant)
