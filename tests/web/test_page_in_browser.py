"""The page in a browser: what a pointer and keys do. Needs Chromium; left out where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, probed
from fake_run import FakeRun

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
