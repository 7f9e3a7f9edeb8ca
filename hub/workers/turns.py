"""Who of many may work now, where only so many can at once: the most important of those that wait."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Generator

Rank = tuple[bool, int]
"""The lower one goes first."""


class Turns:
    """So many turns at once. Any thread may ask for one."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[Rank, int]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def turn(self, rank: Rank, patience_s: float) -> Generator[None]:
        """Wait for a turn, and go on without one when the patience ends: whoever has one may hang."""
        is_mine = self._take(rank, patience_s)
        try:
            yield
        finally:
            if is_mine:
                with self._changed:
                    self._free += 1
                    self._changed.notify_all()

    def _take(self, rank: Rank, patience_s: float) -> bool:
        with self._changed:
            mine = rank, next(self._numbers)
            self._waiting.append(mine)
            try:
                is_mine = self._changed.wait_for(lambda: self._free > 0 and min(self._waiting) == mine, patience_s)
                self._free -= is_mine
                return is_mine
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
