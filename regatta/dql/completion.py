"""What could follow the beginning of a query: keywords, attributes, names of a repository, kinds of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regatta.dql.bind.paths import MEMBERS
from regatta.dql.parse import complete
from regatta.dql.schema import RUN_ATTRIBUTES, TABLE_NAMES, VERSION_ATTRIBUTES, KnownNames
from regatta.dql.templates import ANY
from regatta.network import KINDS

_FUNCTIONS = ("count(", "avg(", "sum(", "min(", "max(", "ancestors(", "descendants(", "parents(", "children(", "now()")
_WORD = re.compile(r"[\w$]*$")
_PLAIN = re.compile(r"[^\W\d]\w*")


def completions(text: str, known: KnownNames) -> list[str]:
    """The words that may stand at the end of a text, whose last word may be cut off. Each is a whole word."""
    found = _WORD.search(text)
    word = found[0] if found is not None else ""
    before = text[: len(text) - len(word)]
    return sorted({option for option in _options(before, known) if option.lower().startswith(word.lower())})


def _options(before: str, known: KnownNames) -> Iterable[str]:
    match = re.search(r"\.\s*(metric|param|hyperparameter|run)\s*\.\s*$", before)
    if match is not None:
        names: Iterable[str] = {"metric": known.metrics, "run": RUN_ATTRIBUTES}.get(
            match[1], known.hyperparameters
        ) or ()
        return [name if _PLAIN.fullmatch(name) else f'"{name}"' for name in names]
    if re.search(r"\.\s*metric\s*\.\s*\w+\s*\.\s*$", before):
        return ("last", "best", "min", "max", "at(")
    if re.search(r"\]\s*(?:\.\s*(?:next|prev)\s*)*\.\s*$", before):
        return ("next", "prev")
    if re.search(r"\w\s*\.\s*$", before):
        return (*VERSION_ATTRIBUTES, *MEMBERS, "parents", "children", "ancestors", "descendants")
    if re.search(r"(?:\bhas|->(?:\s*\{[\d,\s]*\})?)\s*\[?\s*$", before, re.IGNORECASE):
        return (*KINDS, ANY)
    return _words(before, known)


def _words(before: str, known: KnownNames) -> Iterable[str]:
    expected = complete(before)
    words = [word for word in expected if word.isalpha() and word.islower() and " " not in word]
    if re.search(r"\b(?:from|,)\s*$", before, re.IGNORECASE) and "from" in before.lower():
        words += [*TABLE_NAMES, *(f'"{name}"' for name in known.saved)]
    elif "a name" in expected:
        words += [*_FUNCTIONS, *_variables(before)]
    return words


def _variables(text: str) -> Iterable[str]:
    """Names that the text uses already."""
    found = re.findall(r"\b(?:select|from|slice|construct|evaluate)\s+([^\W\d]\w*)|\b([^\W\d]\w*)\s*[.\[]", text)
    return {name for pair in found for name in pair if name}
