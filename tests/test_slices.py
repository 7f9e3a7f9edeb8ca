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
            counts[case.id] += "slow" not in names
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
