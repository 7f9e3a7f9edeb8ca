"""How much of what a process ran was run by backends: where eager ran all of it, it was compared with itself."""

from __future__ import annotations

from tests.opdb.findings import Examination

LEAST_PART = 0.25
"""Operators that backends run for each call, over many operators."""
ENOUGH_CALLS, ENOUGH_OPERATORS = 200, 50
"""What has to have run for that to mean anything: of few operators nobody may take any."""


class Tally:
    """Counts over many examinations."""

    def __init__(self, least_part: float = LEAST_PART) -> None:
        """With `least_part` 0, one operator that a backend runs is enough."""
        self.least_part = least_part
        self.operators: set[str] = set()
        self.calls = 0
        self.bought = 0
        """Operators that backends ran."""

    def add(self, operator: str, examination: Examination) -> None:
        """Counts what an examination of one operator ran."""
        self.operators.add(operator)
        self.calls += examination.calls
        self.bought += examination.bought

    def complaint(self) -> str:
        """Says that backends ran too little; nothing where they ran enough, or where too little ran at all."""
        if self.calls < ENOUGH_CALLS or len(self.operators) < ENOUGH_OPERATORS:
            return ""
        if self.bought and self.bought >= self.least_part * self.calls:
            return ""
        return f"backends ran {self.bought} operators in {self.calls} calls: most of eager was compared with itself"
