"""A sweep pickled by an earlier version refers to public functions and classes by the modules of that time."""

from __future__ import annotations

import pytest

from regatta import network, pack, repo
from regatta.journal.run_record import UnitRecord
from regatta.journal.unpickle import unpickle


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
