"""Shared by all pages: templates, assets, and data that is safe inside a script element."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from regatta.format import json_value


def fill(template: str, title: str, styles: Sequence[str], scripts: Sequence[str], data: Any) -> str:
    """A page: its template with styles, scripts and data filled in."""
    parts = {
        "title": html.escape(title),
        "style": "\n".join(asset(name) for name in styles),
        "script": "\n".join(asset(name) for name in scripts),
        "data": embed(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset(template))


def embed(data: Any) -> str:
    """JSON for a script element: no `<` that could end it or open a comment; NaN becomes null."""
    text = json.dumps(json_value(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Python texts may hold half of a surrogate pair, which UTF-8 cannot encode.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def asset(name: str) -> str:
    kind = name.rpartition(".")[2]
    folder = "templates" if kind == "html" else f"static/{kind}"
    return files("regatta.web").joinpath(folder, name).read_text(encoding="utf-8")


def rounded(value: float | None, figures: int = 6) -> float | None:
    """A number with this many figures; more would only make the page larger."""
    return value if value is None or not math.isfinite(value) else float(f"{value:.{figures}g}")
