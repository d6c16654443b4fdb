"""Saved queries: kept as files, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from regatta.dql.saved_queries import forget_query, read_query, save_query, saved_queries
from regatta.errors import NotFoundError, UsageError

QUERY = "select m where m.name = 'é'"


def test_a_query_is_kept_and_replaced(tmp_path: Path) -> None:
    assert saved_queries(tmp_path) == []
    save_query(tmp_path, "best", "select m")
    save_query(tmp_path, "best", f"  {QUERY}\n\n")
    save_query(tmp_path, "a.b-c_1", "select m limit 3")
    assert read_query(tmp_path, "best") == QUERY + "\n"
    assert saved_queries(tmp_path) == ["a.b-c_1", "best"]
    forget_query(tmp_path, "best")
    assert saved_queries(tmp_path) == ["a.b-c_1"]


def test_an_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="--save NAME"):
        read_query(tmp_path, "bset")
    save_query(tmp_path, "best", "select m")
    with pytest.raises(NotFoundError) as caught:
        read_query(tmp_path, "bset")
    assert caught.value.candidates == ("best",)
    with pytest.raises(NotFoundError):
        forget_query(tmp_path, "bset")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0b", "x" * 101, "a b"])
def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be saved as"):
        save_query(tmp_path, name, "select m")
    with pytest.raises(UsageError, match="cannot be saved as"):
        read_query(tmp_path, name)
    assert not list(tmp_path.rglob("*.dql"))


def test_a_query_with_an_error_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ends too early"):
        save_query(tmp_path, "wrong", "select m where")
    assert saved_queries(tmp_path) == []


def test_a_damaged_file_is_an_error_of_ours(tmp_path: Path) -> None:
    path = save_query(tmp_path, "q", "select m")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_query(tmp_path, "q")
