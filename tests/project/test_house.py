"""The house: where things are, what they are called, how documents read. Each failure says what to do."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from locations import ROOT, TESTS
from quick import FOLDERS_AND_FILES, LIST, NOT_COLLECTED, read_list

from regatta import paths

PRODUCT = ROOT / "regatta"
MAX_FILES_IN_A_FOLDER = 15
MAX_LINE = 100
MAX_WORDS_IN_A_SENTENCE = 40
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# Metaphors that named modules and classes once. The glossary (docs/glossary.md) has the words to use.
OLD_NAMES = (
    "Course", "Courses", "Bundles", "Chronicle", "Whereabouts", "Holdings", "Patience", "Steering", "Inquiry",
    "TryOut", "Keeper", "Heritage", "Kept", "Bench", "Supplies", "Preparation", "Maker", "Desk", "Knock", "Guest",
    "SPEECHLESS", "Outfit", "Crew", "Squad", "unsealed", "relive", "obey", "live_by", "_last_words", "_bury", "MadeRun",
)  # fmt: skip
OLD_WORDS = (
    "anew", "so many", "of which", "who", "whoever", "somebody", "told", "thereof", "by and by", "himself",
    "is no number",
)  # fmt: skip
SCHEMA = PRODUCT / "repo" / "catalog" / "migrations.py"  # catalogs hold its text: it stays as it is
# The one module that may spell each of these.
ONE_PLACE = {
    "journal.jsonl": "paths.py",
    "sweep.pkl": "paths.py",
    "catalog.sqlite": "paths.py",
    "os.fsync(": "durable.py",
    "fcntl.flock(": "durable.py",
}


def folders(root: Path) -> Iterator[Path]:
    for folder in (root, *root.rglob("*")):
        if folder.is_dir() and not {"__pycache__", "fixtures"} & set(folder.parts):
            yield folder


def sources(root: Path = PRODUCT) -> list[Path]:
    found = sorted(path for path in root.rglob("*.py") if "fixtures" not in path.parts)
    assert len(found) > 50
    return found


@pytest.mark.parametrize("root", [PRODUCT, TESTS], ids=lambda path: path.name)
def test_a_folder_fits_on_a_screen(root: Path) -> None:
    sizes = {folder: sum(path.is_file() for path in folder.iterdir()) for folder in folders(root)}
    crowded = {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > MAX_FILES_IN_A_FOLDER}
    assert crowded == {}, "group its files into folders by subject"


def test_a_class_name_has_one_meaning() -> None:
    homes = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}, "qualify one of them"


def test_old_metaphors_do_not_come_back() -> None:
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(OLD_NAMES)})(?!\w)")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*sources(), *sources(TESTS)]
        if path.name != Path(__file__).name
        for name in sorted(set(pattern.findall(_without_strings_and_comments(path))))
    ]
    assert found == [], "docs/glossary.md has the words to use"


def _without_strings_and_comments(path: Path) -> str:
    tree = ast.parse(path.read_text())
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names += [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return " ".join(names)


@pytest.mark.parametrize(("text", "home"), ONE_PLACE.items(), ids=lambda value: str(value).strip("("))
def test_each_of_these_is_in_one_module(text: str, home: str) -> None:
    places = [str(path.relative_to(PRODUCT)) for path in sources() if text in path.read_text()]
    assert places in ([home], []), f"use regatta/{home}"


def test_names_of_files_are_in_paths() -> None:
    templates = {path.name for path in (PRODUCT / "web" / "templates").iterdir()}  # files of the program itself
    names = {name for name in vars(paths).values() if isinstance(name, str) and re.fullmatch(r"[\w-]+\.\w+", name)}
    assert {"journal.jsonl", "door.json", "versions.log"} <= names
    found = [
        f"{path.relative_to(PRODUCT)}:{node.lineno}: {node.value}"
        for path in sources()
        if path != PRODUCT / "paths.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names - templates
    ]
    assert found == [], "use regatta/paths.py"


def test_packages_describe_modules_that_exist() -> None:
    wrong = []
    for path in PRODUCT.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert docstring, f"{path} says nothing"
        listed = re.findall(r"^ +((?:[\w./]+(?:, )?)+)  ", docstring, re.MULTILINE)
        names = [name for group in listed for name in group.split(", ") if name.endswith(".py")]
        wrong += [f"{path.parent.relative_to(ROOT)}: {name}" for name in names if not (path.parent / name).exists()]
    assert wrong == []


def test_tests_mirror_the_tree() -> None:
    own = {"helpers", "attacks", "project"}
    strays = [
        str(folder.relative_to(TESTS))
        for folder in folders(TESTS)
        if folder != TESTS and folder.name not in own and not (PRODUCT / folder.relative_to(TESTS)).is_dir()
    ]
    assert strays == []


def test_test_files_are_named_for_their_subject() -> None:
    assert [path.name for path in TESTS.rglob("test_*.py") if "review" in path.name] == []


def test_the_list_of_tests_that_are_not_quick_is_true() -> None:
    defined = {path: set(re.findall(r"def (test_\w+)", path.read_text())) for path in [*sources(), *sources(TESTS)]}
    inherited = {"runTest"}.union(*(names for path, names in defined.items() if path.is_relative_to(PRODUCT)))
    listed = [line.split("::") for line in read_list()]
    gone = ["::".join(name) for name in listed if name[-1] not in defined.get(ROOT / name[0], set()) | inherited]
    assert gone == [], f"rename them in {LIST.name} as well"
    assert [name for name in (*FOLDERS_AND_FILES, *NOT_COLLECTED) if not list(ROOT.glob(f"{name}*"))] == []


def test_each_folder_of_tests_has_quick_tests() -> None:
    rooms = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py") if "fixtures" not in path.parts}
    assert len(rooms) > 10
    assert [room for room in sorted(rooms) if not any(f.startswith(f"tests/{room}/") for f in FOLDERS_AND_FILES)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_reads_easily(document: Path) -> None:
    lines = document.read_text().splitlines()
    assert [line for line in lines if len(line) > MAX_LINE] == []
    long = [sentence for sentence in sentences(document.read_text()) if len(sentence.split()) > MAX_WORDS_IN_A_SENTENCE]
    assert long == []
    text = " ".join(sentences(document.read_text())).lower()
    assert [word for word in OLD_WORDS if re.search(rf"\b{word}\b", text)] == []


def test_the_program_uses_plain_words() -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(OLD_WORDS)})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if path != SCHEMA
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == [], "docs/glossary.md has the words to use"


def sentences(text: str) -> list[str]:
    """The sentences of a document's prose: code blocks, tables and headings are left out."""
    prose = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(?:    |\||#).*$", "\n", prose, flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "CODE", prose)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose)
    return [
        sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))
    ]


def test_sentences_are_found() -> None:
    text = (
        "# Title\n\nOne is here. Another\nis `a. b` there.\n\n- an item; more\n- two\n\n```py\nno. code\n```\n| a. |\n"
    )
    found = ["One is here.", "Another is CODE there.", "- an item;", "more", "- two"]
    assert [sentence for sentence in sentences(text) if sentence] == found
