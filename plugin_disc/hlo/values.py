"""The operands of operations: tensors, or sizes and shapes that are known before a call's loops run."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from hub.plugin import CompileError
from hub.toolkit.builders import FLOATS, HALVES, cast, fill, joined, reshaped, view
from hub.toolkit.functions import halved
from hub.toolkit.rules.call import DTYPES
from hub.toolkit.sizes import Size
from hub.toolkit.tensors import Fill, Number, Pointwise, Source, Tensor, View

from ..bindings import bindings
from ..compiler import NAME

KINDS = {
    "f64": "f64",
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "ui8": "u8",
    "i1": "i1",
    "index": "i64",
}
"""MLIR's element types -> ours."""
TORCH = {name: dtype for dtype, name in DTYPES.items()}


class UnequalSizesError(Exception):
    """An error for two sizes that have to be equal and are not yet known to be."""

    def __init__(self, one: Size, other: Size) -> None:
        super().__init__(f"{one} and {other}")
        self.sizes = one, other


@dataclass(frozen=True)
class Sizes:
    """Integers that are known before the loops run: a size, or a list of sizes such as a shape."""

    values: tuple[Size, ...]
    shape: tuple[Size, ...]
    """The shape: () for one number, (n,) for a list."""
    kind: str = "i64"
    """The dtype of the integers when they are read as a tensor."""


Value = Tensor | Sizes


@dataclass
class Given:
    """The constants and integer inputs of a program."""

    data: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The bytes of the constants stored in the library, by name."""
    held: dict[Tensor, Size] = field(default_factory=dict[Tensor, Size])
    """The inputs that are one integer each, which may serve as sizes."""

    def tensor(self, values: torch.Tensor) -> Tensor:
        """Return a tensor of constant values; a uniform one takes no memory."""
        kind, shape = DTYPES[values.dtype], tuple(values.shape)
        if values.numel() and _is_uniform(values):
            return fill(values.reshape(-1)[0].item(), kind, shape)
        name = f"c{len(self.data)}"
        self.data[name] = values.contiguous().view(torch.uint8).numpy().tobytes()
        return Source(shape, kind, name)


def _is_uniform(values: torch.Tensor) -> bool:
    """Return whether all elements are one number; zeros with different signs are not."""
    first = values.reshape(-1)[0]
    return bool(((values == first) & (values.signbit() == first.signbit())).all())


def number_of(value: Tensor) -> float | None:
    """Return the number that all elements of a constant are, or None for other tensors."""
    if isinstance(value, View):
        return number_of(value.source)
    if isinstance(value, Pointwise) and value.function == "cast" and value.dtype in FLOATS:
        number = number_of(value.arguments[0])  # numbers in half precision are casts of float32
        return number if number is None or value.dtype not in HALVES else halved(number, value.dtype)
    return value.value if isinstance(value, Fill) else None


def shape_and_kind(type_: Any) -> tuple[tuple[int | None, ...], str]:
    """Return the sizes of a type, None for dynamic ones, and its dtype. Raise CompileError if the dtype is unsupported."""
    text = str(type_)
    if not text.startswith("tensor<"):
        return (), _kind_of(text)
    ranked = bindings("ir").RankedTensorType(type_)
    sizes = tuple(None if ranked.is_dynamic_dim(dim) else ranked.get_dim_size(dim) for dim in range(ranked.rank))
    return sizes, _kind_of(str(ranked.element_type))


def _kind_of(text: str) -> str:
    if text not in KINDS:
        raise CompileError(f"elements of type {text}: {', '.join(KINDS)} here", backend=NAME)
    return KINDS[text]


def as_tensor(value: Value, given: Given) -> Tensor:
    """Return a value as a tensor."""
    if isinstance(value, Tensor):
        return value
    if all(isinstance(size, int) for size in value.values):
        whole = torch.tensor([int(size) for size in value.values], dtype=torch.int64).to(TORCH[value.kind])
        return given.tensor(whole.reshape([int(size) for size in value.shape]))
    numbers = [_number(size, value.kind) for size in value.values]
    return view(numbers[0], value.shape, ()) if len(numbers) == 1 else joined([reshaped(each, (1,)) for each in numbers], 0)


def _number(size: Size, kind: str) -> Tensor:
    return fill(size, kind) if isinstance(size, int) else cast(Number((), "i64", size), kind)


def same_size(one: Size, other: Size) -> Size:
    """Return the size that two are known to equal. Raise UnequalSizesError if they are not known to be equal."""
    if one != other:
        raise UnequalSizesError(one, other)
    return one


def is_open(size: Size) -> bool:
    """Return True if a size is a plain symbol, which may turn out to equal another size."""
    return isinstance(size, sympy.Symbol)


# --- Operations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """An operation whose operands have been read."""

    raw: Any
    operands: tuple[Value, ...]
    given: Given
    enable_amp: bool

    @property
    def name(self) -> str:
        """The operation's name, with its dialect."""
        return self.raw.name

    @property
    def kind(self) -> str:
        """The dtype of the first result."""
        return shape_and_kind(self.raw.results[0].type)[1]

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The declared sizes of the first result, None for dynamic ones."""
        return shape_and_kind(self.raw.results[0].type)[0]

    def tensor(self, place: int) -> Tensor:
        """Return an operand as a tensor."""
        return as_tensor(self.operands[place], self.given)

    def tensors(self) -> list[Tensor]:
        """Return all operands as tensors."""
        return [as_tensor(each, self.given) for each in self.operands]

    def shape(self, place: int) -> tuple[Size, ...]:
        """Return an operand that is a list of sizes. Raise CompileError if it depends on data."""
        value = self.operands[place]
        if isinstance(value, Sizes):
            return value.values
        raise self.refused(f"operand {place} depends on data, sizes have to be known before the call's loops run")

    def has(self, name: str) -> bool:
        """Return whether the operation has an attribute."""
        return name in self.raw.attributes

    def attribute(self, name: str) -> Any:
        """Return an attribute as MLIR's own object. Raise CompileError if it is missing."""
        if not self.has(name):
            raise self.refused(f"no attribute {name}")
        return self.raw.attributes[name]

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return an attribute that is a list of integers."""
        if default is not None and not self.has(name):
            return list(default)
        return [int(value) for value in self.attribute(name)]

    def word(self, name: str) -> str:
        """Return an attribute that is a word, such as LT of `#stablehlo<comparison_direction LT>`; "" if it is missing."""
        return re.split(r"[ .<>]+", str(self.attribute(name)).rstrip(">"))[-1] if self.has(name) else ""

    def refused(self, reason: str) -> CompileError:
        """Return the error for an unsupported operation, with the reason and the line."""
        place = re.search(r":(\d+):\d+\)$", str(self.raw.location))
        line = f"line {place[1]}: " if place else ""
        return CompileError(f"{line}{self.name}: {reason}", backend=NAME)


def padding_of(op: Op, value: Tensor) -> float:
    """Return the number with which an operation pads. Raise CompileError if it is not a constant."""
    number = number_of(value)
    if number is None:
        raise op.refused("padding with what is not a constant")
    return number


Rule = Callable[[Op], Value | tuple[Value, ...]]


def constant_values(op: Op, name: str = "value") -> torch.Tensor:
    """Return the numbers of a constant."""
    ir = bindings("ir")
    attribute = op.attribute(name)
    sizes, kind = shape_and_kind(op.raw.results[0].type)
    shape = [int(size) for size in sizes if size is not None]
    if isinstance(attribute, (ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr)):
        return torch.tensor(attribute.value, dtype=TORCH[kind])
    text = str(attribute)
    if text.startswith("dense_resource"):
        raise op.refused("the constant is kept apart from the program; print it in full")
    if kind == "bf16":
        return _bfloat16(text).reshape(()).expand(shape) if attribute.is_splat else _bfloat16(text).reshape(shape)
    if not shape or 0 not in shape:
        if attribute.is_splat:
            return torch.tensor(attribute.get_splat_value().value, dtype=TORCH[kind]).expand(shape)
        return _listed(attribute, kind).reshape(shape)
    return torch.empty(shape, dtype=TORCH[kind])


def _listed(attribute: Any, kind: str) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.array(attribute)).to(TORCH[kind])  # pyright: ignore[reportUnknownMemberType] - torch's


def _bfloat16(text: str) -> torch.Tensor:
    """Read numbers from the text of a constant, because the bindings have no type for them."""
    inside = text[text.index("<") + 1 : text.rindex(">", 0, text.rindex(":"))]
    if inside.startswith('"0x'):
        return torch.frombuffer(bytearray.fromhex(inside[3:-1]), dtype=torch.bfloat16).clone()
    words = [word for word in re.split(r"[\[\],\s]+", inside) if word]
    return torch.tensor([_bits(word) if word.startswith("0x") else float(word) for word in words]).bfloat16()


def _bits(word: str) -> float:
    return struct.unpack("<f", struct.pack("<I", int(word, 16) << 16))[0]
