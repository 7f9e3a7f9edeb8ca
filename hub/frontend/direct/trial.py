"""Which calls need Dynamo no longer, and which are faster in eager: with many graphs in a call they may be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

N_TRIALS = 12
"""Calls in each way that decide between them."""
MIN_GAIN = 0.05
"""Fraction of a call's time that eager must save, or the calls stay as they are: that may be noise."""


MAX_PAUSE = 1024
"""Maximum number of calls through Dynamo between two attempts to skip it: for models that change in every call."""


@dataclass(slots=True)
class Pause:
    """Calls to wait until the next attempt to skip Dynamo: more after each that failed."""

    n_calls: int = 0
    _left: int = 0

    def is_over(self) -> bool:
        """Return whether to attempt it now. If not, count the call."""
        if self._left > 0:
            self._left -= 1
            return False
        return True

    def reset(self) -> None:
        """Begin with short pauses again, after an attempt that has paid off."""
        self.n_calls = 0

    def grow(self) -> None:
        """Wait twice as long as the last time."""
        self._left = self.n_calls = min(max(1, 2 * self.n_calls), MAX_PAUSE)


class Trial:
    """Calls of one form, some through Dynamo and some in eager, until it is known which are faster.

    Plans are compared with eager graph by graph. What Dynamo's guards and the Python between graphs cost shows only here.
    """

    def __init__(self) -> None:
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        """Seconds of calls through Dynamo (False) and in eager (True)."""
        self.is_eager: bool | None = None
        """The choice; None until it is made."""

    def run(self, compiled: Callable[[], Any], eager: Callable[[], Any], is_planned: Callable[[], bool]) -> Any:
        """Run one call in the way whose turn it is, or in the chosen one.

        It counts if the plans of all graphs are in use before and after it.
        """
        is_eager = self.is_eager
        if is_eager is not None:
            return eager() if is_eager else compiled()
        number = sum(map(len, self._seconds.values()))
        is_eager = number % 4 in (1, 2)  # not every second call, which may be of another kind each time
        if not is_planned():
            return compiled()
        start = time.perf_counter()
        result = eager() if is_eager else compiled()
        seconds = time.perf_counter() - start
        if is_planned():
            self._seconds[is_eager].append(seconds)
        if min(map(len, self._seconds.values())) >= N_TRIALS:
            self.is_eager = self.eager_s < (1 - MIN_GAIN) * self.compiled_s
        return result

    @property
    def eager_s(self) -> float:
        """Median of the seconds of a call in eager."""
        return statistics.median(self._seconds[True])

    @property
    def compiled_s(self) -> float:
        """Median of the seconds of a call through Dynamo."""
        return statistics.median(self._seconds[False])


def usual(trials: Collection[Trial]) -> Trial | None:
    """Return a trial whose choice is eager if that is the choice of most; else None."""
    decided = [trial for trial in trials if trial.is_eager is not None]
    in_eager = [trial for trial in decided if trial.is_eager]
    return in_eager[0] if 2 * len(in_eager) > len(decided) else None
