"""One call of an operator, as passed to its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from hub.plugin.table import argument, declared_arguments, elements, value_of
from hub.toolkit.builders import HALVES, cast, fill
from hub.toolkit.functions import halved
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

    @property
    def is_on_cpu(self) -> bool:
        """Whether eager would compute this on a CPU, whose kernels round and choose otherwise than those of GPUs."""
        return elements(self.node.meta["val"])[0].device.type == "cpu"

    def promoted(self, *names: str, kind: Any = KIND.DEFAULT, exact: Sequence[str] = ()) -> list[Tensor]:
        """Return arguments converted to the dtype in which PyTorch computes with them.

        Half precision is computed as float32, to which PyTorch converts operands of other dtypes only after rounding them
        to half precision. Its kernels pass over that rounding for the arguments named in `exact`, if they are one number.
        """
        values = [value_of(self.raw(name)) for name in names]
        computed, common = (DTYPES[dtype] for dtype in elementwise_dtypes(*values, type_promotion_kind=kind))
        if common not in HALVES:
            return [cast(self.tensor(name), computed) for name in names]
        kept = [name for name in exact if self.is_one_number(name)]
        return [cast(self.tensor(name) if name in kept else self._rounded(name, common), computed) for name in names]

    def is_number(self, name: str) -> bool:
        """Return whether an argument is a number, which may be known only at the call, and not a tensor."""
        return not isinstance(value_of(self.raw(name)), torch.Tensor)

    def is_one_number(self, name: str) -> bool:
        """Return whether an argument is a number, or a tensor of one element that eager's kernels take for a number."""
        if self.is_number(name):
            return True
        return self.is_on_cpu and all(size == 1 for size in self.tensor(name).shape)

    def rounded(self, number: float) -> float:
        """Return a known number as PyTorch rounds it if the result is in half precision."""
        return halved(number, self.dtype) if self.dtype in HALVES else number

    def _rounded(self, name: str, dtype: str) -> Tensor:
        """Return an argument in half precision; like PyTorch's conversions, by way of float32."""
        value = self.raw(name)
        if isinstance(value, (int, float)):
            return fill(halved(value, dtype), "f32")
        source = self.tensor(name)
        return source if source.dtype == dtype else cast(cast(source, "f32"), dtype)


Rule = Callable[[Call], Any]
"""A function from a call to its result, or to a tuple of results for an operator with several."""

INT_TO_FLOAT = KIND.INT_TO_FLOAT
"""Type promotion in which integers are computed as float32."""


def computing(source: Tensor) -> Tensor:
    """Return half precision as float32, in which PyTorch computes it, and everything else unchanged."""
    return cast(source, "f32") if source.dtype in ("f16", "bf16") else source
