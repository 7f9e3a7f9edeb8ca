"""Suggestions of the name that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, ignoring: str = "") -> str:
    """Return "; did you mean 'bert'?" for the nearest known name, or "" if none is near.

    Case is ignored, and so is the prefix `ignoring`, which would make any two names look alike.
    """
    forms = {other.removeprefix(ignoring).lower(): other for other in known}
    matches = difflib.get_close_matches(name.removeprefix(ignoring).lower(), forms, n=1, cutoff=0.5)
    return f"; did you mean {forms[matches[0]]!r}?" if matches else ""
