"""The time that planning may take: a budget that begins when a first whole plan is ready, and waits for the best ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from hub.process.working import now

EXPLORE_SHARE = 0.45
"""Share of the budget after which no piece is compiled any more, so that what their prices suggest can be."""
COMPILE_SHARE = 0.65
"""Share of the budget after which nothing is compiled any more: the rest is for timing, which decides."""
LAST_SHARE = 0.9
"""The same for variants of what won the first round of timing."""
MOST_PATIENCE = 3.0
"""Times the budget that the best choices may take, where others are ready before them."""


class Clock:
    """Counts a budget down. The compilation of the best choices is not part of it: one of them has to be in any case.

    Any thread may ask. Times are seconds of `working.now`.
    """

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self._began_s: float | None = None
        self._compile_share = COMPILE_SHARE
        self._slowest_s: dict[str, float] = {}
        self._awaited: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the budget, the first time it is called: a whole plan is ready."""
        with self._lock:
            if self._began_s is None:
                self._began_s = now()

    def wait_for(self, backends: Iterable[str]) -> None:
        """Name the backends that may well be the fastest, as far as is known: their whole plans are worth waiting for."""
        with self._lock:
            self._awaited = frozenset(backends)

    def arrived(self, backend: str) -> None:
        """End the waiting for this backend: its plan is ready, or will never be."""
        with self._lock:
            self._awaited -= {backend}

    def compiled(self, backend: str, compile_s: float) -> None:
        """Remember how long a backend took for one of its clusters."""
        with self._lock:
            self._slowest_s[backend] = max(compile_s, self._slowest_s.get(backend, 0.0))

    def compile_until(self, backend: str) -> float:
        """When a backend's last compilation has to be ready; infinite before the budget has begun."""
        share = MOST_PATIENCE if backend in self._awaited else self._compile_share
        return self._share_ends_s(share)

    def begin_last_compilations(self) -> None:
        """Allows compilations for longer: what is left to do is to time a few variants of a plan that is proven already."""
        self._compile_share = LAST_SHARE

    @property
    def left_s(self) -> float:
        """What is left of the budget; all of it before it has begun. Below zero once it is spent."""
        return self.budget_s if self._began_s is None else self._began_s + self.budget_s - now()

    def may_start(self, backend: str, *, is_needed: bool) -> bool:
        """Return whether a compilation may start now.

        One that only might help must end in time for sure: a piece of a graph compiles no longer than the graph did, and a
        worker that has to be stopped takes what it has compiled before with it.
        """
        if is_needed:
            return now() <= self.compile_until(backend)
        return now() + self._slowest_s.get(backend, 0.0) <= self._share_ends_s(EXPLORE_SHARE)

    def _share_ends_s(self, share: float) -> float:
        return math.inf if self._began_s is None else self._began_s + share * self.budget_s
