"""The code of the user's own modules that a run needs, so that a change between two sessions is noticed.

Functions of the user's program are saved with a run. Functions that it imports are not: workers import them again, from
files that may have changed since. So a run records which files those are, and a hash of each definition in them.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import pickletools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
from blake3 import blake3

from regatta.code_identity import is_users_file
from regatta.durable import replacing
from regatta.paths import CODE

# The content of a run's code.json:
#   python     the version that parsed the files
#   modules    {name: {"file": ..., "hash": ..., "names": {definition: hash}}}; null for names if it is not parsed
#   functions  {name: hash} of the sweep's functions
#   task       a hash of all else that makes the sweep
#   changed    what had changed when the run was resumed nevertheless
RunCode: TypeAlias = Mapping[str, Any]
MODULE_LEVEL = "module level"  # statements that define no name
HASH_BYTES = 8
MAX_PARSED_BYTES = 2**22  # of all files, the nearest first: syntax trees take seconds, and of tables also gigabytes
PYTHON = "{}.{}".format(*sys.version_info[:2])


@dataclass(frozen=True)
class CodeChange:
    """A module that is not what it was when the run recorded it."""

    module: str
    file: str
    names: tuple[str, ...] = ()  # of definitions; empty if the whole file is another one
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"{self.module} ({self.file}) is gone"
        return f"{self.module} ({self.file}): {', '.join(self.names) or 'other content'}"


def read_code(folder: Path) -> RunCode | None:
    """The code of a run; None if an earlier version began it."""
    try:
        code = json.loads((folder / CODE).read_bytes())
    except (OSError, ValueError):
        return None
    return code if isinstance(code, dict) else None


def write_code(folder: Path, code: RunCode) -> None:
    with replacing(folder / CODE, durable=False, durable_name=False) as path:  # as the sweep beside it
        path.write_text(json.dumps(code))


def code_of(*pickles: bytes) -> RunCode:
    """The user's modules that pickled functions need, with the modules that those import, also inside functions."""
    words = {word for pickled in pickles for word in _words(pickled)}
    # Functions of the user's program are pickled by value, and their code names the file that they were read from.
    programs = [word for word in words if word.endswith(".py") and is_users_file(word) and Path(word).is_file()]
    imported = {name for path in programs for name in _imports(_parse(Path(path).read_bytes()), None)}
    return _describe(name for name in {*sys.modules, *imported} if _is_named(name, words))


def code_again(recorded: RunCode) -> RunCode:
    """The code of a run as it is now."""
    return _describe(recorded["modules"], recorded["modules"])


def code_changes(recorded: RunCode | None) -> list[CodeChange]:
    """What has changed since the run recorded its code; nothing is known of runs of earlier versions."""
    found = []
    for name, then in (recorded or {}).get("modules", {}).items():
        file = _file(name, then)
        if file is None:
            found.append(CodeChange(name, then["file"], missing=True))
        elif _hash(content := Path(file).read_bytes()) != then["hash"]:
            before, now = then["names"], _definitions(_parse(content))
            if before is None or now is None or (recorded or {}).get("python") != PYTHON:
                found.append(CodeChange(name, file))  # not parsed, or by a version that parses differently
            elif names := [part for part in sorted({*before, *now}) if before.get(part) != now.get(part)]:
                found.append(CodeChange(name, file, tuple(names)))
    return found


def _describe(names: Iterable[str], recorded: Mapping[str, Any] | None = None) -> RunCode:
    """The modules of these names that are the user's, their packages, and all that they import."""
    modules: dict[str, Any] = {}
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    waiting, left = deque(sorted(names)), MAX_PARSED_BYTES
    while waiting:
        name = waiting.popleft()
        file = None if name in modules or name in by_value else _file(name, (recorded or {}).get(name))
        if file is None or name.partition(".")[0] == "regatta" or not is_users_file(file):
            continue
        content = Path(file).read_bytes()
        tree = _parse(content, left)
        left -= len(content) if tree is not None else 0
        modules[name] = {"file": file, "hash": _hash(content), "names": _definitions(tree)}
        package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
        waiting += [*_imports(tree, package), *filter(None, [name.rpartition(".")[0]])]
    return {"python": PYTHON, "modules": dict(sorted(modules.items()))}


def _words(pickled: bytes) -> Iterator[str]:
    """Every text in a pickle, among them the names of modules, and the names that code uses."""
    for _, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str):
            yield argument


def _is_named(module: str, words: set[str]) -> bool:
    """Whether a module is among the words: `pkg.part`, or `pkg` and `part` for `from pkg import part`."""
    parent, _, last = module.rpartition(".")
    return module in words or (bool(parent) and parent in words and last in words)


def _file(name: str, recorded: Mapping[str, Any] | None = None) -> str | None:
    """The file of a module, which is not imported for this; None if it has none.

    The module of a recorded run is looked for where its workers will find it. The file of that time may be another one,
    if the project was copied.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and recorded is None:
        file = getattr(loaded, "__file__", None)
        return file if file is not None and Path(file).is_file() else None
    spec = _spec(name)
    if spec is not None and spec.has_location:
        return spec.origin
    then = None if recorded is None else str(recorded["file"])
    return then if then is not None and Path(then).is_file() else None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    parent, _, last = name.rpartition(".")
    place: list[str] | None = None
    if parent:
        package = _spec(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        place = list(package.submodule_search_locations)
    try:
        return importlib.machinery.PathFinder.find_spec(name, place)
    except KeyError:  # a folder without __init__.py: Python looks for its package among the imported ones
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [os.path.join(folder, last) for folder in place or ()]
        return spec
    except (ImportError, ValueError):
        return None


def _parse(content: bytes, max_bytes: int = MAX_PARSED_BYTES) -> ast.Module | None:
    """The syntax tree of a file; None if it is too large, or not Python, such as a compiled module."""
    try:
        return ast.parse(content) if len(content) <= max_bytes else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: it is nested too deeply
        return None


def _imports(tree: ast.Module | None, package: str | None) -> Iterator[str]:
    """The names of all modules that a file imports anywhere; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (package or "").split(".")
            parts = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def _definitions(tree: ast.Module | None) -> dict[str, str] | None:
    """A hash for each function, method, class and module-level name, without comments and docstrings."""
    if tree is None:
        return None
    parts: dict[str, list[str]] = {}
    for name, node in _statements(tree.body, ""):
        parts.setdefault(name, []).append(_dump(node))
    return {name: _hash("\n".join(texts).encode()) for name, texts in parts.items()}


def _statements(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, _without_docstrings(node)
        elif isinstance(node, ast.ClassDef):
            yield from _statements(node.body, f"{prefix}{node.name}.")
            yield prefix + node.name, ast.Tuple([*node.bases, *node.keywords, *node.decorator_list])  # type: ignore[list-item]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield (prefix + names[0] if names else prefix.rstrip(".") or MODULE_LEVEL), node
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield prefix.rstrip(".") or MODULE_LEVEL, node


def _dump(tree: ast.AST) -> str:
    """All that a tree holds but its places in the file. Not recursive: `a + b + ...` is as deep as it is long."""
    parts: list[str] = []
    waiting: list[object] = [tree]
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.AST):
            parts.append(type(at).__name__)
            waiting += [value for _, value in ast.iter_fields(at)]
        elif isinstance(at, list):
            parts.append(f"list of {len(at)}")
            waiting += at
        else:
            parts.append(repr(at))
    return " ".join(parts)


def _without_docstrings(function: ast.AST) -> ast.AST:
    for node in ast.walk(function):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
            node.body = kept  # type: ignore[attr-defined]
    return function


def _hash(content: bytes) -> str:
    return blake3(content).hexdigest(length=HASH_BYTES)
