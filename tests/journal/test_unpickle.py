"""Sweeps in a pickle. One of an earlier version refers to public functions and classes by the modules of that time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch

from regatta import network, pack, repo
from regatta.journal.run_record import UnitRecord
from regatta.journal.unpickle import to_pickle, unpickle


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("regatta.engine.record", "UnitRecord", UnitRecord),
        ("regatta.network.from_onnx", "from_onnx", network.from_onnx),
        ("regatta.network.from_torch", "from_torch", network.from_torch),
        ("regatta.network.match", "align", network.align),
        ("regatta.network.reading", "to_json", network.to_json),
        ("regatta.network.to_torch", "to_torch", network.to_torch),
        ("regatta.pack.cuda_graphs.optimizers", "capturable", pack.capturable),
        ("regatta.pack.optimizers", "capturable", pack.capturable),
        ("regatta.repo.records", "Version", repo.Version),
    ],
)
def test_a_moved_name_is_found(module: str, name: str, expected: object) -> None:
    assert unpickle(f"c{module}\n{name}\n.".encode()) is expected


class ModuleOfUser(ModuleType):
    """Libraries that import their parts late have such modules."""


made = ModuleOfUser("made_for_this_test")


@pytest.fixture
def by_value() -> Iterator[None]:
    """The functions of this module are pickled as those of a program are."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def flags() -> tuple[Any, bool, Any]:
    return torch.backends.cudnn, torch.backends.cudnn.benchmark, made


def test_modules_of_a_class_of_their_own_are_imported_again(by_value: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, made.__name__, made)
    restored = unpickle(to_pickle(flags))
    assert restored is not flags
    module, _, other = restored()
    assert (module, other) == (torch.backends.cudnn, made)
