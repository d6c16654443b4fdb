"""The pages of a version and of differences: complete, self-contained, and safe for any names; and in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import BROWSER, probed
from torch import nn

from regatta import network
from regatta.repo import Repo
from regatta.web import diff_page, version_page

EVIL = "</script><img src=x onerror=\"errors.push('in')\"><script>errors.push('in')</script>"
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

PROBE = """
const count = (q) => document.querySelectorAll(q).length;
const text = (q) => document.querySelector(q)?.textContent;
out.wide = document.documentElement.scrollWidth;
out.images = count("img");
out.boxes = count(".box"); out.lines = count("#network .line");
out.cards = count("#weights .card"); out.curves = count("#metrics .card"); out.seen = count("#activations .card");
out.pictures = count("#activations canvas");
out.detail = text("#detail h3");
const network = document.getElementById("network");
network.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
out.next = text("#detail h3");
document.querySelectorAll(".box")[0].dispatchEvent(new MouseEvent("click"));
out.clicked = text("#detail h3");
out.chosen = count(".box.chosen");
const find = document.getElementById("find");
find.value = "BIAS"; find.dispatchEvent(new Event("input"));
out.found = count("#weights .card");
out.hidden = [...document.querySelectorAll("section")].filter((s) => s.hidden).map((s) => s.id);
out.labels = [...document.querySelectorAll("svg[role=img]")].every((svg) => svg.getAttribute("aria-label"));
"""
DIFF_PROBE = """
out.images = document.querySelectorAll("img").length;
out.wide = document.documentElement.scrollWidth;
out.titles = [...document.querySelectorAll("h2")].map((h) => h.textContent);
out.cards = document.querySelectorAll("#comparisons .card").length;
out.lines = document.querySelectorAll(".bars.second").length;
out.boxes = [...document.querySelectorAll(".box")].map((box) => box.getAttribute("class").split(" ")[2]);
out.description = document.querySelector("aside")?.textContent;
"""


class Elements(HTMLParser):
    """What a page is made of, as a browser sees it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repo]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    graph = network.from_torch(net.eval(), torch.zeros(1, 1, 8, 8))
    with Repo.init(tmp_path_factory.mktemp("pages")) as made:
        more: dict[str, Any] = {"git": False, "network": graph}
        made.commit(
            "net", net.state_dict(), metrics={"loss": [3.0, 2.0, float("nan"), 1.0], "one": 1.0},
            hyperparameters={"lr": 0.1}, files={"train.py": b"x"}, message="first", **more,
        )  # fmt: skip
        moved = {name: value * 1.5 if value.is_floating_point() else value for name, value in net.state_dict().items()}
        made.commit(EVIL, moved, metrics={EVIL: [1.0, 2.0]}, hyperparameters={EVIL: EVIL}, files={"a<b>": b""},
                    message=EVIL, metadata={EVIL: EVIL}, parents=["net"], **more)  # fmt: skip
        made.tag(EVIL, EVIL + "tag")
        made.commit("bare", None, git=False)
        yield made


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def pages(repo: Repo) -> list[str]:
    x = np.ones((2, 1, 8, 8), "f4")
    return [
        version_page.page(repo.portrait("net", inputs={"": x})), version_page.page(repo.portrait(EVIL)),
        version_page.page(repo.portrait("bare")), diff_page.page(repo.diff("net", EVIL, "bare")),
        diff_page.page(repo.diff("net", "net")),
    ]  # fmt: skip


def test_pages_load_nothing_from_elsewhere(repo: Repo) -> None:
    for text in pages(repo):
        elements = Elements(text)
        assert not [tag for tag, attrs in elements.tags if "src" in attrs or "href" in attrs]
        policy = [a["content"] for t, a in elements.tags if t == "meta" and a.get("http-equiv")]
        assert policy and "default-src 'none'" in str(policy[0])
        ids = {attrs["id"] for _, attrs in elements.tags if "id" in attrs}
        script = text.rpartition('<script type="module">')[2]
        asked = set(re.findall(r'\$\("([\w-]+)"\)', script)) - {"id"}
        assert asked <= ids | {"network", "data", "tip"}
        assert sum(tag == "script" for tag, _ in elements.tags) == 2


def test_the_data_of_a_page_is_that_of_the_version(repo: Repo) -> None:
    data = data_of(pages(repo)[0])
    assert data["metrics"]["loss"] == {"points": [[1, 3.0], [2, 2.0], [3, None], [4, 1.0]], "count": 4}
    boxes = data["network"]["boxes"]
    assert [box["title"] for box in boxes] == ["INPUT", "CONV 4 3×3", "FULL 3", "OUTPUT"]
    assert len(boxes[1]["members"]) == 4  # the norm, the activation and the flattening behind it
    assert {tensor["name"] for tensor in data["tensors"]} >= {"0.weight", "1.running_mean", "4.bias"}
    assert set(data["activations"]) == set(data["network"]["nodes"])


def test_a_network_that_is_too_large_is_not_drawn(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_page, "MAX_NODES", 3)
    found = version_page.network_data(repo.portrait("net").layers)
    assert found is not None and not found["boxes"] and len(found["nodes"]) == 7


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as made:
        made.commit("long", None, metrics={"loss": list(range(5000, 0, -1))}, git=False)
        points = version_page.page_data(made.portrait("long"))["metrics"]["loss"]["points"]
    assert len(points) <= 602 and points[-1] == [5000, 1]


@needs_browser
def test_a_version_is_drawn_in_a_browser(repo: Repo, tmp_path: Path) -> None:
    found = probed(pages(repo)[0], PROBE, tmp_path)
    assert found["errors"] == [] and found["images"] == 0
    assert (found["boxes"], found["lines"], found["curves"], found["cards"]) == (4, 3, 2, 9)
    assert found["seen"] == 7 and found["pictures"] >= 4
    assert found["detail"].startswith("CONV") and found["next"].startswith("FULL")
    assert found["clicked"].startswith("INPUT") and found["chosen"] == 1
    assert found["found"] == 3 and found["labels"]
    assert found["hidden"] == []


@needs_browser
def test_hostile_names_on_a_phone(repo: Repo, tmp_path: Path) -> None:
    texts = pages(repo)
    found = probed(texts[1], PROBE, tmp_path, width=500)
    assert found["errors"] == [] and found["images"] == 0
    assert found["wide"] <= 500 and found["boxes"] == 4
    assert found["hidden"] == ["activations-section"]
    apart = probed(texts[3], DIFF_PROBE, tmp_path, width=500)
    assert apart["errors"] == [] and apart["images"] == 0 and apart["wide"] <= 500
    assert apart["titles"][0] == "Metadata" and apart["lines"] >= 3
    assert apart["cards"] >= 12


@needs_browser
def test_layers_that_differ_are_framed(repo: Repo, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    graph = network.from_torch(net, torch.zeros(1, 1, 8, 8))
    repo.commit("pooled", net.state_dict(), network=graph, git=False)
    found = probed(diff_page.page(repo.diff("net", "pooled")), DIFF_PROBE, tmp_path)
    assert found["errors"] == []
    assert found["boxes"] == ["same", "same", "added", "changed", "same"]
    assert found["description"].startswith("POOL") and "added" in found["description"]
