"""Selectors of layers: `conv*`, `conv[1,3,5]`, `fc[6-8]`, `conv*($1)`.

    *          any text            ?          one character
    [1,3,5]    one of these        [1-5]      one of these numbers
    ($1)       after one of these: what it matched is $1 in the names of new layers
    \\          the next character stands for itself

A selector matches whole names: the id, the name, the other names (regatta/network/aliases.py) and the kind of a layer.
Lists are written out, so that every alternative is a plain glob. Those match in linear time, whatever the selector is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TypeAlias

MAX_SELECTOR_CHARACTERS = 256
MAX_ALTERNATIVES = 1_000
MAX_NUMBER = 10**6
_CAPTURE = re.compile(r"\(\$(\d{1,2})\)")
_WILDCARDS = {"*": ".*?", "?": "."}

Captures: TypeAlias = Mapping[int, str]


class SelectorError(ValueError):
    """What is wrong with a selector; the caller knows its place in the query."""


@dataclass(frozen=True)
class _Part:
    """A wildcard, or alternative texts: a single one for literal characters."""

    wildcard: str | None
    texts: tuple[str, ...]
    capture: int | None = None


@dataclass(frozen=True)
class SelectorPattern:
    text: str
    parts: tuple[_Part, ...]

    @property
    def captures(self) -> frozenset[int]:
        return frozenset(part.capture for part in self.parts if part.capture is not None)

    def match(self, names: Iterable[str]) -> Captures | None:
        """What the captures matched in the first name that matches; None if none does."""
        expressions = _expressions(self)
        for name in names:
            for expression in expressions:
                found = expression.fullmatch(name) if name else None
                if found is not None:
                    return {int(key[1:]): text for key, text in found.groupdict().items()}
        return None

    def texts(self) -> tuple[str, ...]:
        """The names that a selector without wildcards stands for."""
        return tuple("".join(text for _, text in chosen) for chosen in _written_out(self))

    def globs(self) -> tuple[str, ...]:
        """The selector as patterns of SQLite's GLOB; a name that matches one of them is selected."""
        return tuple("".join(_glob(part, text) for part, text in chosen) for chosen in _written_out(self))


def parse_selector(text: str) -> SelectorPattern:
    """Raise SelectorError if the text is not a selector."""
    if not text:
        raise SelectorError("The selector is empty.")
    if len(text) > MAX_SELECTOR_CHARACTERS:
        raise SelectorError(f"The selector has {len(text)} characters; {MAX_SELECTOR_CHARACTERS} is the limit.")
    parts: list[_Part] = []
    at = 0
    while at < len(text):
        part, at = _next_part(text, at)
        capture = _CAPTURE.match(text, at)
        if capture is not None:
            part, at = _captured(part, int(capture[1]), parts), capture.end()
        parts.append(part)
    total = 1
    for part in parts:
        total *= len(part.texts) or 1
    if total > MAX_ALTERNATIVES:
        raise SelectorError(f"The selector stands for {total:,} alternatives; {MAX_ALTERNATIVES:,} is the limit.")
    return SelectorPattern(text, tuple(parts))


def fill_captures(name: str, captures: Captures) -> str:
    """A name of a new layer, in which $1 is what the selector captured as ($1)."""

    def filled(match: re.Match[str]) -> str:
        number = int(match[1])
        if number not in captures:
            raise SelectorError(f"The selector captures nothing as ${number}.")
        return captures[number]

    return re.sub(r"\$(\d{1,2})", filled, name)


def _captured(part: _Part, number: int, before: Iterable[_Part]) -> _Part:
    if part.wildcard is None and len(part.texts) == 1:
        raise SelectorError(f"(${number}) must follow *, ? or a list in brackets.")
    if number in {other.capture for other in before}:
        raise SelectorError(f"${number} is captured twice.")
    return _Part(part.wildcard, part.texts, number)


def _next_part(text: str, at: int) -> tuple[_Part, int]:
    character = text[at]
    if character in _WILDCARDS:
        return _Part(character, ()), at + 1
    if character == "[":
        end = text.find("]", at)
        if end < 0:
            raise SelectorError("A bracket of the selector is not closed.")
        return _Part(None, _listed(text[at + 1 : end])), end + 1
    if character == "\\":
        if at + 1 == len(text):
            raise SelectorError("The selector ends with a backslash.")
        return _Part(None, (text[at + 1],)), at + 2
    return _Part(None, (character,)), at + 1


def _listed(text: str) -> tuple[str, ...]:
    """The alternatives of [1,3,5-8]; twice the same text is one."""
    found: dict[str, None] = {}
    for item in (item.strip() for item in text.split(",")):
        numbers = re.fullmatch(r"(\d{1,7})-(\d{1,7})", item)
        if numbers is None:
            found[item] = None
            continue
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last <= MAX_NUMBER or last - first >= MAX_ALTERNATIVES:
            raise SelectorError(f"The range {item} is empty, or has more than {MAX_ALTERNATIVES:,} numbers.")
        found |= dict.fromkeys(map(str, range(first, last + 1)))
    if "" in found:
        raise SelectorError("A list of the selector has an empty alternative.")
    return tuple(found)


def _written_out(pattern: SelectorPattern) -> Iterable[tuple[tuple[_Part, str], ...]]:
    for texts in product(*(part.texts or ("",) for part in pattern.parts)):
        yield tuple(zip(pattern.parts, texts, strict=True))


@cache
def _expressions(pattern: SelectorPattern) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(_expression(chosen), re.DOTALL) for chosen in _written_out(pattern))


def _expression(chosen: tuple[tuple[_Part, str], ...]) -> str:
    """A regular expression that never goes back behind a `*`: the shortest match of each stretch is always enough."""
    stretches = [""]
    for part, text in chosen:
        piece = _WILDCARDS[part.wildcard] if part.wildcard else re.escape(text)
        piece = piece if part.capture is None else f"(?P<g{part.capture}>{piece})"
        if part.wildcard == "*":
            stretches.append(piece)
        else:
            stretches[-1] += piece
    first, *rest = stretches
    if not rest:
        return first
    return first + "".join(f"(?>{stretch})" for stretch in rest[:-1]) + rest[-1]


def _glob(part: _Part, text: str) -> str:
    return part.wildcard or "".join(f"[{character}]" if character in "*?[" else character for character in text)
