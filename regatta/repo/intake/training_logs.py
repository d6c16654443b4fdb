"""Training logs and settings in files: metrics by step, and hyperparameters by name."""

from __future__ import annotations

import csv
import io
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from regatta.errors import DataError, MissingExtraError
from regatta.repo.intake.limits import (
    MAX_LEVELS,
    MAX_LOG_BYTES,
    MAX_NAMES,
    MAX_NUMBER_CHARACTERS,
    MAX_POINTS,
    MAX_SETTINGS_BYTES,
    MAX_SETTINGS_PARSED,
    check_dotted_names,
    check_json,
    check_limit,
    check_numbers,
)
from regatta.repo.intake.metrics import STEPS

MAX_DEPTH, MAX_LIST = 32, 10_000  # of settings; longer lists become text
LOGS, CONFIGS = (".csv", ".tsv", ".jsonl", ".ndjson"), (".json", ".yaml", ".yml", ".toml")
COUNTERS = (*STEPS, "global_step", "iter", "batch", "_step")
LOG_WORDS = ("log", "metric", "history", "progress", "result", "train", "loss", "curve")
_MADE_BY_CHECKOUT = {"format", "id", "name", "number", "hyperparameters", "metadata"}

Points = dict[str, dict[int, float]]


def text_of(path: Path, max_bytes: int = MAX_LOG_BYTES) -> str:
    """The text of a file, if it is not too long."""
    check_limit("bytes of text", path.stat().st_size, max_bytes, path)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"The file is not UTF-8 text: {error}.", place=str(path)) from error


def looks_like_log(path: Path, names: Iterable[str]) -> bool:
    """Whether rows are a training log and not data: by a column with steps, or by the name of the file."""
    return any(name.lower() in COUNTERS for name in names) or any(word in path.stem.lower() for word in LOG_WORDS)


def log_rows(path: Path, suffix: str) -> list[Mapping[str, Any]]:
    """The rows of a table or of JSON lines."""
    text = text_of(path)
    if suffix in (".csv", ".tsv"):
        return _table(text, suffix, path)
    check_json(text, path)
    rows = [_json(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError("Each line of a log holds values by name.", place=str(path))
    return rows


def log_points(rows: Sequence[Mapping[str, Any]], path: Path) -> Points:
    """{metric: {step: value}}, with steps from a counter column or the number of the row. Other values are left out."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(name for name in row if isinstance(name, str)))
        check_limit("names in a log", len(names), MAX_NAMES, path)
    counter = next((name for wanted in COUNTERS for name in names if name.lower() == wanted), None)
    metrics = {name for name in names if name.lower() not in COUNTERS}
    found: Points = {}
    points = 0
    for number, row in enumerate(rows, 1):
        step = number if counter is None else _whole(row.get(counter))
        if step is None:
            continue
        for name, given in row.items():
            if name in metrics and (value := _number(given)) is not None:
                found.setdefault(_text(name, path), {})[step] = value
                points += 1
        check_limit("values in a log", points, MAX_POINTS, path)
    if not found:
        raise DataError("There are no numbers in the log.", place=str(path))
    return found


def points_of_json(content: object, path: Path) -> Points | None:
    """Metrics in a JSON file: a list of rows, or lists of numbers by name; None where it is neither."""
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        return log_points(content, path) if looks_like_log(path, content[0]) else None
    if isinstance(content, dict) and content and all(_is_series(value) for value in content.values()):
        check_limit("names in a log", len(content), MAX_NAMES, path)
        return {
            _text(name, path): {step: float(v) for step, v in enumerate(values, 1)} for name, values in content.items()
        }
    return None


def settings(path: Path, suffix: str) -> object:
    """The content of a JSON, TOML or YAML file."""
    if suffix == ".json":
        text = text_of(path)
        check_json(text, path)
        return _json(text, str(path))
    text = text_of(path, MAX_SETTINGS_BYTES)
    if suffix == ".toml":
        check_numbers(text, path)
        check_dotted_names(text, path)
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # wrong TOML, or a number of thousands of digits
            raise DataError(f"This is not TOML: {error}.", place=str(path)) from error
    return _yaml(text, path)


def is_checkout(content: object) -> TypeGuard[dict[str, Any]]:
    """Whether this is the version.json of a checkout."""
    if not isinstance(content, dict) or not content.keys() >= _MADE_BY_CHECKOUT:
        return False
    return isinstance(content["hyperparameters"], dict)


def hyperparameters(content: object, path: Path) -> dict[str, Any]:
    """Settings by name; nested names are joined with dots, lists stay lists."""
    if not isinstance(content, Mapping):
        raise DataError(f"Settings are values by name, not a {type(content).__name__}.", place=str(path))
    values = content["hyperparameters"] if is_checkout(content) else content
    found: dict[str, Any] = {}
    for name, value in _flat(values, "", 0, path):
        found[_text(name, path)] = value
        check_limit("settings", len(found), MAX_NAMES, path)
    return found


def _flat(content: Mapping[Any, Any], above: str, depth: int, path: Path) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise DataError(f"Settings are nested deeper than {MAX_DEPTH}.", place=str(path))
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.", depth + 1, path)
        else:
            yield f"{above}{key!s:.1000}", _plain(value, path)


def _plain(value: Any, path: Path) -> Any:
    """A JSON value; dates, NaN and infinities become text."""
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list) and len(value) <= MAX_LIST:
        return [_plain(item, path) if not isinstance(item, list | dict) else _shortened(item, path) for item in value]
    return _shortened(value, path)


def _shortened(value: object, path: Path) -> str:
    try:
        return _text(str(value)[:1000], path)
    except RecursionError as error:
        raise DataError("Lists are nested too deeply.", place=str(path)) from error


def _text(text: str, path: Path) -> str:
    """The text, if it can be written as UTF-8: JSON and YAML can spell half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{text!a:.100} is not text: {text[error.start]!a} is one half of a character.", place=str(path)
        ) from error
    return text


def _table(text: str, suffix: str, path: Path) -> list[Mapping[str, Any]]:
    """The rows of a table, each with the cells that it has: missing cells are not made up."""
    head = text.partition("\n")[0]
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=head.count)
    check_limit("columns", head.count(delimiter) + 1, MAX_NAMES, path)
    check_limit("cells", text.count(delimiter) + text.count("\n"), MAX_POINTS, path)
    try:
        rows = (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if row)
        names = [name.strip() for name in next(rows, [])]
        return [{name: cell for name, cell in zip(names, row, strict=False) if name} for row in rows]
    except csv.Error as error:
        raise DataError(f"The table cannot be read: {error}.", place=str(path)) from error


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"This is not JSON: {error}.", place=place) from error


def _yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("pyyaml", "yaml", "Reading YAML files") from error
    try:
        _check_yaml(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), path)
        return yaml.load(text, Loader=_yaml_loader(path))
    except (yaml.YAMLError, RecursionError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        # Beside its own errors, PyYAML lets those of wrong tags through: `!!int ""` is an IndexError.
        said = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"This is not YAML: {said[0]:.200}.", place=str(path)) from error


def _check_yaml(events: Iterable[Any], path: Path) -> None:
    """Count the values of a YAML text before they are made. An alias counts with all that it stands for."""
    import yaml

    total = 0
    opened: list[tuple[str, int]] = []
    sizes: dict[str, int | None] = {}  # by anchor; None while its value is not complete
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = total - before
            continue
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1)  # PyYAML refuses an unknown anchor
            if size is None:
                raise DataError(f"The alias {event.anchor!r:.100} stands for what it is a part of.", place=str(path))
            total += size
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            check_limit("levels of YAML values", len(opened), MAX_LEVELS, path)  # the reader in C calls itself
            sizes[event.anchor] = None
            total += 1
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            total += 1
        check_limit("YAML values, each alias counted with its content", total, MAX_SETTINGS_PARSED, path)


def _yaml_loader(path: Path) -> Any:
    """PyYAML's safe loader, which is written in C where it can be; numbers have a limited length."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        pass

    def number(loader: Any, node: Any) -> Any:
        check_limit("characters in a number", len(str(node.value)), MAX_NUMBER_CHARACTERS, path)
        return base.yaml_constructors[node.tag](loader, node)

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", number)
    return Loader


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > MAX_NUMBER_CHARACTERS:
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2**53 else None


def _is_series(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) in (int, float) and _number(item) is not None for item in value)
    )
