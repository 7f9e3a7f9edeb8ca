"""Numbers and names in readable form."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_NAMES = 4
"""Names to list before "and 9 more"."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def duration(seconds: float | None) -> str:
    """Return seconds with three digits and a unit: "36.1 ms"; "-" for None."""
    if seconds is None:
        return "-"
    scale, unit = next((pair for pair in _UNITS if seconds >= 0.9995 * pair[0]), _UNITS[-1])
    return f"{_digits(seconds / scale)} {unit}"


def spread(median_s: float, spread_s: float) -> str:
    """Return a median with half the width of its interval: "36.1 ms +- 1.1 %"; without the interval if that is 0."""
    if not spread_s or not median_s:
        return duration(median_s)
    return f"{duration(median_s)} +- {100 * spread_s / median_s:.1f} %"


def megabytes(size_bytes: int) -> str:
    """Return bytes in a readable unit: "12 MB", "3.4 GB"."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def ratio(value: float, best: float) -> str:
    """Return a time as a multiple of the best: "1.07x"; "-" if the best took no time."""
    return f"{value / best:.2f}x" if best > 0 else "-"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 node", "12 nodes", "2 entries"."""
    several = f"{noun[:-1]}ies" if noun[-1:] == "y" and noun[-2:-1] not in tuple("aeiou") else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def names_text(names: Iterable[str]) -> str:
    """Return some names, and the number of others."""
    listed = list(names)
    rest = len(listed) - _SHOWN_NAMES
    return ", ".join(listed) if rest <= 1 else f"{', '.join(listed[:_SHOWN_NAMES])} and {rest} more"


def _digits(value: float) -> str:
    """Return three significant digits, never in powers of ten."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
