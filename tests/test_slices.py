"""Long suites run by rotation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import slices

ROOT = Path(__file__).parent.parent


def test_every_part_is_drawn_once_in_so_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many commits in a row run everything, each part once."""
    drawn: list[int] = []
    for commit in range(613, 613 + slices.SLICES):
        monkeypatch.setattr(slices, "number", lambda commit=commit: commit)
        drawn += [place for place in range(185) if slices.is_drawn(place)]
    assert sorted(drawn) == list(range(185))


@pytest.mark.parametrize("path", slices.long_files())
def test_long_files_exist(path: str) -> None:
    """A file that was renamed would no longer take turns."""
    assert (ROOT / path).is_file()


def test_no_file_takes_more_of_a_run_than_another_long_one() -> None:
    """Short files run as a whole; long ones share what is left of the time, each in as many turns as it needs."""
    seconds = {"a": 10.0, "b": 20.0, "c": 100.0, "d": 900.0, "e": 1e6}
    assert slices.turns_of(seconds, 1e9) == {}
    assert slices.turns_of(seconds, 180.0) == {"c": 2, "d": 18, "e": 24}


def test_every_name_is_drawn_once_in_so_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a long file runs in each third commit, say."""
    for name in map("tests/test_inputs.py::test_{}".format, range(20)):
        drawn: list[int] = []
        for commit in range(613, 616):
            monkeypatch.setattr(slices, "number", lambda commit=commit: commit)
            drawn += [commit] if slices.is_named(name, 3) else []
        assert len(drawn) == 1


def test_what_would_take_more_commits_is_refused() -> None:
    """No part of a suite can be postponed beyond so many commits."""
    with pytest.raises(ValueError, match="within 24"):
        slices.is_drawn(0, slices.SLICES + 1)


def test_each_parameter_is_drawn_once_and_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters keep their marks and names, and are slow but for one commit in so many."""
    counts: Counter[str] = Counter()
    for commit in range(613, 613 + slices.SLICES):
        monkeypatch.setattr(slices, "number", lambda commit=commit: commit)
        named = [pytest.param(value, id=f"part {value}", marks=pytest.mark.gpu) for value in range(30)]
        for case in slices.drawn(named, first=7):
            names = {mark.name for mark in case.marks}
            assert "gpu" in names
            assert ("drawn" in names) != ("slow" in names)
            counts[case.id] += "drawn" in names
    assert counts == {f"part {value}": 1 for value in range(30)}


@pytest.mark.parametrize(("given", "said"), [({slices.VARIABLE: "7"}, "7"), ({"PATH": ""}, "0")])
def test_the_slice_is_the_variables_or_nought_without_git(given: dict[str, str], said: str) -> None:
    """The variable wins over the commit; without git it is the first slice."""
    code = "from tests.slices import NUMBER; print(NUMBER)"
    rest = {name: text for name, text in os.environ.items() if name != slices.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**rest, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == said
