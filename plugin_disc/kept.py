"""Memory of large results, kept for a later call once nobody else has it.

The kernel clears fresh memory before it gives it out, which takes longer than most loops that then fill it: of programs
with tensors of 32 MB, between a third and three quarters of a call.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .pages import ask_for_large_pages

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)  # pyright: ignore[reportPrivateUsage] - no public way
"""How many tensors, in Python and in C++, have some memory; what CUDA graphs in PyTorch ask before they write to theirs."""
_NOBODY_ELSE = 2
"""References to a storage in Python where nobody else has one: a variable's, and that of the call which counts them."""


class Kept:
    """Large pieces of memory that one executable fills call by call. May be asked from several threads at once."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` is what all executables of the process together may keep; 0 keeps nothing."""
        self._most_bytes = most_bytes if _use_count is not None else 0
        self._pieces: dict[tuple[str, int], list[torch.UntypedStorage]] = {}
        """By name and bytes; those of sizes that came first, first."""
        _KEEPERS[id(self)] = self

    @property
    def bytes(self) -> int:
        """What this executable keeps, in use or not."""
        return sum(len(pieces) * bytes_ for (_, bytes_), pieces in tuple(self._pieces.items()))

    def tensor(
        self, name: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, bytes_: int
    ) -> torch.Tensor:
        """Return a tensor over `bytes_` of memory that nobody else has, whatever its content."""
        key = (name, bytes_)
        storage = _popped(self._pieces.get(key))
        is_new, is_kept = storage is None, storage is not None
        if storage is not None and not (sys.getrefcount(storage) == _NOBODY_ELSE and _is_free(storage, bytes_)):
            storage, is_new = None, True  # whoever has it may keep it
        if storage is None:
            storage = torch.UntypedStorage(bytes_)
            is_kept = self._has_room(bytes_)
        result = torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape), tuple(strides))
        if is_new:
            ask_for_large_pages(result)
        if is_kept:  # in use, which its count says, until the result is gone
            self._pieces.setdefault(key, []).append(storage)
        return result

    def _has_room(self, bytes_: int) -> bool:
        """Return whether as many bytes more may be kept; other sizes, which may never come again, make room."""
        if bytes_ > self._most_bytes:
            return False
        for key, pieces in tuple(self._pieces.items()):
            is_full = kept_bytes() + bytes_ > self._most_bytes
            if not pieces or (is_full and key[1] != bytes_):
                self._pieces.pop(key, None)
        return kept_bytes() + bytes_ <= self._most_bytes


_KEEPERS: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()


def kept_bytes() -> int:
    """Return what all executables of this process keep."""
    # Counted when asked for: a running total would need a lock, which a destructor must not wait for.
    return sum(keeper.bytes for reference in _KEEPERS.valuerefs() if (keeper := reference()) is not None)


def _popped(pieces: list[torch.UntypedStorage] | None) -> torch.UntypedStorage | None:
    try:
        return pieces.pop() if pieces is not None else None
    except IndexError:
        return None


def _is_free(storage: torch.UntypedStorage, bytes_: int) -> bool:
    """Return True for memory that no tensor has, that is as large as it was, and that no other process sees."""
    return _use_count(storage._cdata) == 1 and storage.nbytes() == bytes_ and not storage.is_shared()  # pyright: ignore[reportPrivateUsage]
