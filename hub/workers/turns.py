"""A semaphore with priorities: the most important of the waiting threads gets the next turn."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Generator

Rank = tuple[bool, int]
"""Priority of a thread; the lower one goes first."""


class Turns:
    """A thread-safe limit of `count` turns at once."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[Rank, int]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def turn(self, rank: Rank, patience_s: float) -> Generator[None]:
        """Wait for a turn. After `patience_s` seconds go on without one: a thread that has a turn may hang."""
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
