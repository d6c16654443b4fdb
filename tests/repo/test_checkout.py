"""Weights as PyTorch's files: every type, and without a whole model in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from regatta import Repo
from regatta.frameworks.torch.files import read_state_dict

TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool,
    torch.complex64, torch.complex128,
)  # fmt: skip
TENSORS, TENSOR_BYTES = 16, 2**22


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo.init(tmp_path / "repo")


def large_model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"layer{n:02}": rng.normal(size=TENSOR_BYTES // 4).astype(np.float32) for n in range(TENSORS)}


@pytest.mark.parametrize("mapped", [False, True])
def test_a_pt_file_has_every_type_as_pytorch_saves_it(repo: Repo, tmp_path: Path, mapped: bool) -> None:
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in TYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "one": torch.ones(1, 1, 4)}
    repo.commit("types", tensors, git=False)
    target = repo.checkout("types", tmp_path / "types.pt")
    found = torch.load(target, weights_only=True, mmap=mapped)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape, found[name].stride()) == (
            tensor.dtype, tensor.shape, tensor.stride(),
        )  # fmt: skip
        assert found[name].flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8)), name


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "net.npz"])
def test_a_checkout_never_holds_the_whole_model(repo: Repo, tmp_path: Path, name: str) -> None:
    repo.commit("large", large_model(), git=False)
    tracemalloc.start()
    try:
        target = repo.checkout("large", tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert target.stat().st_size >= TENSORS * TENSOR_BYTES
    assert peak < 0.6 * TENSORS * TENSOR_BYTES


def test_the_tensors_of_a_pt_file_are_mapped(tmp_path: Path) -> None:
    model = {name: torch.from_numpy(value) for name, value in large_model().items()}
    torch.save(model, tmp_path / "net.pt")
    before = anonymous_memory()
    found = read_state_dict(tmp_path / "net.pt", 2 * TENSORS * TENSOR_BYTES).tensors
    assert sum(float(tensor.sum()) for tensor in found.values()) == sum(float(t.sum()) for t in model.values())
    assert anonymous_memory() - before < 0.5 * TENSORS * TENSOR_BYTES


def anonymous_memory() -> int:
    """The bytes of this process that are not backed by a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
