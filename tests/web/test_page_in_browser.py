"""The page in a browser: what a pointer and keys do. Needs Chromium; left out where there is none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, probed
from fake_run import FakeRun

from regatta.journal.run_record import WorkerRecord
from regatta.run import Run
from regatta.web.gantt_page import page

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

PROBE = """

const canvas = document.querySelector("canvas");
const box = canvas.getBoundingClientRect();
const tip = document.getElementById("tip");
const over = (clientX, clientY) => canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const lit = () => [...document.querySelectorAll("#configs tr.lit button")].map((button) => button.textContent);
const dim = () => document.querySelectorAll("#curves g.dim").length;

out.rows = document.querySelectorAll("#configs tbody tr").length;
out.curves = document.querySelectorAll("#curves g.config").length;
out.painted = new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size > 20;
over(box.left + 94, box.top + 40);
out.hovered = { tip: tip.textContent, hidden: tip.hidden, lit: lit(), dim: dim() };
canvas.dispatchEvent(new PointerEvent("pointerleave"));
out.left = { hidden: tip.hidden, lit: lit(), dim: dim() };
canvas.focus();
press("ArrowRight");
const first = document.getElementById("said").textContent;
press("ArrowRight");
const second = document.getElementById("said").textContent;
press("ArrowDown");
out.walked = [first, second, document.getElementById("said").textContent];
press("Escape");
out.escaped = tip.hidden;
const button = document.querySelectorAll("#configs button")[2];
button.click();
out.pinned = { lit: lit(), pressed: button.getAttribute("aria-pressed"), name: button.textContent };
button.click();
out.unpinned = lit();
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    record = FakeRun(fails=(3,), nans=(5,)).record()
    # Frames are painted at once, so that the probe can look at what was painted.
    early = "<head><script>window.requestAnimationFrame = (draw) => { draw(); return 0; };</script>"
    text = page(Run(Path("made"), record)).replace("<head>", early)
    return probed(text, PROBE, tmp_path_factory.mktemp("page"))


def test_everything_is_drawn(seen: dict[str, Any]) -> None:
    assert seen["rows"] == 8
    assert seen["curves"] == 8
    assert seen["painted"]


def test_hovering_describes_a_unit_and_highlights_its_model(seen: dict[str, Any]) -> None:
    hovered = seen["hovered"]
    assert not hovered["hidden"]
    assert "profiling" in hovered["tip"]
    assert "hidden32" in hovered["tip"]
    assert hovered["lit"][0] in hovered["tip"]
    assert hovered["dim"] == 7
    assert seen["left"] == {"hidden": True, "lit": [], "dim": 0}


def test_keys_move_from_unit_to_unit(seen: dict[str, Any]) -> None:
    first, second, below = seen["walked"]
    assert "profiling" in first and "worker w0" in first
    assert "training" in second and "epoch 1" in second and "worker w0" in second
    assert "worker w1" in below
    assert seen["escaped"]


def test_a_configuration_can_be_kept_highlighted(seen: dict[str, Any]) -> None:
    assert seen["pinned"] == {"lit": [seen["pinned"]["name"]], "pressed": "true", "name": seen["pinned"]["name"]}
    assert seen["unpinned"] == []


PRESENCE = """

const canvas = document.querySelector("canvas");
const pen = canvas.getContext("2d");
const scale = canvas.width / canvas.clientWidth;
const filled = (share, row) => {
  // The share of pixels that are painted, at a share of the time in the row of a worker.
  const x = Math.round(scale * (93 + share * (canvas.clientWidth - 94)));
  const [top, bottom] = [scale * (22 + 34 * row + 4), scale * (22 + 34 * row + 30)].map(Math.round);
  const bytes = pen.getImageData(x, top, Math.round(6 * scale), bottom - top).data;
  return bytes.filter((value, place) => place % 4 === 3 && value).length / (bytes.length / 4);
};
out.filled = [0.12, 0.4, 0.5, 0.6, 0.9].map((share) => filled(share, 1));
out.written = written;
out.figures = document.getElementById("figures").textContent;
"""


LISTEN = """
const written = [], fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  written.push(text);
  return fillText.call(this, text, ...place);
};
"""


def test_a_worker_is_drawn_as_idle_only_while_it_is_present(tmp_path: Path) -> None:
    """Worker w1 is there in the middle half of the run, and runs units in half of that."""
    record = FakeRun(workers=1).record()
    start, end = min(unit.start for unit in record.units), max(unit.end for unit in record.units)
    record.workers["w1"] = WorkerRecord("w1")
    middle = [n for n, u in enumerate(record.units) if abs((u.start - start) / (end - start) - 0.5) < 1 / 8]
    for number in middle:
        record.units[number] = replace(record.units[number], worker="w1")
    record.presence["w1"] = [(start + (end - start) / 4, end - (end - start) / 4, 1)]
    early = f"<head><script>window.requestAnimationFrame = (draw) => {{ draw(); return 0; }};{LISTEN}</script>"
    text = page(Run(Path("made"), record)).replace("<head>", early)
    found = probed(text, PRESENCE, tmp_path)
    assert found["errors"] == []
    before, *during, after = found["filled"]
    assert during == [1, 1, 1]
    busy = [int(text.removesuffix("% busy")) for text in found["written"] if text.endswith("% busy")]
    assert 40 <= busy[-1] <= 60, "of the time for which it is present"
    assert 0 < before < 0.4 and 0 < after < 0.4, "a line, and at most one of the axis"
    shares = [int(share) for share in re.findall(r"\((\d+)%\)", found["figures"])]
    assert len(shares) == 4 and sum(shares) == 100
