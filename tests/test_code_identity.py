"""Whether functions of a sweep were changed since a run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from regatta.code_identity import describe_code

PROGRAM = """
import functools
WIDTH = 3
class Model:
    def __init__(self, width): self.width, self.cache = width, object()
    def __call__(self, config): return self.width * 2
    def build(self, config): return helper(config)
def helper(config): return 1 + WIDTH
def wrap(function):
    @functools.wraps(function)
    def inner(config): return function(config)
    return inner
def plain(config): return [helper(c) for c in [config]]
def keyword(config, *, scale=0.5): return scale
@wrap
def wrapped(config): return 7
def closed(width, other): return lambda config: (width, other)
functions = [plain, keyword, wrapped, Model(4), Model(4).build, Model, closed(2, (object(), plain)),
             functools.partial(keyword, scale=0.1), functools.partial(plain, object())]
"""


def codes(program: str) -> list[str]:
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    return [repr(describe_code(function)) for function in names["functions"]]


def test_equal_functions_have_equal_codes() -> None:
    assert codes(PROGRAM) == codes(PROGRAM)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("WIDTH = 3", "WIDTH = 4", {0, 4, 5, 6, 8}),
        ("return 1 + WIDTH", "return 2 + WIDTH", {0, 4, 5, 6, 8}),
        ("scale=0.5", "scale=0.6", {1, 7}),
        ("return 7", "return 8", {2}),
        ("Model(4), Model", "Model(5), Model", {3}),
        ("self.width * 2", "self.width * 3", {3, 4, 5}),
        ("closed(2", "closed(3", {6}),
        ("scale=0.1", "scale=0.2", {7}),
    ],
)
def test_changed_functions_have_different_codes(before: str, after: str, changed: set[int]) -> None:
    pairs = enumerate(zip(codes(PROGRAM), codes(PROGRAM.replace(before, after)), strict=True))
    found = {place for place, (old, new) in pairs if old != new}
    assert found >= changed
    assert found <= changed | {3, 4, 5}, "an object is known by its class"


OWN = """
class Base:
    WIDTH = 3
    @staticmethod
    def scale(): return 5
class Model(Base):
    def build(self, config): return self.WIDTH
TABLE = {"wide": 7}
def helper(config): return 9
"""

USER = """
import own_helpers
from own_helpers import Model, helper
LAYERS = {"deep": 11}
def uses_class(config): return Model().build(config)
def uses_table(config): return LAYERS["deep"]
def uses_other(config): return own_helpers.helper(config) + own_helpers.TABLE["wide"]
functions = [uses_class, uses_table, uses_other]
"""


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("WIDTH = 3", "WIDTH = 4", {0}),
        ("return 5", "return 6", {0}),
        ('"wide": 7', '"wide": 8', {2}),
        ("return 9", "return 10", {2}),
        ('"deep": 11', '"deep": 12', {1}),
    ],
)
def test_changes_in_modules_and_tables_that_functions_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, changed: set[int]
) -> None:
    def found(own: str, user: str) -> list[str]:
        monkeypatch.delitem(sys.modules, "own_helpers", raising=False)
        (tmp_path / "own_helpers.py").write_text(own)
        importlib.invalidate_caches()
        return codes(user)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, again = found(OWN, USER), found(OWN, USER)
    assert first == again
    pairs = enumerate(zip(first, found(OWN.replace(before, after), USER.replace(before, after)), strict=True))
    assert {place for place, (old, new) in pairs if old != new} == changed
    monkeypatch.delitem(sys.modules, "own_helpers", raising=False)
