"""What the documents show works: every block of Python is executed, every `$ regatta` command is run.

The blocks of one file share a namespace and a working folder, as a reader would type them; each file has a process
of its own, so that none leans on another.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from locations import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REGATTA = [sys.executable, "-c", "from regatta.cli.main import entry; entry()"]

SMALLEST_PROGRAM = """\
import regatta, torch
from torch import nn

def model_fn(config):
    hidden = config["hidden"]
    net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])

def loss_fn(model, batch, config):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)

data = regatta.Dataset.digits(partitions=4)
space = regatta.search.grid(hidden=[32, 128], lr=[1e-2, 1e-3], batch_size=[32, 64])
run = regatta.launch(data, space, model_fn, loss_fn=loss_fn, epochs=3)
print(run.best)
"""

EXECUTE = """
import sys
from pathlib import Path
for line, path in (argument.split(":", 1) for argument in sys.argv[2:]):
    source = "\\n" * (int(line) - 1) + Path(path).read_text()
    exec(compile(source, sys.argv[1], "exec"), globals())
"""


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document, with the line on which their content begins."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], text[: match.start(2)].count("\n") + 1, match[2]) for match in found]


def commands(text: str) -> list[list[str]]:
    """The `$ regatta ...` lines of a document's console blocks, as words; comments are left out."""
    lines = [line for block in blocks(text) if block.language == "console" for line in block.text.splitlines()]
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ regatta ")]
    return [found[1:] for found in words]


def execute(document: Path, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the Python of a document in a folder; tracebacks name the document's own lines."""
    arguments = []
    for number, block in enumerate(b for b in blocks(text) if b.language == "python"):
        path = folder / f".block-{number}"
        path.write_text(block.text)
        arguments.append(f"{block.line}:{path}")
    script = folder / ".execute.py"
    script.write_text(EXECUTE)
    words = [sys.executable, str(script), document.name, *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_document_runs(document: Path, tmp_path: Path) -> None:
    text = document.read_text()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = execute(document, text, tmp_path)
    assert done.returncode == 0, done.stderr
    for words in commands(text):
        output = tmp_path / words.pop() if words[-2:-1] == [">"] else None
        words = [word for word in words if word != ">" or output is None]
        shown = subprocess.run([*REGATTA, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert shown.returncode == 0, f"regatta {' '.join(words)}\n{shown.stderr}"
        if output is not None:
            output.write_text(shown.stdout)


def test_the_smallest_program_is_on_the_first_screen() -> None:
    readme = (ROOT / "README.md").read_text()
    assert SMALLEST_PROGRAM in [block.text for block in blocks(readme) if block.language == "python"]
    assert readme.index(SMALLEST_PROGRAM) < 2000
    assert len([line for line in SMALLEST_PROGRAM.splitlines() if line.strip()]) <= 15


def test_links_to_files_exist() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert os.path.exists(document.parent / target), f"{document.name} links to {target}"


def test_blocks_are_found_with_their_lines() -> None:
    text = "# Title\n\n```python\nx = 1\n\ny = 2\n```\nwords\n```console\n$ regatta runs --json  # all\nout\n```\n"
    assert blocks(text) == [
        Block("python", 4, "x = 1\n\ny = 2\n"),
        Block("console", 10, "$ regatta runs --json  # all\nout\n"),
    ]
    assert commands(text) == [["runs", "--json"]]


def test_a_wrong_block_fails_at_its_own_line(tmp_path: Path) -> None:
    text = "# T\n```python\nx = 1\n```\n\n```python\ny = x\n1 / 0\n```\n"
    done = execute(Path("doc.md"), text, tmp_path)
    assert done.returncode != 0
    assert 'File "doc.md", line 8' in done.stderr
