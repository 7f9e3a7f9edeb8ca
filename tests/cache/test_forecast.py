"""A program whose plans all came from the cache last time is not expected to need workers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hub.cache import forecast
from hub.cache.forecast import may_need_workers, remember
from hub.cache.upkeep import clear


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget everything that is known about this process."""
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


def test_programs_that_planned_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder holds so many marks at most; one that planned again counts as the latest."""
    monkeypatch.setattr(forecast, "MOST", 3)
    programs = [f"program{number}.py" for number in range(4)]
    for age_s, program in zip((40, 30, 20), programs, strict=False):
        monkeypatch.setattr("sys.argv", [program])
        remember(tmp_path, needed_workers=False)
        os.utime(forecast._mark(tmp_path), (time.time() - age_s,) * 2)
    for program in (programs[0], programs[3]):
        monkeypatch.setattr("sys.argv", [program])
        remember(tmp_path, needed_workers=False)
    forgotten: list[str] = []
    for program in programs:
        monkeypatch.setattr("sys.argv", [program])
        if may_need_workers(tmp_path):
            forgotten.append(program)
    assert forgotten == ["program1.py"]


def test_clearing_forgets(tmp_path: Path) -> None:
    """An empty cache means work."""
    remember(tmp_path, needed_workers=False)
    clear(tmp_path)
    assert may_need_workers(tmp_path)
