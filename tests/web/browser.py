"""A page in a headless Chromium, with a script at its end that looks at it and touches it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)


def probed(text: str, probe: str, folder: Path, width: int = 1280) -> dict[str, Any]:
    """What a probe puts into `out` once the page is there; uncaught errors are in `out.errors`."""
    early = "<script>window.errors = []; addEventListener('error', (e) => errors.push(e.message));</script>"
    last = "out.errors = errors; document.title = JSON.stringify(out);"
    late = f"<script type='module'>const out = {{}};{probe}\n{last}</script>"
    path = folder / "page.html"
    path.write_text(text.replace("<head>", "<head>" + early, 1).replace("</body>", late + "</body>"), encoding="utf-8")
    words = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--window-size={width},1000", f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(folder)})
    title = done.stdout.split("<title>")[1].split("</title>")[0]
    found: dict[str, Any] = json.loads(unescape(title))
    return found
