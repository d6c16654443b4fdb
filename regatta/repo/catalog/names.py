"""Names of versions and tags, and the forms in which people refer to a version."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from regatta.errors import UsageError

MAX_NAME_BYTES = 1024  # as UTF-8
ID_DIGITS = 32
REFERENCE_FORMS = "A version is a tag, a name (its newest version), name@number, or the beginning of an id."
_NUMBERED = re.compile(r"(.+)@([0-9]{1,15})", re.DOTALL)
_PREFIX = re.compile(r"[0-9a-f]{4,32}")


class ReferenceMeaning(NamedTuple):
    """One meaning of a reference: a whole "name" or "tag", a "number" of a name, or the beginning of an "id"."""

    kind: str
    text: str
    number: int = 0


def check_name(name: object, what: str = "version") -> str:
    """The name in its composed form (NFC), after a check: any text of one line that UTF-8 can encode."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"The name of a {what} is a text, not {name!r:.100}.")
    made = unicodedata.normalize("NFC", name)
    if (reason := _problem_of(made)) is not None:
        raise UsageError(f"The name {name!r:.200} of a {what} {reason}.")
    return made


def possible_meanings(reference: str) -> Iterator[ReferenceMeaning]:
    """The possible meanings of a reference, most likely first."""
    text = unicodedata.normalize("NFC", reference)
    yield ReferenceMeaning("tag", text)
    yield ReferenceMeaning("name", text)
    if (match := _NUMBERED.fullmatch(text)) is not None:
        yield ReferenceMeaning("number", match[1], int(match[2]))
    if _PREFIX.fullmatch(text.lower()):
        yield ReferenceMeaning("id", text.lower())


def _problem_of(name: str) -> str | None:
    wrong = [character for character in name if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")]
    if wrong:
        return f"holds {wrong[0]!a}, which is not allowed in a line of text"
    if name != name.strip():
        return "begins or ends with a space"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    if _NUMBERED.fullmatch(name):
        return "ends like the number of a version"
    return None
