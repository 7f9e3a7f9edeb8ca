"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def columns(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> list[str]:
    """Return the lines of a table, a header first, with columns as wide as their widest cell.

    Columns named in `right` are right-aligned, as numbers should be. Lines have no trailing spaces.
    """
    table = [tuple(headers), *map(tuple, rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(headers))]
    return [_line(row, headers, widths, right) for row in table]


def _line(row: Sequence[str], headers: Sequence[str], widths: Sequence[int], right: frozenset[str]) -> str:
    cells = (
        cell.rjust(width) if header in right else cell.ljust(width)
        for cell, header, width in zip(row, headers, widths, strict=True)
    )
    return "  ".join(cells).rstrip()
