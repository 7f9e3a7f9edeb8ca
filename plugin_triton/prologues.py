"""Find functions that are cheaper to compute on the tiles that a product reads than to write into memory before it.

Examples are a cast, a scale, a dequantisation: a tile of the operand is computed from tiles of inputs and weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hub.toolkit.affine import Affine, Index, composed, identity, variable
from hub.toolkit.builders import cut_index, reshaped, view
from hub.toolkit.functions import TRANSCENDENTAL
from hub.toolkit.groups import Group
from hub.toolkit.nest import memory_index
from hub.toolkit.sizes import Size, is_static, product
from hub.toolkit.tensors import (
    Fill,
    Iota,
    Number,
    Pointwise,
    Product,
    Reshape,
    Source,
    Template,
    Tensor,
    View,
)

from .attention import read_by
from .functions import ITEMSIZES

TILE = 64
"""Assumed rows and columns of the result per program: the smallest tile that rules choose for large products."""
FEW = 2
"""Largest number of tiles that recompute an expensive function rather than read its result."""
MAX_FUNCTIONS = 16


@dataclass(frozen=True, eq=False)
class Prologue:
    """Functions that compute an operand."""

    group: Group
    """The functions, in loops along the operand's dims."""
    is_spread: bool
    """True if some tensor is read along both dims of the matrix, so that values have the shape of a tile."""


@dataclass(frozen=True, eq=False)
class Multiplied(Template):
    """Matrix products with one or both operands computed by functions of tensors in memory."""

    product: Product
    left: Prologue | None
    """None if the operand lies in memory."""
    right: Prologue | None


@dataclass(frozen=True)
class _Read:
    """A read of a tensor behind an operand."""

    tensor: Tensor
    shape: tuple[Size, ...]
    """The shape that it is read under: its own, or another one with the same elements in the same order."""
    index: Index
    """The index of the element that is read, over the operand's dims."""


@dataclass
class _Operand:
    """Functions behind an operand, collected during the search; those behind a view are computed where the view reads."""

    tensor: Tensor
    made: dict[_Read, Tensor] = field(default_factory=dict[_Read, Tensor])
    """The replacement of each function."""
    known: dict[_Read, tuple[Tensor, Index]] = field(default_factory=dict[_Read, tuple[Tensor, Index]])
    """The tensor that is read from memory for every other read, with the index over the operand's dims."""
    crossed: set[Tensor] = field(default_factory=set[Tensor])
    """Reshapes of functions."""

    @property
    def leaves(self) -> Collection[tuple[Tensor, Index]]:
        """The tensors that are read from memory, with their indices."""
        return self.known.values()

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that have to lie in memory, each once."""
        return tuple(dict.fromkeys(leaf for leaf, _ in self.leaves)) if self.made else (self.tensor,)

    @property
    def result(self) -> Tensor:
        """The tensor that the operand is computed as."""
        return list(self.made.values())[-1] if self.made else self.tensor

    def prologue(self) -> Prologue | None:
        """Return the functions; None if there are none."""
        if not self.made:
            return None
        shape = self.tensor.shape
        placement = tuple(None if size == 1 else dim for dim, size in enumerate(shape))
        across = (len(shape) - 2, len(shape) - 1)
        is_spread = any(all(memory_index(leaf, index).factor(dim) != 0 for dim in across) for leaf, index in self.leaves)
        return Prologue(Group(shape, members=dict.fromkeys(self.made.values(), placement)), is_spread)


class Prologues:
    """Fusion of functions into the products of a program, if nothing else reads these functions."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self._readers = read_by(outputs)
        self.moved: dict[Tensor, Tensor] = {}
        """The replacement of each fused function."""

    def before(self, old: Product, new: Product) -> Tensor:
        """Return a product, or its parts, with the functions before it fused; `old` is the product in the program."""
        rows, columns = new.shape[-2:]
        left = self._taken(old, old.left, new.left, columns)
        right = self._taken(old, old.right, new.right, rows)
        if not left.made and not right.made:
            return new
        self.moved |= {read.tensor: into for found in (left, right) for read, into in found.made.items()}
        product = replace(new, left=left.result, right=right.result)
        given = tuple(dict.fromkeys((*left.given, *right.given)))
        return Multiplied(new.shape, new.dtype, given, product, left.prologue(), right.prologue())

    def _taken(self, product: Product, old: Tensor, new: Tensor, across: Size) -> _Operand:
        """Return the functions behind an operand; none if they are not fused."""
        before = _functions(old)
        own = {read.tensor for read in before.made} | before.crossed
        readers = {reader for each in own for reader in self._readers[each]}
        found = _functions(new)
        return found if readers <= {product, *own} and _pays(found, across) else _Operand(new)


def _functions(operand: Tensor) -> _Operand:
    found = _Operand(operand)
    _enter(_Read(operand, operand.shape, identity(operand.shape)), found)
    return found


def _enter(read: _Read, found: _Operand) -> Tensor:
    """Add a read, and return the tensor that it is computed as, in loops along the operand's dims."""
    read = _behind(read, found)
    tensor, shape = read.tensor, found.tensor.shape
    if isinstance(tensor, Pointwise):
        if read not in found.made:
            arguments = tuple(_enter(replace(read, tensor=argument), found) for argument in tensor.arguments)
            found.made[read] = replace(tensor, shape=shape, arguments=arguments)
        return found.made[read]
    if isinstance(tensor, (Fill, Number)) or (isinstance(tensor, Iota) and read.shape == tensor.shape):
        return view(tensor, shape, read.index)
    source, index = found.known.setdefault(read, (reshaped(tensor, read.shape), read.index))
    return view(source, shape, index)


def _behind(read: _Read, found: _Operand) -> _Read:
    """Return the read behind views and reshapes of functions, as far as its index stays affine."""
    while True:
        tensor, following = read.tensor, None
        if isinstance(tensor, View):
            following = _behind_view(tensor, read)
        elif isinstance(tensor, Reshape) and isinstance(tensor.source, Pointwise):
            found.crossed.add(tensor)
            following = replace(read, tensor=tensor.source)
        if following is None:
            return read
        read = following


def _behind_view(tensor: View, read: _Read) -> _Read | None:
    source = tensor.source
    index = within(tensor.index, tensor.shape, read.shape)
    if index is not None:
        return _Read(source, source.shape, composed(index, read.index))
    place = within((memory_index(source, tensor.index),), tensor.shape, read.shape)
    return None if place is None else _Read(source, (product(source.shape),), composed(place, read.index))


def within(index: Index, old: Sequence[Size], new: Sequence[Size]) -> Index | None:
    """Rewrite an index over one shape's dims over the dims of another shape with the same elements in the same order.

    Return None if it is not affine over these: of a row b * S + s of [B * S], neither b nor s is an affine function.
    """
    parts = cut_index(old, new)
    if parts is not None:
        return composed(index, parts)
    whole = cut_index(new, old)
    if whole is None:
        return None
    innermost = {dim: part.terms[-1][0] for dim, part in enumerate(whole) if part.terms}
    found: list[Affine] = []
    for part in index:
        joined = Affine(part.constant)
        for dim, inner in innermost.items():
            joined = joined + variable(dim, part.factor(inner))
        found.append(joined)
    return tuple(found) if composed(found, whole) == tuple(index) else None


def _pays(found: _Operand, across: Size) -> bool:
    """Return whether the functions are of inputs and weights only, and fusing them moves no more bytes."""
    if not 0 < len(found.made) <= MAX_FUNCTIONS:
        return False
    if not all(isinstance(_root(leaf), Source) and _is_along(leaf, index, found.tensor) for leaf, index in found.leaves):
        return False
    is_expensive = any(isinstance(each, Pointwise) and each.function in TRANSCENDENTAL for each in found.made.values())
    return _moves_less(found, across, is_expensive=is_expensive)


def _root(tensor: Tensor) -> Tensor:
    while isinstance(tensor, Reshape):
        tensor = tensor.source
    return tensor


def _is_along(leaf: Tensor, index: Index, operand: Tensor) -> bool:
    """Return whether neighbours in a row or column are neighbours in memory, or a leaf is constant along one of these."""
    place, rank = memory_index(leaf, index), len(operand.shape)
    steps = [place.factor(dim) for dim in (rank - 2, rank - 1)]
    return 0 in steps or 1 in steps


def _moves_less(found: _Operand, across: Size, *, is_expensive: bool) -> bool:
    """Return whether tiles that read the inputs move no more bytes than writing the operand once and reading it."""
    shape, own = found.tensor.shape, ITEMSIZES[found.tensor.dtype]
    inner = {len(shape) - 2, len(shape) - 1}
    leaves = [(ITEMSIZES[leaf.dtype], {dim for part in index for dim, _ in part.terms}) for leaf, index in found.leaves]
    if not all(map(is_static, (across, *shape))):
        return not is_expensive and sum(itemsize for itemsize, dims in leaves if inner <= dims) <= own
    tiles = math.ceil(across / TILE)
    if is_expensive and tiles > FEW:
        return False

    def count(dims: Iterable[int]) -> int:
        return math.prod(int(shape[dim]) for dim in dims)

    whole = count(range(len(shape)))
    together = sum(itemsize * count(dims & inner) for itemsize, dims in leaves) * (whole // max(count(inner), 1))
    read = {dim for _, dims in leaves for dim in dims}
    before = sum(itemsize * count(dims) for itemsize, dims in leaves) + own * count(read)
    return tiles * together <= before + tiles * own * whole
