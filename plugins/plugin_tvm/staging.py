"""Decides which tensors of a program are stored in memory, each by a kernel of its own; others are computed in place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hub.toolkit.builders import copied
from hub.toolkit.reading import in_order
from hub.toolkit.sizes import Size, product
from hub.toolkit.tensors import (
    COMPUTED,
    IN_MEMORY,
    Join,
    Number,
    Pointwise,
    Product,
    Put,
    Reduce,
    Reshape,
    Scan,
    Source,
    Take,
    Tensor,
    View,
    arguments_of,
)
from plugin_tvm.functions import COSTLY

MAX_REPEATED = 12
"""Largest number of functions that are computed once for each of several readers."""
MAX_AGAIN = 1 << 15
"""Largest number of repeated function evaluations over all elements: about the cost of a separate kernel."""
MAX_IN_PLACE = 120
"""Largest number of functions in one kernel: TVM represents expressions as trees, which it walks in every pass."""


@dataclass(frozen=True)
class Stages:
    """The tensors of a program that are stored in memory."""

    kept: Mapping[Tensor, None]
    """Stored tensors, sources first: from outside, under another shape, or computed by a kernel."""
    numbers: Mapping[str, Source]
    """Inputs that are plain numbers, by name."""


def staged(outputs: Sequence[Tensor]) -> Stages:
    """Return the stored tensors of the program that computes some outputs."""
    order = in_order(outputs)
    numbers: dict[str, Source] = {}
    for tensor in order:
        if isinstance(tensor, Number) and isinstance(tensor.value, str):
            numbers.setdefault(tensor.value, Source((), tensor.dtype, tensor.value))
    kept = _Kept(order, outputs).found
    return Stages({**dict.fromkeys(numbers.values()), **kept}, numbers)


class _Kept:
    """A pass over a program, sources first, that finds the stored tensors."""

    def __init__(self, order: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.needed = _needed(order, outputs)
        self.readers = _readers(order)
        self.found: dict[Tensor, None] = {}
        self.functions: dict[Tensor, int] = {}
        self.is_costly: dict[Tensor, bool] = {}
        for tensor in order:
            self._place(tensor)

    def _place(self, tensor: Tensor) -> None:
        sources = [source for source in arguments_of(tensor) if source not in self.found]
        own = isinstance(tensor, (Pointwise, Take)) and getattr(tensor, "function", "") != "copy"
        self.functions[tensor] = own + sum(self.functions[source] for source in sources)
        self.is_costly[tensor] = getattr(tensor, "function", "") in COSTLY or any(map(self.is_costly.get, sources))
        if self._lies_in_memory(tensor):
            self.found[tensor] = None
            self.functions[tensor] = 0
            self.is_costly[tensor] = False

    def _lies_in_memory(self, tensor: Tensor) -> bool:
        if isinstance(tensor, (Source, Reshape, Product, Reduce, Scan, Put)) or tensor in self.needed:
            return True
        if not isinstance(tensor, (Pointwise, Take, Join)):
            return False
        if tensor.dtype == "bf16" and getattr(tensor, "function", "") != "copy":
            return True
        if self.functions[tensor] > MAX_IN_PLACE:
            return True
        readers = self.readers.get(tensor, ())
        is_read_again = len(readers) > 1 or any(_count(reader) != _count(tensor) for reader in readers)
        if is_read_again and self.is_costly[tensor]:
            return True
        if self._again(tensor, readers) > MAX_AGAIN:
            return True
        return len(readers) > 1 and self.functions[tensor] > MAX_REPEATED

    def _again(self, tensor: Tensor, readers: Sequence[Tensor]) -> int:
        """Return the number of functions and conditions that readers would recompute for elements, such as in windows."""
        own, *read = (_count(each) for each in (tensor, *(reader for reader in readers if not isinstance(reader, Join))))
        if not isinstance(own, int):
            return 0
        more = sum(max(0, count - own) for count in read if isinstance(count, int))
        return (self.functions[tensor] + isinstance(tensor, Join)) * more


def _needed(order: Sequence[Tensor], outputs: Sequence[Tensor]) -> Collection[Tensor]:
    """Return the tensors that must be in memory because they are read from there, or because they are outputs."""
    found = dict.fromkeys(map(root_of, outputs))
    for tensor in order:
        if isinstance(tensor, (Product, Scan, Put)):
            found.update(dict.fromkeys(_behind(source) for source in arguments_of(tensor)))
        elif isinstance(tensor, (Take, Reshape)):
            found[_behind(tensor.source)] = None
    return found


def _readers(order: Sequence[Tensor]) -> dict[Tensor, list[Tensor]]:
    """Return the readers of each tensor, through views."""
    found: dict[Tensor, list[Tensor]] = {}
    for tensor in order:
        if not isinstance(tensor, View):
            for source in arguments_of(tensor):
                found.setdefault(_behind(source), []).append(tensor)
    return found


def _behind(tensor: Tensor) -> Tensor:
    while isinstance(tensor, View):
        tensor = tensor.source
    return tensor


def _count(tensor: Tensor) -> Size:
    """Return the number of elements that are computed for a tensor."""
    return product(tensor.source.shape if isinstance(tensor, Reduce) else tensor.shape)


def root_of(tensor: Tensor) -> Tensor:
    """Return the tensor that owns a tensor's memory."""
    while isinstance(tensor, Reshape):
        tensor = tensor.source
    return tensor


def in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor, or a copy of it that can be in memory."""
    return tensor if isinstance(tensor, (*IN_MEMORY, *COMPUTED)) else copied(tensor)
