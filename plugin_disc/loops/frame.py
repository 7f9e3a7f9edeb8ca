"""Frames: arrays of 64-bit numbers by which a call passes arguments to the machine program, and the program to its stages.

Each slot has a Python expression that the binding evaluates at every call: an address, a size or a number. So arithmetic
on symbolic sizes is done once a call, and the loops only read the results. Each stage has its own frame, filled from the
program's, so that equal stages on different memory share one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hub.toolkit.sizes import Size, python_text

OUTSIDE = "0"
"""The text of the first slot, in which the program reports an index out of range."""


class Frame:
    """Slots in order of first use."""

    def __init__(self, symbols: Mapping[Any, str]) -> None:
        self.symbols = symbols
        """The Python text that reads each symbol."""
        self.slots: dict[str, int] = {OUTSIDE: 0}
        """The text of each slot -> its place."""

    def slot(self, text: str) -> int:
        """Return the place of the slot that holds the value of a Python expression."""
        return self.slots.setdefault(text, len(self.slots))

    def size(self, size: Size) -> int:
        """Return the place of the slot that holds a symbolic size."""
        return self.slot(python_text(size, self.symbols))

    def function(self, name: str) -> int:
        """Return the place of the slot that holds the address of a function of PyTorch's library."""
        return self.slot(f"address[{name!r}]")
