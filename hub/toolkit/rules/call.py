"""One call of an operator, as passed to its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from hub.plugin.table import argument, declared_arguments, value_of
from hub.toolkit.builders import cast, fill
from hub.toolkit.sizes import Size, size_of
from hub.toolkit.tensors import Number, Tensor
from hub.torch_private import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from hub.torch_private import elementwise_dtypes

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


class Call:
    """A node with its arguments as tensors and sizes."""

    def __init__(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        self.node = node
        self._values = values

    def raw(self, name: str) -> Any:
        """Return an argument as it is in the graph."""
        return argument(self.node, name)

    def has(self, name: str) -> bool:
        """Return whether the operator declares an argument and it is not None."""
        return any(each.name == name for each in declared_arguments(self.node)) and self.raw(name) is not None

    def tensor(self, name: str) -> Tensor:
        """Return a tensor argument, or a number as a tensor without dims."""
        return self.as_tensor(self.raw(name))

    def first(self) -> Tensor:
        """Return the first argument."""
        return self.as_tensor(self.node.args[0])

    def as_tensor(self, value: Any) -> Tensor:
        """Return a value of the graph as a tensor."""
        if isinstance(value, fx.Node):
            return self._values[value]
        if isinstance(value, bool):
            return fill(value, "i1")
        if isinstance(value, int):
            return fill(value, "i64")
        if isinstance(value, float):
            return fill(value, "f64")
        return Number((), "i64", size_of(value))

    def tensors(self, name: str) -> list[Tensor]:
        """Return an argument that is a list of tensors."""
        return [self.as_tensor(value) for value in self.raw(name)]

    def size(self, name: str) -> Size:
        """Return an argument that is a size."""
        return self.as_size(self.raw(name))

    def as_size(self, value: Any) -> Size:
        """Return a value of the graph as a size."""
        return size_of(value_of(value))

    def sizes(self, name: str) -> tuple[Size, ...]:
        """Return an argument that is a list of sizes."""
        return tuple(self.as_size(value) for value in self.raw(name))

    def number(self, name: str) -> Any:
        """Return an argument that is a plain number."""
        return self.raw(name)

    def result(self, place: int | None = None) -> tuple[tuple[Size, ...], str]:
        """Return shape and dtype of the result, or of one of several results."""
        value = self.node.meta["val"]
        value = value if place is None else value[place]
        return tuple(size_of(size) for size in value.shape), DTYPES[value.dtype]

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of the result."""
        return self.result()[0]

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return self.result()[1]

    def promoted(self, *names: str, kind: Any = KIND.DEFAULT) -> list[Tensor]:
        """Return arguments converted to the dtype in which PyTorch computes with them."""
        values = [value_of(self.raw(name)) for name in names]
        computed, _ = elementwise_dtypes(*values, type_promotion_kind=kind)
        return [cast(self.tensor(name), DTYPES[computed]) for name in names]


Rule = Callable[[Call], Any]
"""A function from a call to its result, or to a tuple of results for an operator with several."""

INT_TO_FLOAT = KIND.INT_TO_FLOAT
"""Type promotion in which integers are computed as float32."""


def computing(source: Tensor) -> Tensor:
    """Return half precision as float32, in which PyTorch computes it, and everything else unchanged."""
    return cast(source, "f32") if source.dtype in ("f16", "bf16") else source
