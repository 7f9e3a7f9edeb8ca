"""Memory of large results, kept for a later call once nothing else refers to it.

The kernel clears fresh memory before it hands it out, which takes longer than most loops that then fill it: in programs
with tensors of 32 MB, between a third and three quarters of a call.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence

import torch

from .pages import ask_for_large_pages
from .torch_private import storage_use_count

_NOBODY_ELSE = 2
"""The Python references to a storage without other owners: that of a variable, and that of the call which counts them."""
OVERSIZED = 4
"""Factor by which a workspace is much larger than needed."""
MAX_OVERSIZED = 64
"""Number of calls in a row after which a workspace that is much larger than needed is replaced."""


class Kept:
    """Large pieces of memory that one executable fills call by call. Several threads may allocate at once."""

    def __init__(self, most_bytes: int) -> None:
        """Allow all executables of the process together to keep `most_bytes`; 0 keeps nothing."""
        self._most_bytes = most_bytes if storage_use_count is not None else 0
        self._pieces: dict[tuple[str, int], list[torch.UntypedStorage]] = {}
        """Storages of results by name and bytes; the sizes that came first are first."""
        self._rooms: list[torch.UntypedStorage] = []
        """Storages of workspaces, of any sizes."""
        self._n_oversized = 0
        """Number of latest calls in a row whose workspace was much larger than needed."""
        _KEEPERS[id(self)] = self

    @property
    def bytes(self) -> int:
        """The bytes that this executable keeps, in use or not."""
        results = sum(len(pieces) * bytes_ for (_, bytes_), pieces in tuple(self._pieces.items()))
        return results + sum(room.nbytes() for room in tuple(self._rooms))

    def tensor(
        self, name: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, bytes_: int
    ) -> torch.Tensor:
        """Return an uninitialised tensor over `bytes_` of memory that nothing else refers to."""
        key = (name, bytes_)
        storage = _popped(self._pieces.get(key))
        is_new, is_kept = storage is None, storage is not None
        if storage is not None and not (sys.getrefcount(storage) == _NOBODY_ELSE and _is_free(storage, bytes_)):
            storage, is_new = None, True  # the other owner may keep it
        if storage is None:
            storage = torch.UntypedStorage(bytes_)
            is_kept = self._has_room(bytes_)
        result = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape), tuple(strides))
        if is_new:
            ask_for_large_pages(result)
        if is_kept:  # its use count marks it as in use until the result is gone
            self._pieces.setdefault(key, []).append(storage)
        return result

    def workspace(self, bytes_: int) -> torch.Tensor:
        """Return uninitialised bytes, at least that many, in memory that nothing else refers to.

        Unlike a result, it may be larger than needed: calls of changing sizes share one piece, which grows to the largest.
        One that many calls in a row hardly use is given up: a rare peak does not take the memory of results for good.
        """
        room = self._free_room(bytes_)
        self._n_oversized = self._n_oversized + 1 if room is not None and room.nbytes() > OVERSIZED * bytes_ else 0
        if self._n_oversized >= MAX_OVERSIZED:
            room, self._n_oversized = None, 0
        is_new = room is None
        if room is None:
            room = torch.UntypedStorage(bytes_)
        result = torch.empty(0, dtype=torch.uint8, device="cpu").set_(room)
        if is_new:
            ask_for_large_pages(result)
        if not is_new or self._has_room(bytes_):
            self._rooms.append(room)
        return result

    def _free_room(self, bytes_: int) -> torch.UntypedStorage | None:
        """Return a free workspace that is large enough; forget free ones that are smaller."""
        in_use: list[torch.UntypedStorage] = []
        found = None
        while found is None:
            storage = _popped(self._rooms)
            if storage is None:
                break
            if sys.getrefcount(storage) != _NOBODY_ELSE or not _is_free(storage, storage.nbytes()):
                in_use.append(storage)  # another thread's call uses it
            elif storage.nbytes() >= bytes_:
                found = storage
        self._rooms += in_use
        return found

    def _has_room(self, bytes_: int) -> bool:
        """Return whether that many more bytes may be kept; drop other sizes, which may never come again, to make room."""
        if bytes_ > self._most_bytes:
            return False
        for key, pieces in tuple(self._pieces.items()):
            is_full = kept_bytes() + bytes_ > self._most_bytes
            if not pieces or (is_full and key[1] != bytes_):
                self._pieces.pop(key, None)
        return kept_bytes() + bytes_ <= self._most_bytes


_KEEPERS: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()


def kept_bytes() -> int:
    """Return the bytes that all executables of this process keep."""
    # Counted on demand: a running total would need a lock, which a destructor must not wait for.
    return sum(keeper.bytes for reference in _KEEPERS.valuerefs() if (keeper := reference()) is not None)


def _popped(pieces: list[torch.UntypedStorage] | None) -> torch.UntypedStorage | None:
    try:
        return pieces.pop() if pieces is not None else None
    except IndexError:
        return None


def _is_free(storage: torch.UntypedStorage, bytes_: int) -> bool:
    """Return whether no tensor uses the memory, its size is unchanged, and no other process shares it."""
    return storage_use_count(storage._cdata) == 1 and storage.nbytes() == bytes_ and not storage.is_shared()  # pyright: ignore[reportPrivateUsage]
