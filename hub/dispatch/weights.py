"""Notices, on every call, whether the weights that executables hold as constants are still the model's weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, cast

import torch

_version: Callable[[torch.Tensor], int] = cast("Any", torch.Tensor)._version.__get__
_address = torch.Tensor.data_ptr
_NEVER = (-1,)
"""Identities that no weights have."""


class WeightGuard:
    """Remember identity, version counter and address of each weight, and keep none of them alive.

    Together they notice a new `Parameter`, an in-place write (`load_state_dict`, an optimizer step, `copy_` without
    gradients) and a swapped `.data`. A write through an alias that has a version counter of its own (`w.data.mul_(2)`, a
    NumPy view) cannot be seen; `hub.refresh(model)` announces one.

    Once a weight is freed, the guard never holds again, and `ended` is called: in whichever thread frees it, at any moment,
    so that it must not wait for a lock.
    """

    __slots__ = ("__weakref__", "_addresses", "_identities", "_pick", "_references", "_versions")

    def __init__(self, positions: Sequence[int], args: Sequence[Any], ended: Callable[[], None] = lambda: None) -> None:
        self._pick = _picker(positions)
        weights = self._pick(args)
        self._identities = tuple(map(id, weights))
        self._versions = tuple(map(_version, weights))
        self._addresses = tuple(map(_address, weights))
        own = weakref.ref(self)

        def end(_: weakref.ref[torch.Tensor]) -> None:
            if (guard := own()) is not None:
                guard._identities = _NEVER  # before another object gets the same identity
                ended()

        self._references = tuple(weakref.ref(weight, end) for weight in weights)

    def holds(self, args: Sequence[Any]) -> bool:
        """Return True where every weight is as it was. On the hot path: about 0.1 us a weight."""
        weights = self._pick(args)
        return (
            tuple(map(id, weights)) == self._identities
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )

    def is_fresh(self) -> bool:
        """Return True where the remembered weights live and are as they were, whoever is called with them."""
        weights = [weight for reference in self._references if (weight := reference()) is not None]
        return (
            tuple(map(id, weights)) == self._identities
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )


def can_guard(value: Any) -> bool:
    """True where a change of the tensor can be noticed: inference tensors keep no version counter."""
    return isinstance(value, torch.Tensor) and not value.is_inference() and value.layout is torch.strided


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if not positions:
        return lambda _: ()
    if len(positions) == 1:
        only = positions[0]
        return lambda args: (args[only],)
    return itemgetter(*positions)
