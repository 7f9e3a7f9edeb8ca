"""The part of the long suites that this commit runs by default: a different one each time, all within `SLICES` commits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SLICES = 24
VARIABLE = "HUB_TEST_SLICE"


@cache
def number() -> int:
    """Return the number of this commit, the value of `HUB_TEST_SLICE`, or 0 without git."""
    if VARIABLE in os.environ:
        return int(os.environ[VARIABLE])
    command = ("git", "rev-list", "--count", "HEAD")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout)


def is_drawn(place: int, slices: int = SLICES) -> bool:
    """Return True if the part at this place belongs to this commit's slice. Raise ValueError for too many slices."""
    if not 1 <= slices <= SLICES:
        raise ValueError(f"{slices} slices would take as many commits, and all is to run within {SLICES}")
    return place % slices == number() % slices


def drawn(values: Iterable[Any], *, one_in: int = SLICES, first: int = 0) -> list[Any]:
    """Return parameters of tests, of which all but this commit's slice are marked slow.

    Values may be what `pytest.param` returns. Suites that count from another `first` are long in other commits.
    """
    found: list[Any] = []
    for place, value in enumerate(values, first):
        case = value if isinstance(value, _PARAMETERS) else pytest.param(value)
        marks = () if is_drawn(place, one_in) else (pytest.mark.slow,)
        found.append(case._replace(marks=(*case.marks, *marks)))
    return found


_PARAMETERS: Any = type(pytest.param())
NUMBER = number()
"""The slice, read when tests are collected: the hub's variables are unset while tests run."""
