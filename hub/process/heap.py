"""Recognizes a lack of memory, and returns freed memory that the C library keeps to the system."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import torch

from hub.errors import text_of


def trim() -> None:
    """Return free heap memory to the system, if the C library can (glibc).

    The C library keeps free memory between live blocks, and planning leaves small blocks all over the memory of tensors
    that it no longer needs. Takes milliseconds, compared with seconds for a plan.
    """
    if (function := _malloc_trim()) is not None:
        function(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def is_lack_of_memory(error: BaseException | None) -> bool:
    """Return True for errors raised when there is no memory left."""
    # PyTorch's CPU allocator has no exception type of its own for this.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in text_of(error)
    )
