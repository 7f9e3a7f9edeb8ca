"""A program whose plans all came from the cache last time is not expected to need workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub.cache import forecast
from hub.cache.forecast import may_need_workers, remember
from hub.cache.upkeep import clear


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of this process."""
    monkeypatch.setattr(forecast, "_needed_some", set[Path]())


def test_an_unknown_program_may_need_some(tmp_path: Path) -> None:
    """Nothing is known at first."""
    assert may_need_workers(tmp_path)


def test_it_needs_what_it_needed_last_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None where none was needed; another program's forecast is its own."""
    remember(tmp_path, needed_workers=False)
    assert not may_need_workers(tmp_path)
    monkeypatch.setattr("sys.argv", ["other.py"])
    assert may_need_workers(tmp_path)


def test_one_need_counts(tmp_path: Path) -> None:
    """A program with several graphs needs workers where one of these does."""
    remember(tmp_path, needed_workers=True)
    remember(tmp_path, needed_workers=False)
    assert may_need_workers(tmp_path)


def test_clearing_forgets(tmp_path: Path) -> None:
    """An empty cache means work."""
    remember(tmp_path, needed_workers=False)
    clear(tmp_path)
    assert may_need_workers(tmp_path)
