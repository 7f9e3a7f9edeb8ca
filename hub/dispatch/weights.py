"""Notices, on every call, whether the weights that executables hold as constants are still the model's weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, cast

import torch

_version: Callable[[torch.Tensor], int] = cast("Any", torch.Tensor)._version.__get__
_address = torch.Tensor.data_ptr
_held: Callable[[torch.Tensor], torch.Tensor] = cast("Any", torch.Tensor).data.__get__
"""Returns a tensor that lies where this one lies now, and stays there. Unlike `detach` it never lets another thread of
Python in, which might swap `.data` halfway; a version counter of its own does no harm, since the weight's own is read."""
_NEVER = (-1,)
"""Identities that no weights have."""


class WeightGuard:
    """Remember identity, version counter and address of each weight, and keep none of them alive, but their memory.

    Memory that is held is given to nobody else, so that an address says which memory it is.

    Together they notice a new `Parameter`, an in-place write (`load_state_dict`, an optimizer step, `copy_` without
    gradients) and a swapped `.data`. A write through an alias that has a version counter of its own (`w.data.mul_(2)`, a
    NumPy view) cannot be seen; `hub.refresh(model)` announces one.

    Once a weight is freed, the guard never holds again, and `ended` is called: in whichever thread frees it, at any moment,
    so that it must not wait for a lock.
    """

    __slots__ = ("__weakref__", "_addresses", "_identities", "_pick", "_references", "_versions", "held")

    def __init__(self, positions: Sequence[int], args: Sequence[Any], ended: Callable[[], None] = lambda: None) -> None:
        self._pick = _picker(positions)
        weights = self._pick(args)
        self.held = tuple(map(_held, weights))
        """The weights as they lie in memory, for what is built for them: their `.data` may be swapped meanwhile."""
        self._identities = tuple(map(id, weights))
        self._versions = tuple(map(_version, weights))
        self._addresses = tuple(map(_address, self.held))
        own = weakref.ref(self)

        def end(_: weakref.ref[torch.Tensor]) -> None:
            if (guard := own()) is not None:
                guard._identities = _NEVER  # before another object gets the same identity
                guard.held = ()
                ended()

        self._references = tuple(weakref.ref(weight, end) for weight in weights)

    def holds(self, args: Sequence[Any]) -> bool:
        """Return whether every weight is as it was. On the hot path: about 0.1 us a weight."""
        weights = self._pick(args)
        return (
            tuple(map(id, weights)) == self._identities
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )

    def is_fresh(self) -> bool:
        """Return whether the remembered weights live and are as they were, whoever is called with them."""
        weights = [weight for reference in self._references if (weight := reference()) is not None]
        return (
            tuple(map(id, weights)) == self._identities
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )


def on_held_storage(run: Callable[[Sequence[Any]], Any], positions: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    """Return a run that reads the tensors at these positions where they lie when it is called, whoever swaps `.data` then.

    Without, an executable would read the memory that a swap frees, and two steps might read two weights.
    """

    def on_held(args: Sequence[Any]) -> Any:
        return run(held_at(positions, args))

    return on_held if positions else run


def held_at(positions: Sequence[int], args: Sequence[Any]) -> list[Any]:
    """Return arguments with the tensors at these positions held where they lie now."""
    values = list(args)
    for position in positions:
        values[position] = _held(values[position])
    return values


def can_guard(value: Any) -> bool:
    """Return whether a change of the tensor can be noticed: inference tensors keep no version counter."""
    return isinstance(value, torch.Tensor) and not value.is_inference() and value.layout is torch.strided


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if not positions:
        return lambda _: ()
    if len(positions) == 1:
        only = positions[0]
        return lambda args: (args[only],)
    return itemgetter(*positions)
