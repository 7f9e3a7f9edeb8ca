"""The program to which a cluster is lowered: tensors, each defined by how its elements come from those of others.

Elements are numbers of a `dtype` ("f32", "i64", "i1" ...). Nothing here determines where loops run or what is stored in
memory; `groups` decides that.
"""

from __future__ import annotations

from dataclasses import dataclass

from hub.toolkit.affine import Affine, Index
from hub.toolkit.sizes import Size


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor by shape and dtype; two tensors with the same definition remain distinct."""

    shape: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Source(Tensor):
    """Packed row-major memory from outside: an input or a weight, by its name in the executable."""

    name: str


@dataclass(frozen=True, eq=False)
class Fill(Tensor):
    """One number for all elements, known at compile time."""

    value: float


@dataclass(frozen=True, eq=False)
class Number(Tensor):
    """One number for all elements, known at the call: a size, or an input that is a plain number."""

    value: Size | str
    """A size, of dtype i64, or the name of an input."""


@dataclass(frozen=True, eq=False)
class Iota(Tensor):
    """The index along a dim, in i64."""

    dim: int


@dataclass(frozen=True, eq=False)
class View(Tensor):
    """Elements of another tensor at affine positions: transposes, slices, broadcasts, windows."""

    source: Tensor
    index: Index


@dataclass(frozen=True, eq=False)
class Reshape(Tensor):
    """The same elements in row-major order in another shape; the source lies in memory."""

    source: Tensor


@dataclass(frozen=True, eq=False)
class Pointwise(Tensor):
    """A function of the elements at the same position of other tensors of this shape."""

    function: str
    arguments: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Take(Tensor):
    """Elements of a tensor in memory, at positions some of which are read from tensors of this shape (i64, nonnegative)."""

    source: Tensor
    index: tuple[Affine | Tensor, ...]


@dataclass(frozen=True, eq=False)
class Reduce(Tensor):
    """A reduction along dims, which are kept with size 1: "sum", "max", "min", "prod", "any", "all"."""

    function: str
    source: Tensor
    dims: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Join(Tensor):
    """Tensors next to each other in one piece of memory, each from an offset; uncovered elements hold `fill`."""

    pieces: tuple[tuple[Tensor, tuple[Size, ...]], ...]
    fill: float | None = None


@dataclass(frozen=True, eq=False)
class Product(Tensor):
    """Matrix products: left [..., M, K] times right [..., K, N], with equal leading dims."""

    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Scan(Tensor):
    """Cumulative results along a dim: "sum" or "prod"."""

    function: str
    source: Tensor
    dim: int


@dataclass(frozen=True, eq=False)
class Put(Tensor):
    """A tensor with elements written, one after the other, at positions given by other tensors.

    Each element of `values` is combined with the one at its position by `function`, or replaces it ("set"). Sources lie in
    memory.
    """

    function: str
    source: Tensor
    values: Tensor
    index: tuple[Affine | Tensor, ...]
    """For each dim of the source: an expression over the dims of `values`, or a tensor (i64) of its shape."""


@dataclass(frozen=True, eq=False)
class Template(Tensor):
    """A computation for which a code generator has its own kernel, computed in one go from tensors in memory.

    Subclasses specify which. They are inserted after all other changes, just before stages are made.
    """

    given: tuple[Tensor, ...]


def arguments_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that directly define a tensor."""
    if isinstance(tensor, Pointwise):
        return tensor.arguments
    if isinstance(tensor, Take):
        return (tensor.source, *(part for part in tensor.index if isinstance(part, Tensor)))
    if isinstance(tensor, Join):
        return tuple(piece for piece, _ in tensor.pieces)
    if isinstance(tensor, Product):
        return (tensor.left, tensor.right)
    if isinstance(tensor, Put):
        return (tensor.source, tensor.values, *(part for part in tensor.index if isinstance(part, Tensor)))
    if isinstance(tensor, Template):
        return tensor.given
    if isinstance(tensor, (View, Reshape, Reduce, Scan)):
        return (tensor.source,)
    return ()


IN_MEMORY = (Source, Reshape, Join, Product, Scan, Put, Template)
"""Kinds whose elements always lie packed in memory."""
COMPUTED = (Pointwise, Take, Reduce)
"""Kinds whose elements are computed in loops, and lie in memory only if something requires that."""
