"""Errors of the user's functions in words: one line, and the traceback from the user's own code on."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

import regatta
from regatta.engine.sharing.block_reader import PreprocessingError
from regatta.errors import RegattaError

_PACKAGE = Path(regatta.__file__).parent
HEADLINE, TRACEBACK = 1_000, 100_000  # characters that are kept of an error


def headline(error: BaseException) -> str:
    """The first line; asked of the traceback module, for an exception's own __str__ may raise."""
    if isinstance(error, PreprocessingError):
        return error.headline
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    text = next(line for line in lines if not line.startswith(" "))  # where a syntax error is comes before what it is
    return _shortened(text.removeprefix(f"{type(error).__module__}."), HEADLINE)


def _shortened(text: str, limit: int) -> str:
    """The beginning and the end: an exception may carry a whole tensor as its text."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {len(text) - limit} characters left out ... {text[-(limit // 2) :]}"


def users_traceback(error: BaseException) -> str:
    """The traceback from the user's own code on; of an error that we found, what it says."""
    if isinstance(error, PreprocessingError):
        return error.traceback
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None and isinstance(error, RegattaError):
        return str(error)
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    return _shortened(text, TRACEBACK)


def _is_ours(file: str) -> bool:
    return file == contextlib.__file__ or Path(file).is_relative_to(_PACKAGE)
