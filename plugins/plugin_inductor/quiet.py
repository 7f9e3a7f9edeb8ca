"""Warnings that are nobody's business, ignored without losing filters that other threads add meanwhile."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Generator
from typing import Any

_ANY_MESSAGE = re.compile("(?#hub)")
"""Matches every text. An entry with it equals none that somebody else has put among the filters."""


@contextlib.contextmanager
def ignored_warnings(category: type[Warning]) -> Generator[None]:
    """Ignore warnings of a category; `warnings.catch_warnings` would reset all filters, which are the process's."""
    filters: list[Any] = warnings.filters  # pyright: ignore[reportAssignmentType] - a list, whatever its stub says
    entry = ("ignore", _ANY_MESSAGE, category, None, 0)
    filters.insert(0, entry)
    _look_up_again()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # somebody has reset the filters meanwhile
            filters.remove(entry)
        _look_up_again()


def _look_up_again() -> None:
    # Makes Python forget what it has looked up.
    warnings._filters_mutated()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
