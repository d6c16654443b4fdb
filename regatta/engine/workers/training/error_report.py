"""Errors of the user's functions in words: one line, and the traceback from the user's own code on."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import regatta
from regatta.configuration import Scalar
from regatta.engine.messages import Cause
from regatta.engine.sharing.block_reader import PreprocessingError
from regatta.engine.sharing.preprocess import UnreadableError
from regatta.errors import CorruptError, MissingExtraError, NotFoundError, RegattaError, nearest

_PACKAGE = Path(regatta.__file__).parent
MAX_HEADLINE_CHARACTERS, MAX_TRACEBACK_CHARACTERS = 1_000, 100_000
MAX_CAUSES = 20  # of an error: the user's code may close a circle


def cause_of(error: BaseException) -> Cause:
    """What an error says about the configuration: missing files, modules and connections say nothing."""
    if isinstance(error, PreprocessingError):
        return error.cause
    if isinstance(error, UnreadableError):
        return "data"
    return "environment" if any(map(_is_missing, _with_causes(error))) else "model"


def _is_missing(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_missing, error.exceptions))
    return isinstance(error, OSError | ImportError | SyntaxError | MissingExtraError | NotFoundError | CorruptError)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, the error from which it was raised, and so on."""
    at: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if at is not None:
            yield at
            at = at.__cause__


def headline(error: BaseException) -> str:
    """The first line of an error, from the traceback module because an exception's own __str__ may raise."""
    if isinstance(error, UnreadableError):
        error = error.error
    if isinstance(error, PreprocessingError):
        return error.headline
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    text = next(line for line in lines if not line.startswith(" "))  # a syntax error begins with its place
    return _shorten(text.removeprefix(f"{type(error).__module__}."), MAX_HEADLINE_CHARACTERS)


def _shorten(text: str, limit: int) -> str:
    """Keep the beginning and the end: an exception may carry a whole tensor as its text."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {len(text) - limit} characters left out ... {text[-(limit // 2) :]}"


def users_traceback(error: BaseException) -> str:
    """The traceback from the user's own code on; for an error that Regatta raised itself, its message."""
    if isinstance(error, UnreadableError):
        error = error.error
    if isinstance(error, PreprocessingError):
        return error.traceback
    frames = error.__traceback__
    while frames is not None and _is_library_file(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None and isinstance(error, RegattaError):
        return str(error)
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    return _shorten(text, MAX_TRACEBACK_CHARACTERS)


def advice(error: BaseException, values: Mapping[str, Scalar]) -> str:
    """What to do about an error of a library that users of Regatta often meet; empty if nothing is known."""
    if isinstance(error, UnreadableError | PreprocessingError | RegattaError):
        return ""
    if isinstance(error, KeyError):
        name = error.args[0] if error.args else None
        found = nearest(name, values) if isinstance(name, str) and name not in values else ()
        return f"Did you mean {' or '.join(found)}? The configuration has {', '.join(values)}." if found else ""
    text = headline(error).lower()
    if "cuda" in text and ("not compiled" in text or "no nvidia driver" in text):
        return "Regatta places the model and its batches: leave out .to(...) and .cuda()."
    if "dtype" not in text and "scalar type" not in text:
        return ""
    if "long" in text:
        return "Class numbers must be whole numbers: pass y.astype('int64')."
    if "found dtype double" in text:  # the loss became float64, so the targets are
        return "The targets may be float64, and the model float32: pass y.astype('float32')."
    return "The data may be float64, and the model float32: pass x.astype('float32')." if "double" in text else ""


def _is_library_file(file: str) -> bool:
    return file == contextlib.__file__ or Path(file).is_relative_to(_PACKAGE)
