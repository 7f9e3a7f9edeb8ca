"""Work that several workers take one piece after the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence


class Queue:
    """Places of pieces of work, given out in order, no more of one backend at once than it may have. Any thread may ask."""

    def __init__(self, backends: Sequence[str], most: Mapping[str, int]) -> None:
        """`backends` has one for each piece."""
        self._backends = backends
        self._most = most
        self._waiting = list(range(len(backends)))
        self._running: Counter[str] = Counter()
        self._changed = threading.Condition()

    def take(self, fits: Callable[[int], bool] = lambda _: True) -> int | None:
        """Return the first piece that fits and may start, once there is one; None where none that fits is left."""
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
        """Make room for the next piece of the same backend; one that `is_left` waits again for somebody to take it."""
        with self._changed:
            self._running[self._backends[place]] -= 1
            if is_left:
                self._waiting = sorted((*self._waiting, place))
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing any more."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()
