"""Frameworks by name, and without importing what is not used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from regatta.errors import UsageError
from regatta.frameworks import NAMES, load_framework


@pytest.mark.parametrize("name", NAMES)
def test_a_framework_has_every_verb_of_the_protocol(name: str) -> None:
    framework = load_framework(name)
    verbs = "owns assemble seeded prepare rows train end_epoch evaluate evaluating save read restore"
    assert all(callable(getattr(framework, verb)) for verb in verbs.split())


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="no framework 'pytorch'") as caught:
        load_framework("pytorch")
    assert "Did you mean torch?" in str(caught.value)


def test_loading_torchs_module_does_not_load_torch() -> None:
    code = (
        "import sys, numpy; from regatta.frameworks import framework_of;"
        "framework_of({'w': numpy.zeros(1)}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
