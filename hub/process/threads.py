"""PyTorch's thread count, set without telling MKL.

`torch.set_num_threads` tells MKL a count for the calling thread, and forbids it to use fewer in any. Threads that start
later do so, too. From then on MKL opens a team of threads for each product, even within a parallel region, such as
PyTorch's attention: a team of one, and two system calls. Left alone, MKL follows OpenMP's count (`python -m
benchmarks.mkl_threads`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class _Libraries:
    """Functions of the OpenMP and the MKL that PyTorch was built with."""

    set_count: Callable[[int], object]
    """Set OpenMP's count for the calling thread. PyTorch reads it."""
    set_of_mkl: Callable[[int], int]
    """Set MKL's count for the calling thread, 0 for none, and return the one before."""
    set_dynamic: Callable[[int], object]
    """Set whether MKL may use fewer threads than it is told, in the whole process."""
    is_dynamic: Callable[[], int]
    pause: Callable[[int], int]
    """OpenMP's `omp_pause_resource_all`: end the calling thread's team of threads."""


def set_threads(count: int) -> None:
    """Set PyTorch's thread count: for this thread, and if MKL was told one, for each that starts later, as PyTorch does."""
    if is_told():
        torch.set_num_threads(count)
    else:
        _set_here(count)


@contextlib.contextmanager
def using_threads(count: int) -> Generator[None]:
    """Set PyTorch's thread count for this thread until the block ends."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    _set_here(count)
    try:
        yield
    finally:
        _set_here(before)


def is_told() -> bool:
    """Return whether this process has told MKL how many threads to use, by `torch.set_num_threads`."""
    found = _libraries()
    return found is not None and not found.is_dynamic()


def tell() -> None:
    """Tell MKL, as `torch.set_num_threads` does."""
    torch.set_num_threads(torch.get_num_threads())


def untell() -> None:
    """Take back, for this thread, what MKL was told."""
    if (found := _libraries()) is not None:
        found.set_of_mkl(0)
        found.set_dynamic(1)


def release_openmp() -> None:
    """End this thread's OpenMP threads, which would busy-wait for milliseconds. The next parallel region starts new ones.

    Both together take 0.1 ms; without OpenMP threads, nothing.
    """
    global _n_releases
    _n_releases += 1
    if (found := _libraries()) is not None:
        found.pause(_SOFT)


_n_releases = 0


def n_releases() -> int:
    """Return how often OpenMP's threads were ended in this process."""
    return _n_releases


_SOFT = 1
"""OpenMP's `omp_pause_soft`: what the user set, such as thread counts, is kept."""


def _set_here(count: int) -> None:
    torch.get_num_threads()  # a thread's first use of PyTorch sets the count
    if (found := _libraries()) is None:
        torch.set_num_threads(count)
        return
    found.set_count(count)
    if found.set_of_mkl(0):
        found.set_of_mkl(count)


@cache
def _libraries() -> _Libraries | None:
    """Return the functions; None if PyTorch was built without MKL, or with another kind of threads."""
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        with contextlib.suppress(OSError, AttributeError):
            own = ctypes.CDLL(str(path))
            mkl = own.MKL_Set_Num_Threads_Local, own.MKL_Set_Dynamic, own.mkl_serv_get_dynamic
            return _Libraries(own.omp_set_num_threads, *mkl, own.omp_pause_resource_all)
    return None
