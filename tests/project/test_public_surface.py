"""The public names and commands: all there, all documented."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

import regatta
import regatta.network
from regatta.cli.main import build_parser


@pytest.fixture
def documents(root: Path) -> str:
    return "\n".join(path.read_text() for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))])


@pytest.mark.parametrize("name", regatta.__all__)
def test_a_public_name_resolves_and_has_a_docstring(name: str) -> None:
    found = getattr(regatta, name)
    assert (inspect.getdoc(found) or "").strip(), f"regatta.{name} has no docstring"


@pytest.mark.parametrize("name", regatta.__all__)
def test_a_public_name_is_in_the_documents(name: str, documents: str) -> None:
    assert re.search(rf"\bregatta\.{name}\b|`{name}`", documents), f"regatta.{name} is in no document"


def test_the_list_is_sorted_complete_and_equal_to_dir() -> None:
    assert sorted(set(regatta.__all__)) == regatta.__all__
    assert dir(regatta) == regatta.__all__


def test_public_methods_have_docstrings() -> None:
    """Completion shows these docstrings; only methods whose name says everything need none."""
    classes = [found for name in regatta.__all__ if inspect.isclass(found := getattr(regatta, name))]
    assert classes
    bare = [
        f"{cls.__name__}.{name}"
        for cls in classes
        for name, method in vars(cls).items()
        if not name.startswith("_") and callable(getattr(cls, name)) and not inspect.getdoc(getattr(cls, name))
    ]
    assert len(bare) <= 4, bare


def test_the_ways_to_make_a_data_set_are_documented(root: Path, documents: str) -> None:
    made_by = [
        name for name, found in vars(regatta.Dataset).items() if isinstance(found, classmethod) and name[0] != "_"
    ]
    assert sorted(made_by) == ["by_config", "digits", "from_arrays", "from_paths", "from_torch"]
    assert [name for name in made_by if f"Dataset.{name}(" not in documents] == []
    reference = (root / "docs" / "reference.rst").read_text()
    assert [name for name in made_by if not re.search(rf":members:.*\b{name}\b", reference)] == []


def test_the_options_of_from_arrays_and_from_torch_are_the_same() -> None:
    arrays, rows = (
        {
            name: each.default
            for name, each in inspect.signature(method).parameters.items()
            if each.kind.name == "KEYWORD_ONLY"
        }
        for method in (regatta.Dataset.from_arrays, regatta.Dataset.from_torch)
    )
    assert arrays.pop("eval") is None and rows.pop("collate_fn") is None
    assert arrays == rows


def test_a_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="launc"):
        regatta.launc  # noqa: B018


FUNCTIONS = [
    f"{module.__name__}.{name}"
    for module in (regatta.network, regatta.search)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_searches_spaces_and_networks_are_documented(name: str, documents: str) -> None:
    module, _, function = name.rpartition(".")
    assert inspect.getdoc(getattr(sys.modules[module], function))
    assert re.search(rf"\b{module.removeprefix('regatta.')}\.{function}\b|`{function}[`(]", documents)


@pytest.mark.parametrize("verb", build_parser()[1])
def test_a_command_is_in_the_documents(verb: str, documents: str) -> None:
    assert re.search(rf"\bregatta {verb}\b", documents), f"`regatta {verb}` is in no document"
