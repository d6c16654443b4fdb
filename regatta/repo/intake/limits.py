"""How much a reader reads, and how much it makes of that.

Files come from strangers. A reader counts what it is about to make before it makes it: names, values, bytes of tensors.
What is over a limit is a LimitError, which says the limit and what was found.
"""

from __future__ import annotations

import re
from pathlib import Path

from regatta.errors import LimitError

MAX_LOG_BYTES = 2**26  # of a log, or of settings in JSON
MAX_SETTINGS_BYTES = 2**22  # of settings in YAML or TOML, whose readers are slow
MAX_PARSED = 2_000_000  # values in a JSON text, nested ones as well
MAX_SETTINGS_PARSED = 200_000  # values in a YAML text, each alias counted with all that it stands for
MAX_NAMES = 10_000  # metrics or settings by name
MAX_POINTS = 4_000_000  # values of all metrics
MAX_NESTED = 100_000  # elements of a tuple in a pickle, those of tuples in it as well
MAX_LEVELS = 100  # of values in values in a YAML text, and parts of a dotted name in TOML
MAX_NUMBER_CHARACTERS = 1_000
_DIGITS = re.compile(rf"0x[0-9a-fA-F_]{{{MAX_NUMBER_CHARACTERS - 1},}}|[0-9_]{{{MAX_NUMBER_CHARACTERS + 1},}}")
_DOTTED = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_LEVELS}}}""")
MAX_TENSOR_GROWTH, SMALL_BYTES = 4, 2**26  # tensors may take this many times the bytes of their file, or SMALL_BYTES


def check_limit(what: str, found: int, limit: int, place: str | Path, hint: str | None = None) -> None:
    """LimitError if there is more than the limit."""
    if found > limit:
        raise LimitError(what, found, limit, place=str(place), hint=hint)


def check_tensor_bytes(made: int, read: int, place: str | Path) -> None:
    """Tensors may be a little larger than their file: views that overlap, or one number seen as a whole tensor."""
    check_limit(
        f"bytes of tensors from a file of {read:,}", made, max(SMALL_BYTES, MAX_TENSOR_GROWTH * read), place,
        hint="If they are right, clone the tensors before you save them, or save them as safetensors.",
    )  # fmt: skip


def check_json(text: str, place: str | Path) -> None:
    """Count the values that a JSON text may hold, without parsing it. Commas inside of texts count as well."""
    check_limit("JSON values", sum(text.count(sign) for sign in ",[{") + 1, MAX_PARSED, place)
    check_numbers(text, place)


def check_numbers(text: str, place: str | Path) -> None:
    """Refuse numbers of very many digits: the time that Python takes for one grows with their square."""
    if (found := _DIGITS.search(text)) is not None:
        check_limit("digits in a number", len(found[0]), MAX_NUMBER_CHARACTERS, place)


def check_dotted_names(text: str, place: str | Path) -> None:
    """Refuse names of very many parts in TOML: the time for one grows with the square of its parts."""
    if _DOTTED.search(text) is not None:
        check_limit("parts of a dotted name", MAX_LEVELS + 1, MAX_LEVELS, place)
