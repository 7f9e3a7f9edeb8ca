"""Runs frequent sizes by plans of their own, if those are faster than the plan that runs all sizes.

Planning for one combination of sizes begins once calls of these sizes have lost as much time, relative to the expected gain
of such plans, as planning takes. Earlier planning would be spent on sizes that hardly occur again, and later planning would
lose more than that. The plan is made in the background. Then calls of these sizes alternate between both plans until it is
known which is faster.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hub.dispatch.recorded import Run
from hub.errors import text_of
from hub.process.traffic import TRAFFIC

EXPECTED_GAIN = 0.2
"""Fraction of a call's time that a plan of its own is expected to save (`python -m benchmarks.sizes`)."""
MIN_PRICE_S = 10.0
"""Least seconds to assume for planning. The general plan may have come from the cache, which says nothing."""
MIN_CALLS = 32
"""Calls of one combination of sizes before a plan of its own is considered."""
N_TRIALS = 15
"""Calls by each of two plans that decide between them."""
MAX_PLANS = 4
"""Most plans for single combinations of sizes; a new one replaces the one that gained least."""
MAX_SIZES = 256
"""Most combinations of sizes to remember; a new one replaces the oldest."""


class Own(Protocol):
    """A plan for one combination of sizes, during and after planning."""

    def ready(self, args: Sequence[Any]) -> Run | None:
        """Return the callable that runs it for these arguments; None if it is not ready, or the weights have changed."""
        ...

    def is_over(self) -> bool:
        """Return whether planning has ended."""
        ...


class _Size:
    """Record of one combination of sizes."""

    def __init__(self) -> None:
        self.n_calls, self.spent_s = 0, 0.0
        self.own: Own | None = None
        self.is_begun = self.is_refused = False
        self.trials: dict[bool, list[float]] = {False: [], True: []}
        """Seconds of calls by the general plan (False) and by its own (True)."""


class _Chosen:
    """The chosen plan for one combination of sizes, and what it gained."""

    __slots__ = ("gain_s", "n_calls", "own", "run")

    def __init__(self, run: Run, own: Own | None, gain_s: float) -> None:
        self.run, self.own, self.gain_s = run, own, gain_s
        self.n_calls = 0


class FrequentSizes:
    """Dispatcher for calls of any sizes. Thread-safe."""

    def __init__(
        self,
        general: Run,
        places: Sequence[int],
        price_s: float,
        begin: Callable[[Sequence[Any]], Own | None],
        tell: Callable[[str], object],
    ) -> None:
        """Initialize with the general plan's run.

        `places` are the positions of sizes among the arguments; `price_s` is the time that planning takes. `begin` starts
        planning for these arguments. It returns None if no plan is wanted any more, and raises if none is possible. `tell`
        is called with what was chosen, and why.
        """
        self._general, self._places = general, tuple(places)
        self._price_s = max(price_s, MIN_PRICE_S)
        self._begin, self._tell = begin, tell
        self._chosen: dict[tuple[int, ...], _Chosen] = {}
        self._sizes: dict[tuple[int, ...], _Size] = {}
        self._lock = threading.Lock()
        self._pending: _Size | None = None
        """Sizes for which planning was last begun."""

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call."""
        key = tuple([args[place] for place in self._places])
        if (chosen := self._chosen.get(key)) is not None:
            chosen.n_calls += 1
            return chosen.run(args)
        return self._call_and_learn(key, args)

    def _call_and_learn(self, key: tuple[int, ...], args: Sequence[Any]) -> tuple[Any, ...]:
        size = self._size(key)
        own = size.own.ready(args) if size.own is not None else None
        is_own = own is not None and len(size.trials[True]) <= len(size.trials[False])
        run = own if own is not None and is_own else self._general
        start = time.perf_counter()
        if self._is_planning():
            with TRAFFIC:  # timings in the background wait for gaps between calls
                outputs = run(args)
        else:
            outputs = run(args)
        seconds = time.perf_counter() - start
        size.n_calls += 1
        size.spent_s += seconds
        if own is not None:
            size.trials[is_own].append(seconds)
            if min(map(len, size.trials.values())) >= N_TRIALS:
                self._choose(key, size, own)
        else:
            self._consider(key, size, args)
        return outputs

    def _size(self, key: tuple[int, ...]) -> _Size:
        with self._lock:
            found = self._sizes.setdefault(key, _Size())
            while len(self._sizes) > MAX_SIZES:
                self._sizes.pop(next(iter(self._sizes)))
        return found

    def _is_planning(self) -> bool:
        size = self._pending
        return size is not None and not size.is_refused and not (size.own is not None and size.own.is_over())

    def _consider(self, key: tuple[int, ...], size: _Size, args: Sequence[Any]) -> None:
        """Begin planning for these sizes if it pays off, and drop a plan that came to nothing."""
        if size.is_begun:
            is_over = size.own is not None and size.own.is_over()
            if size.is_refused or (is_over and size.own is not None and size.own.ready(args) is None):
                self._settle(key, _Chosen(self._general, None, 0.0))
            return
        hoped_s = EXPECTED_GAIN * size.spent_s
        if size.n_calls < MIN_CALLS or hoped_s < self._price_s or self._is_planning():
            return
        with self._lock:
            kept = [chosen for chosen in self._chosen.values() if chosen.own is not None]
            if self._is_planning() or (len(kept) >= MAX_PLANS and hoped_s <= min(map(_gained_s, kept))):
                return
            self._pending, size.is_begun = size, True
        # Not a daemon: the process must wait for it at exit, since a thread must not be cut off inside a library.
        try:
            threading.Thread(target=self._begun, args=(size, args), name="hub-frequent-sizes").start()
        except RuntimeError as error:  # the system has no thread left
            self._refuse(size, args, error)

    def _begun(self, size: _Size, args: Sequence[Any]) -> None:
        try:
            size.own = self._begin(args)
        except Exception as error:  # noqa: BLE001 - no caller waits for it, and the general plan keeps running
            self._refuse(size, args, error)
        finally:
            size.is_refused = size.own is None

    def _refuse(self, size: _Size, args: Sequence[Any], error: Exception) -> None:
        sizes = ", ".join(str(args[place]) for place in self._places)
        self._tell(f"sizes {sizes} stay with the general plan: {text_of(error)}")
        size.is_refused = True

    def _choose(self, key: tuple[int, ...], size: _Size, own: Run) -> None:
        """Use the faster plan from now on."""
        general_s, own_s = (statistics.median(size.trials[is_own]) for is_own in (False, True))
        sizes = ", ".join(map(str, key))
        taken = f"took {1e3 * own_s:.3g} ms a call, the general one {1e3 * general_s:.3g} ms"
        if own_s < general_s:
            chosen = _Chosen(own, size.own, general_s - own_s)
            text = f"sizes {sizes} have their own plan: it {taken}"
        else:
            chosen = _Chosen(self._general, None, 0.0)
            text = f"sizes {sizes} use the general plan: a specific one {taken}"
        if self._settle(key, chosen):
            self._tell(text)

    def _settle(self, key: tuple[int, ...], chosen: _Chosen) -> bool:
        """Use this plan from now on; return False if another thread has already chosen."""
        with self._lock:
            if key in self._chosen:
                return False
            self._sizes.pop(key, None)
            kept = {other: one for other, one in self._chosen.items() if one.own is not None}
            if chosen.own is not None and len(kept) >= MAX_PLANS:
                self._chosen.pop(min(kept, key=lambda other: _gained_s(kept[other])))
            self._chosen[key] = chosen
        return True


def _gained_s(chosen: _Chosen) -> float:
    return chosen.n_calls * chosen.gain_s
