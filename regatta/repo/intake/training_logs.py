"""Training logs and settings in files: metrics by step, and hyperparameters by name."""

from __future__ import annotations

import csv
import io
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regatta.errors import DataError, MissingExtraError
from regatta.repo.intake.metrics import STEPS

MAX_BYTES = 2**26
MAX_VALUES, MAX_DEPTH = 10_000, 32  # of a configuration
LOGS, CONFIGS = (".csv", ".tsv", ".jsonl", ".ndjson"), (".json", ".yaml", ".yml", ".toml")
COUNTERS = (*STEPS, "global_step", "iter", "batch", "_step")
LOG_WORDS = ("log", "metric", "history", "progress", "result", "train", "loss", "curve")
_MADE_BY_CHECKOUT = {"format", "id", "name", "number", "hyperparameters", "metadata"}

Points = dict[str, dict[int, float]]


def text_of(path: Path) -> str:
    """The text of a file, if it is not too long for a log or settings."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DataError(f"The file has {size} bytes; {MAX_BYTES} is the limit for logs and settings.", place=str(path))
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
    rows = [_json(line, f"{path}:{number}") for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError("Each line of a log holds values by name.", place=str(path))
    return rows


def log_points(rows: Sequence[Mapping[str, Any]], path: Path) -> Points:
    """{metric: {step: value}}, with steps from a counter column or the number of the row. Other values are left out."""
    names = list(dict.fromkeys(name for row in rows for name in row if isinstance(name, str)))
    counter = next((name for wanted in COUNTERS for name in names if name.lower() == wanted), None)
    found: Points = {}
    for number, row in enumerate(rows, 1):
        step = number if counter is None else _whole(row.get(counter))
        for name in names:
            if step is not None and name.lower() not in COUNTERS and (value := _number(row.get(name))) is not None:
                found.setdefault(name, {})[step] = value
    if not found:
        raise DataError("There are no numbers in the log.", place=str(path))
    return found


def points_of_json(content: object, path: Path) -> Points | None:
    """Metrics in a JSON file: a list of rows, or lists of numbers by name; None where it is neither."""
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        return log_points(content, path) if looks_like_log(path, content[0]) else None
    if isinstance(content, dict) and content and all(_is_series(value) for value in content.values()):
        return {name: {step: float(v) for step, v in enumerate(values, 1)} for name, values in content.items()}
    return None


def settings(path: Path, suffix: str) -> object:
    text = text_of(path)
    if suffix == ".json":
        return _json(text, str(path))
    if suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise DataError(f"This is not TOML: {error}.", place=str(path)) from error
    return _yaml(text, path)


def hyperparameters(content: object, path: Path) -> dict[str, Any]:
    """Settings by name; nested names are joined with dots, lists stay lists."""
    if not isinstance(content, Mapping):
        raise DataError(f"Settings are values by name, not a {type(content).__name__}.", place=str(path))
    if content.keys() >= _MADE_BY_CHECKOUT and isinstance(content["hyperparameters"], dict):
        content = content["hyperparameters"]  # the version.json of a checkout
    found: dict[str, Any] = {}
    for name, value in _flat(content, "", 0, path):
        found[name] = value
        if len(found) > MAX_VALUES:
            raise DataError(f"There are more than {MAX_VALUES} settings.", place=str(path))
    return found


def _flat(content: Mapping[Any, Any], above: str, depth: int, path: Path) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise DataError(f"Settings are nested deeper than {MAX_DEPTH}.", place=str(path))
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.", depth + 1, path)
        else:
            yield f"{above}{key}", _plain(value)


def _plain(value: Any) -> Any:
    """A JSON value; dates, NaN and infinities become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and len(value) <= MAX_VALUES:
        return [_plain(item) if not isinstance(item, list | dict) else str(item)[:1000] for item in value]
    return str(value)[:1000]


def _table(text: str, suffix: str, path: Path) -> list[Mapping[str, Any]]:
    head = text.partition("\n")[0]
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=head.count)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restkey="", strict=True))
    except csv.Error as error:
        raise DataError(f"The table cannot be read: {error}.", place=str(path)) from error
    return [{name.strip(): value for name, value in row.items() if name} for row in rows]


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
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(f"This is not YAML: {str(error).splitlines()[0]}.", place=str(path)) from error


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2**53 else None


def _is_series(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) in (int, float) for item in value)
