"""What several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_journal import MadeRun

from regatta.engine.record import RunRecord


@pytest.fixture
def made() -> RunRecord:
    """A finished run of eight configurations: one failed, one went to NaN."""
    return MadeRun(fails=(3,), nans=(5,)).record()


@pytest.fixture
def root() -> Path:
    return Path(__file__).resolve().parents[1]
