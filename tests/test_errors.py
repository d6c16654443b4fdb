"""Errors say what was received, where, and what to do; and their exit codes are promised."""

from __future__ import annotations

import inspect

import pytest

from regatta import errors
from regatta.errors import (
    ConflictError,
    CorruptError,
    DataError,
    MissingExtraError,
    NotFoundError,
    RegattaError,
    UsageError,
    nearest,
)


def test_an_error_shows_place_message_candidates_and_hint_in_order() -> None:
    error = UsageError("No rule 'lrn'.", hint="See the list.", place="sweep.py:3", candidates=["lrm", "lpt"])
    assert str(error) == "sweep.py:3: No rule 'lrn'.\nDid you mean lrm or lpt?\nSee the list."
    assert (error.message, error.hint, error.place) == ("No rule 'lrn'.", "See the list.", "sweep.py:3")
    assert error.candidates == ("lrm", "lpt")


def test_missing_parts_of_an_error_are_not_shown() -> None:
    assert str(RegattaError("Plain.")) == "Plain."
    assert str(RegattaError("Plain.", candidates=[])) == "Plain."
    assert str(RegattaError("Plain.", hint="Do this.")) == "Plain.\nDo this."


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RegattaError, 1),
        (UsageError, 2),
        (DataError, 2),
        (NotFoundError, 3),
        (ConflictError, 4),
        (CorruptError, 1),
    ],
)
def test_exit_codes(kind: type[RegattaError], code: int) -> None:
    assert kind("x").exit_code == code


def test_every_error_is_a_regatta_error_with_a_documented_exit_code() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert len(kinds) >= 7
    for kind in kinds:
        assert issubclass(kind, RegattaError)
        assert kind.exit_code in (1, 2, 3, 4)


def test_data_and_extras_are_usage_errors() -> None:
    assert issubclass(DataError, UsageError)
    error = MissingExtraError("pyarrow", "parquet", "Reading Parquet")
    assert isinstance(error, UsageError)
    assert "Reading Parquet needs the package 'pyarrow'" in str(error)
    assert "pip install '.[parquet]'" in str(error)


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("acuracy", ["accuracy", "loss", "train_loss"], ("accuracy",)),
        ("ACCURACY", ["accuracy", "loss"], ("accuracy",)),
        ("Loss", ["loss", "train_loss"], ("loss",)),
        ("loss", ["train_loss", "accuracy"], ("train_loss",)),
        ("n_epochs", ["epochs", "repo", "numerics"], ("epochs",)),
        ("--metrc", ["--metric", "--search", "--mode"], ("--metric",)),
        ("train", ["tag", "run", "explain"], ()),
        ("zebra", ["accuracy", "loss"], ()),
        ("anything", [], ()),
        ("", ["loss"], ()),
    ],
)
def test_the_nearest_names(name: str, known: list[str], found: tuple[str, ...]) -> None:
    assert nearest(name, known) == found


def test_the_nearest_names_are_few_and_come_nearest_first() -> None:
    known = [f"epoch{number}" for number in range(20)] + ["epochs"]
    assert len(nearest("epochs", known)) == 3
    assert nearest("epochs", known)[0] == "epochs"
    assert len(nearest("epochs", known, count=5)) == 5
