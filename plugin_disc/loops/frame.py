"""The frame: one row of 64-bit numbers through which a call reaches the machine program.

Each slot has a Python expression that the binding evaluates at every call: addresses, sizes, numbers. So all arithmetic on
symbolic sizes is done once a call, and the loops only read the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..sizes import Size, python_text


class Frame:
    """Slots in order of first use."""

    def __init__(self, symbols: Mapping[Any, str]) -> None:
        self.symbols = symbols
        """Python text that reads each symbol."""
        self.slots: dict[str, int] = {"0": 0}
        """Text of each slot -> its place. The first slot is where the program reports an index out of range."""

    def slot(self, text: str) -> int:
        """Gives the place of the slot that holds the value of a Python expression."""
        return self.slots.setdefault(text, len(self.slots))

    def size(self, size: Size) -> int:
        """Gives the place of the slot that holds a symbolic size."""
        return self.slot(python_text(size, self.symbols))

    def function(self, name: str) -> int:
        """Gives the place of the slot that holds the address of a function of PyTorch's library."""
        return self.slot(f"address[{name!r}]")
