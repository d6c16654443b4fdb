"""Which module may import which: section 3 of the design, checked in the source of every module.

Modules are read, not imported. An import counts as *at the top* unless it is inside a function; what only a type
checker sees does not count at all.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

FRAMEWORKS = ("torch", "keras", "tensorflow", "jax")
MAY_USE_FRAMEWORKS = (
    "regatta.frameworks", "regatta.pack", "regatta.engine.workers",
    "regatta.network.torch", "regatta.network.from_keras", "regatta.store.torch_tensors",
)  # fmt: skip
BELOW_ENGINE = (
    "regatta.plan", "regatta.search", "regatta.dql", "regatta.store", "regatta.journal", "regatta.network",
    "regatta.data", "regatta.frameworks", "regatta.pack", "regatta.repo", "regatta.sinks",
)  # fmt: skip
FRONT = ("regatta.cli", "regatta.hub", "regatta.web")
FRONT_MAY_USE = (
    *FRONT, "regatta.sweep", "regatta.run", "regatta.repo", "regatta.errors", "regatta.format", "regatta.paths",
    "regatta.journal", "regatta.dql", "regatta.plan.papers.suites",
)  # fmt: skip
MAY_USE_PAPERS = ("regatta.plan.papers", "regatta.cli.commands.runs.simulate")  # baselines, not used at run time
KNOW_THE_CLI = ("regatta.cli", "regatta.__main__", "regatta.sweep")  # a sweep opens the display, when it is launched
IMPURE = (
    "asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "shutil", "signal", "socket",
    "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
)  # fmt: skip
PROGRAMS = ("regatta.cli.demo_sweep",)  # written as users write theirs, executed by `demo`, never imported


@dataclass(frozen=True)
class Import:
    """`name` is what is imported: `from a import b` is `a.b`, for b may be a module."""

    name: str
    top: bool
    line: int


def imports(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    return _imports(ast.parse(source), module if is_package else module.rpartition(".")[0], top=True)


def _imports(node: ast.AST, package: str, top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, top, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, package)
            yield from (Import(f"{base}.{alias.name}", top, child.lineno) for alias in child.names)
        elif isinstance(child, ast.If) and _only_for_types(child.test):
            for other in child.orelse:
                yield from _imports(ast.Module([other], []), package, top)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, package, top and not inside)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parent = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parent, node.module] if node.module else parent)


def _only_for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def under(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def broken_rules(modules: Mapping[str, list[Import]]) -> list[str]:
    """Every import that breaks a rule, as one would say it."""
    heavy = _heavy(modules)
    found = []
    for module, statements in sorted(modules.items()):
        if module in PROGRAMS:
            continue
        for statement in statements:
            found += [f"{module}:{statement.line}: {text}" for text in _wrong(module, statement)]
        if module in heavy and not under(module, MAY_USE_FRAMEWORKS):
            found.append(f"{module}: importing it imports a framework, through {heavy[module]}")
    return found


def _wrong(module: str, statement: Import) -> Iterator[str]:
    name = statement.name
    if under(name, FRAMEWORKS) and not under(module, MAY_USE_FRAMEWORKS):
        yield f"only {', '.join(MAY_USE_FRAMEWORKS)} may import {name}"
    if under(module, BELOW_ENGINE) and under(name, ("regatta.engine", "regatta.cli")):
        yield f"{name} is above it"
    if under(module, ("regatta.store",)) and under(name, ("regatta.frameworks",)):
        yield f"{name} is above it"
    if under(module, ("regatta.frameworks",)) and under(name, ("regatta.pack",)):
        yield f"{name} is above it"
    if under(module, ("regatta.journal",)) and under(name, ("regatta.repo",)):
        yield f"{name} is above it"
    if under(name, ("regatta.plan.papers",)) and not under(module, MAY_USE_PAPERS):
        yield f"only {', '.join(MAY_USE_PAPERS)} may import {name}"
    if under(module, ("regatta.plan",)) and under(name, IMPURE):
        yield f"plan is pure and may not import {name}"
    if under(module, FRONT) and under(name, ("regatta",)) and not _allowed_in_front(name):
        yield f"cli, hub and web go through sweep, run, repo, dql and journal, not {name}"
    if under(name, ("regatta.cli",)) and not under(module, KNOW_THE_CLI):
        yield f"only {', '.join(KNOW_THE_CLI)} may know the command line"
    if under(name, PROGRAMS):
        yield f"{name} is a program, not a part"


def _allowed_in_front(name: str) -> bool:
    return under(name, FRONT_MAY_USE) or name in ("regatta", "regatta.__version__")


def _heavy(modules: Mapping[str, list[Import]]) -> dict[str, str]:
    """Modules that import a framework when they are imported, themselves or through others, and through what."""
    heavy = {
        module: next(s.name for s in statements if s.top and under(s.name, FRAMEWORKS))
        for module, statements in modules.items()
        if module not in PROGRAMS and any(s.top and under(s.name, FRAMEWORKS) for s in statements)
    }
    while True:
        more = {
            module: name
            for module, statements in modules.items()
            if module not in heavy
            for name in [next((h for s in statements if s.top for h in heavy if _loads(s.name, h)), None)]
            if name is not None
        }
        if not more:
            return heavy
        heavy |= more


def _loads(name: str, heavy: str) -> bool:
    """Whether importing `name` executes the module `heavy`: it is it, something in it, or something below it."""
    return name == heavy or name.startswith(heavy + ".")


def read_package(root: Path) -> dict[str, list[Import]]:
    found = {}
    for path in sorted((root / "regatta").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found[module] = list(imports(path.read_text(), module, is_package))
    return found


def test_the_package_keeps_the_rules(root: Path) -> None:
    modules = read_package(root)
    assert len(modules) > 30
    assert broken_rules(modules) == []


def test_nothing_below_the_command_line_opens_files_in_plan(root: Path) -> None:
    """Purity is more than imports: no `open`, no `input`."""
    calls = [
        f"{path.name}:{node.lineno}"
        for path in (root / "regatta" / "plan").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "input")
    ]
    assert calls == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("regatta.plan.x", "from regatta.engine import replay", "regatta.engine.replay is above it"),
        ("regatta.search.x", "def f():\n    import regatta.cli.ui", "regatta.cli.ui is above it"),
        ("regatta.store.x", "from regatta.engine.replay import replay", "is above it"),
        ("regatta.store.x", "from regatta.frameworks import arrays", "is above it"),
        ("regatta.frameworks.torch.x", "def f():\n    from regatta.pack import capturable", "is above it"),
        ("regatta.repo.x", "def f():\n    from regatta.engine.archiver import Archiver", "is above it"),
        ("regatta.sinks.x", "import regatta.engine.messages", "is above it"),
        ("regatta.journal.x", "from regatta.repo import Repo", "regatta.repo.Repo is above it"),
        ("regatta.plan.x", "from ..engine import replay", "regatta.engine.replay is above it"),
        ("regatta.data.x", "def f():\n    import torch", "may import torch"),
        ("regatta.engine.controller.runner", "from torch import nn", "may import torch.nn"),
        ("regatta.engine.x", "def f():\n    from regatta.plan.papers import suites", "may import regatta.plan.papers"),
        ("regatta.sweep", "from regatta.plan.papers.regimes import grid", "may import regatta.plan.papers"),
        ("regatta.plan.strategy.x", "import regatta.plan.papers", "may import regatta.plan.papers"),
        ("regatta.cli.commands.runs.x", "import regatta.plan.papers.suites", "may import regatta.plan.papers"),
        ("regatta.plan.x", "import time", "plan is pure"),
        ("regatta.plan.x", "def f():\n    from os import path", "plan is pure"),
        (
            "regatta.cli.x",
            "from regatta.engine.controller.runner import Runner",
            "go through sweep, run",
        ),
        ("regatta.web.x", "import regatta.store", "go through sweep, run"),
        ("regatta.engine.x", "def f():\n    from regatta.cli import ui", "may know the command line"),
        ("regatta.cli.x", "from regatta.cli.demo_sweep import sweep", "is a program"),
    ],
)
def test_a_broken_rule_is_found(module: str, source: str, complaint: str) -> None:
    found = broken_rules({module: list(imports(source, module))})
    assert any(complaint in text for text in found), found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("regatta.frameworks.torch.framework", "import torch"),
        ("regatta.engine.workers.x", "def f():\n    import torch"),
        ("regatta.plan.x", "import math\nfrom scipy.optimize import milp\nfrom regatta.errors import UsageError"),
        ("regatta.plan.x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from regatta.engine import x"),
        ("regatta.cli.commands.runs.simulate", "from regatta.plan.papers.suites import run_suite"),
        ("regatta.cli.x", "from regatta import __version__\nfrom regatta.sweep import Run\nimport rich"),
        ("regatta.sweep", "def f():\n    from regatta.cli.output.live_display import open_display"),
        ("regatta.data.x", "import torchlike\nimport regatta.engines"),
    ],
)
def test_allowed_imports_are_accepted(module: str, source: str) -> None:
    assert broken_rules({module: list(imports(source, module))}) == []


def test_a_framework_is_found_through_other_modules() -> None:
    sources = {
        "regatta.frameworks.torch": "import torch",
        "regatta.frameworks": "from regatta.frameworks import torch",
        "regatta.sweep": "from regatta.frameworks import NAMES",
        "regatta.lazy": "def f():\n    from regatta.frameworks import torch",
    }
    modules = {name: list(imports(text, name, name == "regatta.frameworks")) for name, text in sources.items()}
    found = broken_rules(modules)
    assert len(found) == 1
    assert found[0].startswith("regatta.sweep: importing it imports a framework")


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import regatta.cli.main as main\n"
        "try:\n    main.main(['--help'])\nexcept SystemExit as ended:\n    assert ended.code == 0"
    )
    loaded = loaded_by(code)
    assert "regatta.cli.commands.runs.show" in loaded  # the command line was really there
    assert loaded.isdisjoint({*FRAMEWORKS, "numpy", "scipy", "sklearn", "rich", "regatta.sweep"})


def test_importing_regatta_or_a_sweep_imports_no_framework() -> None:
    assert loaded_by("import regatta").isdisjoint({*FRAMEWORKS, "numpy"})
    assert loaded_by("import regatta.sweep").isdisjoint(FRAMEWORKS)
    assert loaded_by("import regatta.network").isdisjoint({*FRAMEWORKS, "numpy", "onnx"})
    assert "torch" in loaded_by("import torch")  # the check can fail
