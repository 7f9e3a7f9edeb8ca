"""Memory next to a guard page: an out-of-bounds read or write ends the process instead of going unnoticed.

With `DISC_GUARD_MEMORY=end`, every input, weight, output and workspace ends at the end of a page; with `start`, it starts
at the start of a page. Memory that was not written yet holds a pattern: NaN, or numbers far from any index. For tests
(`make test-memory`), since every call copies its inputs and asks the kernel for memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hub.plugin import OptionError, RunError

VARIABLE = "DISC_GUARD_MEMORY"
END, START = "end", "start"
PAGE = mmap.PAGESIZE
_NAN, _FAR = 0xFF, 0x7F
"""Fill bytes: floats made of the first are NaN, integers made of the second are large."""
_FAR_OF = (torch.int64, torch.int32, torch.int16, torch.int8, torch.bool)
_ACCESSIBLE = (*_FAR_OF, torch.uint8, torch.float64, torch.float32, torch.float16, torch.bfloat16)
_PROT_NONE = 0


@dataclass(frozen=True)
class _Piece:
    """One tensor's memory between two guard pages."""

    pages: mmap.mmap
    start: int
    """Offset of the tensor in the pages."""
    bytes_: int
    pattern: int

    def is_intact(self) -> bool:
        """Return whether the bytes around the tensor, in its own pages, still hold the pattern."""
        around = self.pages[PAGE : self.start] + self.pages[self.start + self.bytes_ : len(self.pages) - PAGE]
        return around.count(self.pattern) == len(around)


class Guard:
    """An allocator of guarded memory for the tensors of calls. Calls may run in several threads at once."""

    def __init__(self, side: str) -> None:
        """Put the tensors at one `side` of their pages: END or START."""
        self._side = side
        self._calls = threading.local()
        self._nowhere = self._piece(0, _NAN)

    @property
    def nowhere(self) -> int:
        """The address that replaces that of empty tensors; nothing may be read or written there."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._nowhere.pages))

    def fresh(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor filled with a pattern."""
        reach = _reach(shape, strides)
        piece = self._piece(reach * dtype.itemsize, _FAR if dtype in _FAR_OF else _NAN)
        self._pieces().append(piece)
        if not reach:
            return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
        flat = torch.frombuffer(piece.pages, dtype=dtype, count=reach, offset=piece.start)
        return flat.as_strided(tuple(shape), tuple(strides))

    def kept(self, _name: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, _: int) -> torch.Tensor:
        """Return the same; it replaces the allocator that keeps memory for later calls."""
        return self.fresh(shape, strides, dtype)

    def workspace(self, bytes_: int) -> torch.Tensor:
        """Return that many bytes; it replaces the allocator that keeps workspaces for later calls."""
        return self.fresh((bytes_,), (1,), torch.uint8)

    def placed(self, value: Any) -> Any:
        """Return a copy of a CPU tensor in guarded memory, with the same strides; return anything else unchanged."""
        if not isinstance(value, torch.Tensor) or not value.is_cpu or value.is_neg() or value.dtype not in _ACCESSIBLE:
            return value
        copy = self.fresh(value.shape, value.stride(), value.dtype)
        if value.numel():
            reach = _reach(value.shape, value.stride())
            source = value.detach().as_strided((reach,), (1,), value.storage_offset())
            places = _places(value.shape, value.stride())
            copy.as_strided((reach,), (1,), 0)[places] = source[places]
        return copy

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `run` with guarded inputs, and checks that nothing next to a tensor was written."""

        def guarded(*inputs: Any) -> Any:
            self._calls.pieces = []
            results = run(*map(self.placed, inputs))
            if not all(piece.is_intact() for piece in self._pieces()):
                raise RunError("memory next to a tensor was written", backend="disc")
            return results

        return guarded

    def _pieces(self) -> list[_Piece]:
        """Return the memory that this thread's call has allocated so far; outside of calls nothing is checked."""
        return getattr(self._calls, "pieces", [])

    def _piece(self, bytes_: int, pattern: int) -> _Piece:
        inner = -(-bytes_ // PAGE) * PAGE
        pages = mmap.mmap(-1, inner + 2 * PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        ctypes.memset(first + PAGE, pattern, inner)
        for page in (first, first + PAGE + inner):
            if _protect(page, PAGE, _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        return _Piece(pages, PAGE if self._side == START else PAGE + inner - bytes_, bytes_, pattern)


def guard() -> Guard | None:
    """Return the guard that the variable asks for; None if it is unset. Raise OptionError for another value."""
    side = os.environ.get(VARIABLE, "")
    if side and side not in (END, START):
        raise OptionError(f"{VARIABLE} is {side!r}", backend="disc", hint=f"set it to {END} or {START}, or unset it")
    return Guard(side) if side else None


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements of memory that a tensor spans."""
    return 0 if 0 in shape else 1 + sum(step * (size - 1) for size, step in zip(shape, strides, strict=True))


def _places(shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Return the offsets of a tensor's elements from its first one."""
    found = torch.zeros((), dtype=torch.int64)
    for size, step in zip(shape, strides, strict=True):
        found = found.unsqueeze(-1) + torch.arange(size if step else 1) * step
    return found.flatten()


_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
