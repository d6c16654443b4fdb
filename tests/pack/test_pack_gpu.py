"""What only a GPU can show: real graphs, side streams, random numbers on the device, memory that runs out.

Needs PyTorch, NumPy and pytest alone: `pytest --noconftest -m gpu tests/pack/test_pack_gpu.py`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from locations import ROOT
from torch import nn

from regatta.pack import Pack, Rates
from regatta.pack.rates import PackTiming

sys.path.insert(0, str(ROOT / "benchmarks"))
cases: Any = importlib.import_module("pack_exactness")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def deterministic() -> Any:
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before
    torch.cuda.empty_cache()


class Always(Rates):
    """A measurement that is known from the start."""

    def __init__(self, measured: PackTiming) -> None:
        super().__init__()
        self.measured = measured

    def get(self, key: Any) -> PackTiming:
        return self.measured


@pytest.mark.parametrize(
    "measured",
    [None, PackTiming(1.0, 2.0), PackTiming(1.0, 2.0, joint=True), PackTiming(2.0, 1.0)],
    ids=["measured", "streams", "joint", "in turn"],
)
def test_ten_mixed_members_equal_the_plain_loop(measured: PackTiming | None) -> None:
    pack = Pack("cuda", rates=Rates() if measured is None else Always(measured))
    given = cases.data("cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # work before it is still under way: side streams must wait for it
    members = [pack.load(**cases.parts(number, "cuda")) for number in range(len(cases.KINDS))]
    pack.train(given, epochs=2)
    assert {m.tier for m in members} == {"graph"}, pack.plan()
    for number, member in enumerate(members):
        expected = cases.alone(number, 2, "cuda")
        assert torch.equal(torch.from_numpy(member.losses), expected["losses"]), number
        assert cases.differences(pack.free(member), expected) == [], number


def curious(model: nn.Module, batch: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return loss * 2 if loss.item() > 1.0 else loss


def test_a_step_that_synchronizes_with_the_device_runs_alone() -> None:
    pack = Pack("cuda")
    parts = cases.parts(0, "cuda") | {"loss_fn": curious, "name": "curious"}
    waiting, plain = pack.load(**parts), pack.load(**cases.parts(1, "cuda"))
    pack.train(cases.data("cuda"), epochs=1)
    assert (waiting.tier, plain.tier) == ("alone", "graph"), pack.plan()
    assert "waits for the device" in waiting.reason
    assert cases.differences(pack.free(plain), cases.alone(1, 1, "cuda")) == []


class Wide(nn.Module):
    """Keeps much memory from forward to backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(192, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.inner(x).repeat(1, 4000).tanh()
        return self.out(wide.unflatten(1, (4000, 64)).mean(1))


def wide(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Wide().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "loss_fn": cases.loss_fn, "batch_size": 50, "order": order}


def order(rows: int, epoch: int) -> Any:
    return [rows_ for rows_ in torch.arange(rows).view(-1, 50).numpy()]


@pytest.mark.parametrize("known", [True, False])
def test_members_that_do_not_fit_together_take_turns(known: bool) -> None:
    """With a limit the pack splits before; where only the device knows the limit, it splits when memory runs out."""
    limit = 1 << 30
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    pack = Pack("cuda", memory_limit=limit if known else None)
    given = cases.data("cuda")
    members = [pack.load(**wide(seed), name=str(seed)) for seed in range(8)]
    if not known:
        torch.cuda.set_per_process_memory_fraction((limit + torch.cuda.memory_reserved()) / total)
    try:
        pack.train(given, epochs=1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert [m.error for m in members] == [None] * 8
    assert len(pack.graph_tier.tracks) < 8
    for seed, member in enumerate(members):
        parts = wide(seed)
        for rows in order(cases.ROWS, 0):
            parts["optimizer"].zero_grad(set_to_none=True)
            taken = torch.from_numpy(rows).cuda()
            cases.loss_fn(parts["model"], tuple(part[taken] for part in given)).backward()
            parts["optimizer"].step()
        for ours, theirs in zip(member.model.parameters(), parts["model"].parameters(), strict=True):
            assert torch.equal(ours, theirs), seed


def test_a_fast_stack_stays_close_to_the_exact_pack() -> None:
    def tiny(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 10)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * (1 + seed))
        return {"model": model, "optimizer": optimizer, "loss_fn": cases.loss_fn, "batch_size": 50, "order": order}

    found = {}
    for numerics in ("exact", "fast"):
        pack = Pack("cuda", numerics=numerics)
        found[numerics] = [pack.load(**tiny(seed), name=str(seed)) for seed in range(12)]
        pack.train(cases.data("cuda"), epochs=2)
    assert {m.tier for m in found["exact"]} == {"graph"}
    assert {m.tier for m in found["fast"]} == {"fused"}
    assert all("fast" in m.reason for m in found["fast"])
    for exact, fast in zip(found["exact"], found["fast"], strict=True):
        torch.testing.assert_close(torch.from_numpy(fast.losses), torch.from_numpy(exact.losses), rtol=1e-2, atol=1e-3)
