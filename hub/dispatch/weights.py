"""Notices, on every call, whether the weights that executables hold as constants are still the model's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any, cast

import torch

_version: Callable[[torch.Tensor], int] = cast("Any", torch.Tensor)._version.__get__
_address = torch.Tensor.data_ptr


class WeightGuard:
    """Remembers identity, version counter and address of each weight.

    Together they notice a new `Parameter`, an in-place write (`load_state_dict`, an optimizer step, `copy_` without
    gradients) and a swapped `.data`. A write through an alias that has a version counter of its own (`w.data.mul_(2)`, a
    NumPy view) cannot be seen; `hub.refresh(model)` announces one.
    """

    __slots__ = ("_addresses", "_pick", "_versions", "weights")

    def __init__(self, positions: Sequence[int], args: Sequence[Any]) -> None:
        self.weights: tuple[torch.Tensor, ...] = tuple(args[position] for position in positions)
        self._pick = _picker(positions)
        self._versions = tuple(map(_version, self.weights))
        self._addresses = tuple(map(_address, self.weights))

    def holds(self, args: Sequence[Any]) -> bool:
        """True where every weight is as it was. On the hot path: about 0.1 us a weight."""
        weights = self.weights
        return (
            all(map(is_, self._pick(args), weights))
            and tuple(map(_version, weights)) == self._versions
            and tuple(map(_address, weights)) == self._addresses
        )

    def is_fresh(self) -> bool:
        """True where the remembered weights themselves are as they were, whoever is called with them."""
        return (
            tuple(map(_version, self.weights)) == self._versions and tuple(map(_address, self.weights)) == self._addresses
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
