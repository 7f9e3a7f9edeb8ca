"""A fixed choice of sample calls, a tenth of all: what `make test` has time for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.opdb.calls import Call, Cell, Mode, calls_of, cells_of, operators

MOST = 4
"""Samples of an operator in one dtype. With gradients, which take three times as long, it is one in one dtype."""


def chosen(group: int, groups: int, mode: Mode) -> Iterator[Call]:
    """Yield one of `groups` equal parts of the chosen calls of one mode; every operator is in one of them."""
    for number, name in enumerate(operators()):
        if number % groups == group:
            cells = [cell for cell in cells_of(name) if cell.mode == mode]
            if mode == "inference":
                yield from (call for cell in cells for call in spread(cell, MOST))
            elif cells:
                yield from spread(cells[number // groups % len(cells)], 1)


def spread(cell: Cell, most: int) -> Iterator[Call]:
    """Yield up to so many samples of a cell, evenly spread over all of them."""
    calls = list(calls_of(cell))
    n = min(most, len(calls))
    yield from (calls[place * len(calls) // n] for place in range(n))
