"""Steps of the suite: the values exchanged between the leading process and the examining process."""

from __future__ import annotations

from dataclasses import dataclass

HANDSHAKE = "handshake"


@dataclass(frozen=True, slots=True)
class Step:
    """One subject of one examination: the unit that is examined at a time, and that a crash loses."""

    examination: str
    subject: str
    check: str
    """The check under which a crash is reported."""


@dataclass(frozen=True, slots=True)
class Description:
    """The steps there are to examine."""

    names: tuple[str, ...]
    """Every registered backend."""
    package: str
    """Distribution and version that provide the backend; empty if it is not registered."""
    steps: tuple[Step, ...]
