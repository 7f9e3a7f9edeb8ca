"""Checks on every call whether the weights that executables hold as constants are still the model's weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, cast

import torch

_version: Callable[[torch.Tensor], int] = cast("Any", torch.Tensor)._version.__get__
_address = torch.Tensor.data_ptr
_held: Callable[[torch.Tensor], torch.Tensor] = cast("Any", torch.Tensor).data.__get__
"""Function that returns a tensor with this one's current memory, which it keeps. Unlike `detach`, it never yields to
another Python thread, which might swap `.data` midway. It has its own version counter, which is harmless, since the
weight's own is read."""
_NEVER = (-1,)
"""Identities that match no weights."""


class WeightGuard:
    """Record of identity, version counter and address of each weight. It keeps their memory alive, but not the weights.

    Held memory cannot be reused, so an address identifies the memory.

    Together they detect a new `Parameter`, an in-place write (`load_state_dict`, an optimizer step, `copy_` without
    gradients) and a swapped `.data`. A write through an alias that has a version counter of its own (`w.data.mul_(2)`, a
    NumPy view) cannot be detected; `hub.refresh(model)` announces one.

    Once a weight is freed, the guard never holds again, and `ended` is called. That happens in whichever thread frees it,
    at any moment, so `ended` must not wait for a lock.
    """

    __slots__ = ("__weakref__", "_addresses", "_identities", "_pick", "_references", "_versions", "held")

    def __init__(self, positions: Sequence[int], args: Sequence[Any], ended: Callable[[], None] = lambda: None) -> None:
        self._pick = _picker(positions)
        weights = self._pick(args)
        self.held = tuple(map(_held, weights))
        """The weights with their current memory, for code built for them: their `.data` may be swapped meanwhile."""
        self._identities = tuple(map(id, weights))
        self._versions = tuple(map(_version, weights))
        self._addresses = tuple(map(_address, self.held))
        own = weakref.ref(self)

        def end(_: weakref.ref[torch.Tensor]) -> None:
            if (guard := own()) is not None:
                guard._identities = _NEVER  # before another object can get the same identity
                guard.held = ()
                ended()

        self._references = tuple(weakref.ref(weight, end) for weight in weights)

    def holds(self, args: Sequence[Any]) -> bool:
        """Return whether every weight is unchanged. This is on the hot path: about 0.1 us per weight."""
        weights = self._pick(args)
        return (
            tuple(map(id, weights)) == self._identities
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )

    def is_among(self, weights: frozenset[int]) -> bool:
        """Return whether each weight is one of these, given by identity."""
        return weights.issuperset(self._identities)

    def is_fresh(self) -> bool:
        """Return whether the remembered weights live and are unchanged, regardless of a call's arguments."""
        weights = [weight for reference in self._references if (weight := reference()) is not None]
        return (
            tuple(map(id, weights)) == self._identities
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )


def on_held_storage(run: Callable[[Sequence[Any]], Any], positions: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    """Return a run that reads the tensors at these positions from the memory that they have when it is called.

    Otherwise, if `.data` is swapped meanwhile, an executable would read memory that the swap frees, and two steps might
    read two different weights.
    """

    def on_held(args: Sequence[Any]) -> Any:
        return run(held_at(positions, args))

    return on_held if positions else run


def held_at(positions: Sequence[int], args: Sequence[Any]) -> list[Any]:
    """Return the arguments, with the tensors at these positions replaced by ones that hold their current memory."""
    values = list(args)
    for position in positions:
        values[position] = _held(values[position])
    return values


def can_guard(value: Any) -> bool:
    """Return whether a change of the tensor can be detected: inference tensors have no version counter."""
    return isinstance(value, torch.Tensor) and not value.is_inference() and value.layout is torch.strided


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if not positions:
        return lambda _: ()
    if len(positions) == 1:
        only = positions[0]
        return lambda args: (args[only],)
    return itemgetter(*positions)
