"""What careful people stumbled over: each test is the smallest case of something that went wrong once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regatta import network
from regatta.errors import CorruptError, DataError
from regatta.network.bounds import BoundedNetwork, NotBounded, between
from regatta.repo import Repo
from regatta.repo.catalog.records import Version
from regatta.repo.doctor import examine
from regatta.repo.evaluate.progress import ahead


def _leading(module: nn.Module, planes: int) -> dict[str, Any]:
    """Boxes of float32 weights of which so many leading bytes are known."""
    unknown = np.uint32(2 ** (8 * (4 - planes)) - 1)
    boxes = {}
    for name, tensor in module.state_dict().items():
        if tensor.dtype == torch.float32:
            bits = tensor.numpy().view(np.uint32)
            ends = (bits & ~unknown).view(np.float32), (bits | unknown).view(np.float32)
            boxes[name] = between(np.minimum(*ends), np.maximum(*ends))
    return boxes


def _check_bounds(module: nn.Module, x: np.ndarray, planes: int) -> None:
    """The outputs are inside their balls, and no margin is greater than it is."""
    module.eval()
    bounded = BoundedNetwork(network.from_torch(module, torch.from_numpy(x[:2])), _leading(module, planes))
    passed = bounded.forward(x)
    with torch.no_grad():
        outputs = module(torch.from_numpy(x)).double().numpy()
    inside = (passed.logits.low <= outputs) & (outputs <= passed.logits.high)
    assert inside[passed.known].all()
    rows, better = np.arange(len(x)), outputs.argmax(axis=1)
    for whole in (False, True):
        worse = (better + 1) % outputs.shape[1]
        gaps = outputs[rows, worse] - outputs[rows, better]
        least = bounded.margins(passed, rows, worse, better, whole).least
        assert not (least[passed.known] > gaps[passed.known]).any()


class _Softmax(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.first, self.last, self.axis = nn.Linear(1, 2), nn.Linear(2, 2), axis

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.softmax(self.first(x), self.axis))


def test_softmax_of_a_wide_interval_beside_a_small_one_keeps_its_floor() -> None:
    module = _Softmax(1)
    with torch.no_grad():
        module.first.weight.copy_(torch.tensor([[6656.0], [0.0]]))  # the least number with these two leading bytes
        module.first.bias.copy_(torch.tensor([-13312.0, 0.0]))
        module.last.weight.copy_(torch.eye(2))
        module.last.bias.zero_()
    x = (2 + np.linspace(-0.01, 0.02, 200)).astype(np.float32)[:, None]
    _check_bounds(module, x, 2)


def test_softmax_over_the_batch_is_not_bounded() -> None:
    module, x = _Softmax(0), np.ones((3, 1), np.float32)
    read = network.from_torch(module, torch.from_numpy(x))
    with pytest.raises(NotBounded, match="over the batch"):
        BoundedNetwork(read, _leading(module, 2)).forward(x)


def test_batch_normalisation_by_a_scale_too_small_for_its_digits() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2, eps=0.0))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([4.2e-45, 2.8e-45]))
        module[0].running_var.copy_(torch.tensor([25.0, 1.69]))
    x = np.random.default_rng(0).uniform(1e35, 1e36, (50, 2)).astype(np.float32)
    _check_bounds(module, x, 4)


def test_mean_of_a_window_whose_sum_overflows_is_not_known() -> None:
    module = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(2, 3))
    x = np.full((2, 2, 8, 8), 9e36, np.float32)
    x[0] = 1.0
    bounded = BoundedNetwork(network.from_torch(module, torch.from_numpy(x)), _leading(module, 2))
    assert bounded.forward(x).known.tolist() == [True, False]


def test_rms_normalisation_in_float64_has_the_epsilon_of_float64(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 64), nn.RMSNorm(64), nn.Linear(64, 4)).double()
    with torch.no_grad():
        module[0].weight.mul_(1e-4)
        module[0].bias.mul_(1e-4)
    x = torch.randn(40, 16, dtype=torch.float64)
    with Repo.init(tmp_path) as repo:
        repo.commit("rms", module.state_dict(), network=network.to_json(network.from_torch(module, x[:2])))
        found = repo.evaluate("rms", x.numpy())
    assert np.array_equal(found.labels, module(x).argmax(1).numpy())


def test_nan_is_ahead_as_it_is_for_pytorch() -> None:
    outputs = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, 0.0, torch.nan], [2.0, 2.0, 1.0], [0.0, -0.0, -1.0]])
    assert np.array_equal(ahead(outputs.numpy(), 1)[:, 0], outputs.argmax(1).numpy())
    assert np.array_equal(ahead(outputs.numpy(), 2), outputs.topk(2).indices.sort(1).values.numpy())


@pytest.mark.parametrize(
    "module",
    [
        nn.AvgPool2d(2, divisor_override=3),
        nn.Embedding(9, 4, max_norm=1.0),
        nn.MultiheadAttention(4, 2, add_zero_attn=True),
    ],
    ids=lambda module: type(module).__name__,
)
def test_settings_that_a_kind_does_not_have_are_not_dropped(module: nn.Module) -> None:
    from regatta.network.torch.modules import describe_layer

    kind, attributes = describe_layer(module)
    assert (kind, attributes["type"]) == ("OTHER", type(module).__name__)


def _committed(folder: Path) -> Version:
    with Repo.init(folder) as repo:
        return repo.commit("net", {"w": np.ones((3, 4), np.float32)}, files={"notes.txt": b"as it was"})


def test_a_lost_catalog_does_not_make_gc_take_the_weights(tmp_path: Path) -> None:
    _committed(tmp_path)
    folder = tmp_path / ".regatta"
    kept = (folder / "catalog.sqlite").read_bytes()
    for path in folder.glob("catalog.sqlite*"):
        path.unlink()
    with Repo.open(folder) as repo:
        assert any("never had a version" in problem for problem in repo.fsck().problems)
        with pytest.raises(CorruptError, match="never had a version"):
            repo.gc(grace=0)
    for path in folder.glob("catalog.sqlite*"):
        path.unlink()
    (folder / "catalog.sqlite").write_bytes(kept)
    with Repo.open(folder) as repo:
        assert repo.fsck("deep").clean
        assert repo.load("net")["w"].sum() == 12


def test_gc_takes_all_once_the_last_version_is_deleted(tmp_path: Path) -> None:
    _committed(tmp_path)
    with Repo.open(tmp_path) as repo:
        repo.delete("net")
        assert repo.gc(grace=0).files == 1


def test_checkout_refuses_a_file_whose_content_is_another(tmp_path: Path) -> None:
    _committed(tmp_path)
    (kept,) = (path for path in (tmp_path / ".regatta" / "files").rglob("*") if path.is_file())
    kept.chmod(0o644)
    kept.write_bytes(b"as it WAS")
    with Repo.open(tmp_path) as repo, pytest.raises(CorruptError, match="not as it was committed"):
        repo.checkout("net", tmp_path / "out")


def test_doctor_says_that_the_index_of_the_store_is_damaged(tmp_path: Path) -> None:
    _committed(tmp_path)
    index = tmp_path / ".regatta" / "store" / "index.sqlite"
    for path in index.parent.glob("index.sqlite-*"):
        path.unlink()
    assert any(finding.what == "store" and finding.state == "ok" for finding in examine(tmp_path / ".regatta"))
    for path in index.parent.glob("index.sqlite*"):
        path.unlink()
    index.write_bytes(b"no database")
    assert any(finding.what == "store" and finding.state == "error" for finding in examine(tmp_path / ".regatta"))


def test_a_whole_number_beyond_floats_is_a_hyperparameter(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        repo.commit("net", hyperparameters={"seed": 10**400, "other": -(10**400)})
        assert repo.version("net").hyperparameters == {"seed": 10**400, "other": -(10**400)}


def test_sparse_tensors_in_a_file_are_refused(tmp_path: Path) -> None:
    from regatta.frameworks.torch.files import read_state_dict

    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    with pytest.raises(DataError, match="sparse"):
        read_state_dict(tmp_path / "sparse.pt", 10**6)
