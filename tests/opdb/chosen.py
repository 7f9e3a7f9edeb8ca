"""A fixed choice of sample calls in which every operator occurs: what `make test` has time for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tests.opdb.calls import Call, Mode, calls_of, cells_of, operators

MOST: Mapping[Mode, int] = {"inference": 4, "training": 1}
"""Samples of an operator: one that is taken back to its inputs is captured and planned twice, which takes half a second."""


def chosen(group: int, groups: int, mode: Mode) -> Iterator[Call]:
    """Gives one of `groups` equal parts of the chosen calls of one mode.

    Each operator gives samples of one of its cells, which one changes from operator to operator, spread over the cell.
    """
    for number, name in enumerate(operators()):
        if number % groups != group:
            continue
        cells = cells_of(name)
        cell = cells[(number // groups) % len(cells)] if cells else None
        if cell is not None and cell.mode == mode:
            calls = list(calls_of(cell))
            yield from calls[:: max(1, math.ceil(len(calls) / MOST[mode]))]
