"""Warnings of no use to the user, ignored without losing filters that other threads add at the same time."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Generator
from typing import Any

_ANY_MESSAGE = re.compile("(?#hub)")
"""A pattern that matches every text. An entry with it equals no entry that other code adds to the filters."""


@contextlib.contextmanager
def ignored_warnings(category: type[Warning]) -> Generator[None]:
    """Ignore warnings of a category. `warnings.catch_warnings` would reset all filters, which belong to the process."""
    filters: list[Any] = warnings.filters  # pyright: ignore[reportAssignmentType] - a list, despite its stub
    entry = ("ignore", _ANY_MESSAGE, category, None, 0)
    filters.insert(0, entry)
    _look_up_again()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # other code has reset the filters
            filters.remove(entry)
        _look_up_again()


def _look_up_again() -> None:
    # Makes Python discard its cache of matching filters.
    warnings._filters_mutated()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
