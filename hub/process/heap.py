"""Memory that the C library keeps after it was freed, and that the system can have back."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def trim() -> None:
    """Return free memory in the heap to the system, where the C library can (glibc).

    It keeps what lies between live blocks: planning leaves small ones all over the memory of the tensors that it is done
    with. Takes milliseconds, next to the seconds that a plan takes.
    """
    if (function := _malloc_trim()) is not None:
        function(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
