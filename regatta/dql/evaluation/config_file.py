"""A config file as settings: TOML, YAML, JSON, or a Python file that defines a `sweep`.

It may hold everything that settings.py names, rates of layers under `net`, and data sets under `data`. Nothing in it
is executed, unless it is a Python file. Only a query that is typed may name one, never a saved query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from regatta.configuration import Scalar
from regatta.dql.evaluation.settings import GROUP_SETTINGS, SETTINGS, nearest_settings
from regatta.dql.selectors import SelectorError, SelectorPattern, parse_selector
from regatta.errors import DataError, NotFoundError, UsageError, nearest
from regatta.format import brief, type_name
from regatta.repo.intake.training_logs import settings, text_of

if TYPE_CHECKING:
    from regatta.sweep import Sweep

SUFFIXES = (".toml", ".yaml", ".yml", ".json", ".py")  # a file without one is TOML
TABLES = ("net", "data")
LoadSweep = Callable[[str], "Sweep"]


@dataclass(frozen=True)
class DataPaths:
    """A data set that a config names: one file that is split, or files that are partitions already."""

    single: str | None = None
    train: tuple[str, ...] = ()
    eval: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerRate:
    """The rate of the layers that a selector names."""

    selector: SelectorPattern
    rate: str
    value: float


@dataclass(frozen=True)
class Config:
    """The settings of a file. Paths of data sets are below its folder. `shown` is its name as it was given."""

    path: Path | None = None
    shown: str | None = None
    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    input_data: tuple[str, ...] = ()  # all that are listed
    rates: tuple[LayerRate, ...] = ()
    data: Mapping[str, DataPaths] = field(default_factory=dict)
    others: Mapping[str, Scalar] = field(default_factory=dict)  # values that the functions of a sweep may use
    sweep: Sweep | None = None

    @property
    def folder(self) -> Path:
        return Path.cwd() if self.path is None else self.path.parent

    def place_of(self, name: str) -> str | None:
        """The file and the line of a setting, or of a selector of layers; the file alone if it has neither."""
        if self.text and name in [*self.values, *(rate.selector.text for rate in self.rates)]:
            return f"{self.shown}:{_line_of(self.text, name)}"
        return self.shown


def read_config(name: str, *, saved: str | None = None, load_sweep: LoadSweep | None = None) -> Config:
    """The config in a file. `saved` is the saved query that names it, if it is not the user; FILE:name for Python."""
    path = Path(name)
    file = Path(name.rpartition(":")[0]) if not path.exists() and name.rpartition(":")[0].endswith(".py") else path
    if file.suffix not in ("", *SUFFIXES):
        raise UsageError(
            f"A config file ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}; this is {name!r:.200}.",
            hint="regatta query --template > config.toml",
        )
    if not file.is_file():
        near = sorted(each.name for each in file.parent.iterdir()) if file.parent.is_dir() else []
        raise NotFoundError(
            "There is no such config file." if not file.is_dir() else "This is a folder, not a config file.",
            place=str(file), candidates=nearest(file.name, [each for each in near if each.endswith(SUFFIXES)]),
            hint="A commented one: regatta query --template > config.toml",
        )  # fmt: skip
    if file.suffix == ".py":
        return _of_python(name, file, saved, load_sweep)
    content = _content(file)
    return _Reader(file, text_of(file), content).config()


def _of_python(name: str, file: Path, saved: str | None, load_sweep: LoadSweep | None) -> Config:
    if saved is not None:
        raise UsageError(
            f"The saved query {saved!r:.100} names a Python file, which is not executed.", place=str(file),
            hint="Write the evaluate itself, or use a TOML, YAML or JSON file.",
        )  # fmt: skip
    if load_sweep is None:
        raise UsageError(
            "A Python config is only taken on the command line.", place=str(file),
            hint="regatta query '...', or use a TOML, YAML or JSON file.",
        )  # fmt: skip
    return Config(file.absolute(), str(file), sweep=load_sweep(name))


def _content(path: Path) -> object:
    """What a file holds; an error names the line."""
    try:
        return settings(path, path.suffix or ".toml")
    except DataError as error:
        line = re.search(r"line (\d+)", error.message)
        error.place = str(path) if line is None else f"{path}:{line[1]}"
        written = re.fullmatch(r"\s*(.+?)\s*=\s*([^\W\d]\w*)\s*", _line(path, 0 if line is None else int(line[1])))
        if written is not None and error.hint is None:
            error.hint = f'A text stands in quotes: {written[1]} = "{written[2]}"'
        raise
    except OSError as error:
        raise UsageError(f"The config cannot be read: {error.strerror}.", place=str(path)) from error


def _line(path: Path, number: int) -> str:
    """A line of a file, counted from 1; empty if there is none."""
    lines = ["", *path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return lines[number] if number < len(lines) else ""


@dataclass(frozen=True)
class _Reader:
    """Checks what a file holds; errors name the line of the setting."""

    path: Path
    text: str
    content: object

    def config(self) -> Config:
        if not isinstance(self.content, Mapping):
            raise UsageError(f"A config is a table of settings, not {type_name(self.content)}.", place=str(self.path))
        values: dict[str, Any] = {}
        listed: tuple[str, ...] = ()
        for name, value in self.content.items():
            if name == "input_data" and isinstance(value, list) and value:
                listed = tuple(self._text_of(name, each) for each in value)
            elif name in SETTINGS:
                problem = SETTINGS[name].problem(value)
                if problem is not None:
                    self._fail(f"{name} {problem}.", name, SETTINGS[name].nearest(value))
                values[name] = value
            elif name not in TABLES:
                self._fail(f"There is no setting {str(name)!r:.60}.", name, nearest_settings(str(name), TABLES))
        if "input_data" in values:
            listed = (values.pop("input_data"),)
        rates, data = tuple(self._rates()), self._data()
        return Config(self.path.absolute(), str(self.path), self.text, values, listed, rates, data)

    def _table(self, name: str) -> Mapping[Any, Any]:
        assert isinstance(self.content, Mapping)
        found = self.content.get(name, {})
        if not isinstance(found, Mapping):
            self._fail(f"{name} is a table, not {brief(found)}.", name)
        return found

    def _rates(self) -> list[LayerRate]:
        found = []
        for text, rates in self._table("net").items():
            if not isinstance(rates, Mapping):
                self._fail(f"The layers {str(text)!r:.60} have a table of rates, not {brief(rates)}.", text)
            try:
                selector = parse_selector(str(text))
            except SelectorError as error:
                self._fail(str(error), text)
            for rate, value in rates.items():
                if rate not in GROUP_SETTINGS:
                    self._fail(f"Layers have no setting {str(rate)!r:.60}.", rate, nearest(str(rate), GROUP_SETTINGS))
                problem = GROUP_SETTINGS[rate].problem(value)
                if problem is not None:
                    self._fail(f"{rate} {problem}.", rate)
                found.append(LayerRate(selector, rate, value))
        return found

    def _data(self) -> dict[str, DataPaths]:
        found = {}
        for name, given in self._table("data").items():
            if isinstance(given, str) and given:
                found[str(name)] = DataPaths(single=given)
            elif isinstance(given, Mapping):
                for key in given:
                    if key not in ("train", "eval"):
                        self._fail(f"A data set has no {str(key)!r:.60}.", key, nearest(str(key), ("train", "eval")))
                paths = {kind: self._paths(name, kind, given.get(kind, [])) for kind in ("train", "eval")}
                for kind, listed in paths.items():
                    if not listed:
                        self._fail(f"The data set {str(name)!r:.60} has no {kind} files.", name)
                found[str(name)] = DataPaths(None, paths["train"], paths["eval"])
            else:
                self._fail(f"The data set {str(name)!r:.60} is a path, or has train and eval.", name)
        return found

    def _paths(self, name: object, kind: str, given: object) -> tuple[str, ...]:
        paths = [given] if isinstance(given, str) else given
        if not isinstance(paths, list):
            self._fail(f"{kind} of the data set {str(name)!r:.60} is a list of paths, not {brief(given)}.", kind)
        return tuple(self._text_of(kind, path) for path in paths)

    def _text_of(self, name: object, value: object) -> str:
        if not isinstance(value, str) or not value:
            self._fail(f"{name} holds {brief(value)}, which is not a text.", name)
        return value

    def _fail(self, message: str, name: object, candidates: tuple[str, ...] = ()) -> NoReturn:
        raise UsageError(message, place=f"{self.path}:{_line_of(self.text, name)}", candidates=candidates)


def _line_of(text: str, name: object) -> int:
    """The first line that begins with a name, or has it anywhere."""
    word = re.escape(str(name))
    for pattern in (rf"^\[[^\]]*\.[\"']?{word}[\"']?\]", rf"^[\s\[{{\"'-]*{word}\b", word):
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                return number
    return 1
