"""Suggestions of the name that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, ignoring: str = "") -> str:
    """Return "; did you mean 'bert'?" for the nearest known name, or "" if none is near.

    Case is ignored, and so is the prefix `ignoring`, which would make any two names look alike.
    """
    found = _nearest(name, known, ignoring, cutoff=0.5)
    return f"; did you mean {found!r}?" if found else ""


def is_misspelt(name: str, known: Iterable[str], *, ignoring: str = "") -> bool:
    """Return whether a name is so near to a known one that it hardly means anything else; see `did_you_mean`."""
    return bool(_nearest(name, known, ignoring, cutoff=0.75))


def _nearest(name: str, known: Iterable[str], ignoring: str, *, cutoff: float) -> str:
    """Return the known name that is nearest, "" if none is; `cutoff` is the least share of equal letters, 0 to 1."""
    forms = {other.removeprefix(ignoring).lower(): other for other in known}
    matches = difflib.get_close_matches(name.removeprefix(ignoring).lower(), forms, n=1, cutoff=cutoff)
    return forms[matches[0]] if matches else ""
