"""How much of what a process ran was run by backends: where eager ran all of it, it was compared with itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.opdb.findings import Examination

MIN_PART = 0.25
"""Operators that backends run for each call, over many operators."""
ENOUGH_CALLS, ENOUGH_OPERATORS = 200, 50
"""How much has to have run for that to mean anything: of few operators, backends may support none."""


class Tally:
    """Counts over many examinations."""

    def __init__(self, least_part: float = MIN_PART, *, backends: Sequence[str] = ()) -> None:
        """Require that each of `backends` runs an operator. With `least_part` 0, that is enough."""
        self.least_part = least_part
        self.backends = tuple(backends)
        self.operators: set[str] = set()
        self.calls = 0
        self.ran: Counter[str] = Counter()
        """Operators that each backend ran."""

    def add(self, operator: str, examination: Examination) -> None:
        """Count what an examination of one operator ran."""
        self.operators.add(operator)
        self.calls += examination.calls
        self.ran += examination.ran

    @property
    def bought(self) -> int:
        """Return how many operators backends ran, in total."""
        return self.ran.total()

    def complaint(self) -> str:
        """Return a message if backends ran too little; "" if they ran enough, or if too little ran at all."""
        if self.calls < ENOUGH_CALLS or len(self.operators) < ENOUGH_OPERATORS:
            return ""
        if idle := [name for name in self.backends if not self.ran[name]]:
            return f"{', '.join(idle)} ran no operator in {self.calls} calls: eager or others were compared with eager"
        if self.bought and self.bought >= self.least_part * self.calls:
            return ""
        return f"backends ran {self.bought} operators in {self.calls} calls: most of eager was compared with itself"
