"""Sample calls of one operator: arguments as descriptions, from which seeded tensors are made on demand.

A description costs nothing, prints well in a test's name, and gives the same values in every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from hub.plugin.table import elements
from hub.torch_private import pytree

Fill = Literal["normal", "positive", "unit", "integers", "booleans", "distinct", "blocks", "values"]
Layout = Literal["contiguous", "transposed", "strided", "expanded", "channels_last"]


@dataclass(frozen=True, slots=True)
class Made:
    """Description of a tensor: shape, dtype, source of values, memory layout."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Fill
    low: int = 0
    high: int = 0
    """Integers are drawn from low to high, high excluded; blocks of equal values have length `low`."""
    values: tuple[Any, ...] = ()
    layout: Layout = "contiguous"

    @property
    def T(self) -> Made:  # noqa: N802 - torch's own name
        """The transpose of a contiguous tensor: last two dims swapped, memory unchanged."""
        return replace(self, layout="transposed", shape=(*self.shape[:-2], self.shape[-1], self.shape[-2]))

    @property
    def strided(self) -> Made:
        """Return the same tensor as every second element of a larger one, from an offset."""
        return replace(self, layout="strided")

    @property
    def expanded(self) -> Made:
        """Return the same shape, with stride 0 in the first dim."""
        return replace(self, layout="expanded")

    @property
    def last(self) -> Made:
        """Return the same tensor with channels last in memory."""
        return replace(self, layout="channels_last")

    def build(self, generator: torch.Generator) -> torch.Tensor:
        """Make the tensor, drawing its values from the generator."""
        return _laid_out(_filled(self, generator), self.layout)

    def __str__(self) -> str:
        what = str(list(self.values or self.shape)).replace(" ", "")
        how = "" if self.layout == "contiguous" else f" {self.layout}"
        return f"{str(self.dtype).removeprefix('torch.')}{what}{how}"


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One call: positional and keyword arguments, tensors as `Made`."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: tuple[int, ...] | None = None
    """Positions of the outputs of a tuple that are read; None means all."""
    has_values: bool = True
    """False if only shape and dtype are defined, as for `empty`."""

    def build(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make the arguments. Every call of this returns equal values in new tensors."""
        generator = torch.Generator().manual_seed(7)
        return pytree.tree_map_only(Made, lambda made: made.build(generator), (self.arguments, dict(self.keywords)))

    def reads(self, *outputs: int) -> Sample:
        """Return the same call, of which only these outputs are read."""
        return replace(self, outputs=outputs)

    @property
    def without_values(self) -> Sample:
        """Return the same call, of whose result only shape and dtype are defined."""
        return replace(self, has_values=False)

    def __str__(self) -> str:
        words = [*map(_word, self.arguments), *(f"{name}={_word(value)}" for name, value in self.keywords.items())]
        text = ", ".join(words)
        return text if self.outputs is None else f"{text} -> {list(self.outputs)}"


Table = dict[str, tuple[Sample, ...]]
"""Samples by overload name ("aten.add.Tensor")."""


def call(*arguments: Any, **keywords: Any) -> Sample:
    """Return a sample of a call with these arguments."""
    return Sample(arguments, keywords)


def rows(names: str, *samples: Sample) -> Table:
    """Return the same samples for several overloads, named as "relu.default silu.default"."""
    return {f"aten.{name}": samples for name in names.split()}


# --- Tensors ----------------------------------------------------------------------------------------------------------


def f(*shape: int, dtype: torch.dtype = torch.float32) -> Made:
    """Describe normal values."""
    return Made(shape, dtype, "normal")


def f64(*shape: int) -> Made:
    """Describe normal values in float64."""
    return f(*shape, dtype=torch.float64)


def f16(*shape: int) -> Made:
    """Describe normal values in float16."""
    return f(*shape, dtype=torch.float16)


def bf16(*shape: int) -> Made:
    """Describe normal values in bfloat16."""
    return f(*shape, dtype=torch.bfloat16)


def pos(*shape: int, dtype: torch.dtype = torch.float32) -> Made:
    """Describe values from 0.1 to 2.1."""
    return Made(shape, dtype, "positive")


def unit(*shape: int, dtype: torch.dtype = torch.float32) -> Made:
    """Describe values from -0.95 to 0.95."""
    return Made(shape, dtype, "unit")


def i64(*shape: int, low: int = -6, high: int = 7, dtype: torch.dtype = torch.int64) -> Made:
    """Describe integers from low to high, high excluded."""
    return Made(shape, dtype, "integers", low, high)


def i32(*shape: int, low: int = -6, high: int = 7) -> Made:
    """Describe integers in int32, from low to high, high excluded."""
    return i64(*shape, low=low, high=high, dtype=torch.int32)


def u8(*shape: int) -> Made:
    """Describe integers from 0 to 255 in uint8."""
    return i64(*shape, low=0, high=256, dtype=torch.uint8)


def at(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> Made:
    """Describe indices from 0 to `below`, excluded."""
    return Made(shape, dtype, "integers", 0, below)


def b(*shape: int) -> Made:
    """Describe booleans."""
    return Made(shape, torch.bool, "booleans")


def distinct(*shape: int, dtype: torch.dtype = torch.float32) -> Made:
    """Describe shuffled whole numbers around zero, without ties."""
    return Made(shape, dtype, "distinct")


def ties(*shape: int, kinds: int = 3, dtype: torch.dtype = torch.float32) -> Made:
    """Describe few values, each repeated many times: whole numbers from 0, `kinds` of them."""
    return i64(*shape, low=0, high=kinds, dtype=dtype)


def blocks(count: int, length: int, dtype: torch.dtype = torch.float32) -> Made:
    """Describe a vector of `count` values in blocks of `length` equal ones."""
    return Made((count,), dtype, "blocks", length)


def lit(*values: Any, dtype: torch.dtype | None = None) -> Made:
    """Describe a vector of exactly these values, by default in the dtype that `torch.tensor` gives them."""
    return Made((len(values),), dtype or torch.tensor(values).dtype, "values", values=values)


def _filled(made: Made, generator: torch.Generator) -> torch.Tensor:
    shape = made.shape
    if made.fill == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(made.dtype)
    if made.fill == "positive":
        return (0.1 + 2 * torch.rand(shape, generator=generator, dtype=torch.float64)).to(made.dtype)
    if made.fill == "unit":
        return (1.9 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.95).to(made.dtype)
    if made.fill == "integers":
        return torch.randint(made.low, made.high, shape, generator=generator).to(made.dtype)
    if made.fill == "booleans":
        return torch.rand(shape, generator=generator) < 0.5
    if made.fill == "distinct":
        count = math.prod(shape)
        return (torch.randperm(count, generator=generator) - count // 2).reshape(shape).to(made.dtype)
    if made.fill == "blocks":
        return torch.arange(math.prod(shape)).div(made.low, rounding_mode="floor").reshape(shape).to(made.dtype)
    return torch.tensor(made.values, dtype=made.dtype)


def _laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    if layout == "strided":
        wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    if layout == "expanded":
        return tensor[:1].expand(tensor.shape)
    if layout == "channels_last":
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, elements(value)))}]"
    return str(value).removeprefix("torch.")
