"""Steps of the suite: what the process that leads it and the process that examines say to each other."""

from __future__ import annotations

from dataclasses import dataclass

HANDSHAKE = "handshake"


@dataclass(frozen=True, slots=True)
class Step:
    """One subject of one examination: what is examined at a time, and what a crash costs."""

    examination: str
    subject: str
    check: str
    """Under what a crash is told."""


@dataclass(frozen=True, slots=True)
class Description:
    """What there is to examine."""

    names: tuple[str, ...]
    """Every registered backend."""
    package: str
    """Distribution and version that brought the backend; empty where it is not registered."""
    steps: tuple[Step, ...]
