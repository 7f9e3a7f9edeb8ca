"""A queue from which several workers take one piece of work after the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence


class Queue:
    """A thread-safe queue of indices of pieces of work, in order, with a limit on concurrent pieces per backend."""

    def __init__(self, backends: Sequence[str], most: Mapping[str, int]) -> None:
        """Queue one piece of work for each item of `backends`, with at most `most` of each backend at once."""
        self._backends = backends
        self._most = most
        self._waiting = list(range(len(backends)))
        self._running: Counter[str] = Counter()
        self._changed = threading.Condition()

    def take(self, fits: Callable[[int], bool] = lambda _: True) -> int | None:
        """Wait for the first piece that fits and may start, and return it; None if none that fits is left."""
        with self._changed:
            while fitting := [place for place in self._waiting if fits(place)]:
                for place in fitting:
                    backend = self._backends[place]
                    if self._running[backend] < self._most.get(backend, 1):
                        self._waiting.remove(place)
                        self._running[backend] += 1
                        return place
                self._changed.wait()
        return None

    def done(self, place: int, *, is_left: bool = False) -> None:
        """Release the piece's slot for the next one of its backend. With `is_left`, put the piece back into the queue."""
        with self._changed:
            self._running[self._backends[place]] -= 1
            if is_left:
                self._waiting = sorted((*self._waiting, place))
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all waiting pieces."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()
