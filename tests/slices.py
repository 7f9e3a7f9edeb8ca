"""The part of the long suites that this commit runs by default: a different one each time, all within `SLICES` commits."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import pytest

SLICES = 24
VARIABLE = "HUB_TEST_SLICE"
SUITE_S = 1500.0
"""Seconds that the files of `TIMES` may take in a run: on two cores 13 minutes.

Tests that draw their own parameters take 10 more, and installing and checking 5. Machines differ by a factor of two: with
2,400 runs took 24 to 58 minutes.
"""
TIMES = Path(__file__).with_name("times.json")
"""Seconds that the tests of each file take in all, if they all run; `python -m tests.times` writes it."""


def turns_of(seconds: Mapping[str, float], suite_s: float = SUITE_S) -> dict[str, int]:
    """Return the number of commits within which all tests of each long file run, so that a run takes `suite_s` in all.

    No file may take more of a run than a certain time, the same for all. Files that take less run as a whole.
    """
    most_s, rest_s = 0.0, suite_s
    shortest_first = sorted(seconds.values())
    for place, taken_s in enumerate(shortest_first):
        most_s = rest_s / (len(shortest_first) - place)
        if taken_s > most_s:
            break
        rest_s -= taken_s
    return {name: min(SLICES, ceil(taken_s / most_s)) for name, taken_s in seconds.items() if taken_s > most_s}


@cache
def long_files() -> Mapping[str, int]:
    """Return the number of commits within which all tests of each long file run; files that are missing run as a whole."""
    return turns_of(json.loads(TIMES.read_text()))


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


def is_named(name: str, slices: int = SLICES) -> bool:
    """Return True if the test of this name (its node id) belongs to this commit's slice, whichever others are collected."""
    return is_drawn(zlib.crc32(name.encode()), slices)


def drawn(values: Iterable[Any], *, one_in: int = SLICES, first: int = 0) -> list[Any]:
    """Return parameters of tests: this commit's slice is marked drawn, all others slow.

    Values may be what `pytest.param` returns. Suites that count from another `first` are long in other commits.
    """
    found: list[Any] = []
    for place, value in enumerate(values, first):
        case = value if isinstance(value, _PARAMETERS) else pytest.param(value)
        marks = (pytest.mark.drawn if is_drawn(place, one_in) else pytest.mark.slow,)
        found.append(case._replace(marks=(*case.marks, *marks)))
    return found


_PARAMETERS: Any = type(pytest.param())
NUMBER = number()
"""The slice, read when tests are collected: the hub's variables are unset while tests run."""
