"""Which tests go to one process when several run them, and in which order: by groups, the longest first.

A group is a file, because the tests of a file share what is dear to make. All tests that need a Ray cluster are one
group; each document and each example is one.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "tests/engine/workers/ray",
    "tests/project/test_documents.py",
    "tests/engine/planning/test_replanner.py",
    "tests/frameworks/test_keras.py",
    "tests/project/test_examples.py",
    "tests/engine/controller/test_control_server.py",
    "tests/engine/sharing/test_sharing.py",
    "tests/frameworks/test_jax.py",
    "tests/engine/workers",
    "tests/engine",
    "tests/frameworks",
    "tests/project/test_import_rules.py",
)
_SINGLE = ("tests/project/test_documents.py", "tests/project/test_examples.py")  # each of their tests is a group


def group_of(test: str) -> str:
    file = test.partition("::")[0]
    if file.startswith("tests/engine/workers/ray/"):
        return "ray"
    return test if file in _SINGLE else file


def weight_of(item: pytest.Item) -> int:
    """The place of a test among all; within a group the order stays as it is."""
    return next((place for place, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))
