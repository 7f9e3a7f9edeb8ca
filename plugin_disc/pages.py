"""Large pages for large results: the first touch of fresh memory costs more than the loops that fill it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

import torch

PAGE = 2 << 20
"""Bytes of a large page on x86-64."""
LARGE = 2 * PAGE
"""Bytes from which on results ask for large pages. A copy of 67 MB into fresh memory then takes half the time
(Linux 6.18 on a virtual EPYC 9004, 2026-11)."""
SMALL = 128 << 10
"""Bytes below which the C library hands out memory again that it already has (glibc's first `M_MMAP_THRESHOLD`)."""
_MADV_HUGEPAGE = 14


def ask_for_large_pages(tensor: torch.Tensor) -> None:
    """Ask the kernel to back the untouched memory of a tensor by large pages; the kernel is free to refuse."""
    begin = -(-tensor.data_ptr() // PAGE) * PAGE
    end = (tensor.data_ptr() + tensor.nbytes) // PAGE * PAGE
    if end > begin:
        _advise()(begin, end - begin, _MADV_HUGEPAGE)


@cache
def _advise() -> Callable[[int, int, int], int]:
    """Return the C library's `madvise`; a function that does nothing if the system has none."""
    if not sys.platform.startswith("linux"):
        return lambda _address, _length, _advice: 0
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
