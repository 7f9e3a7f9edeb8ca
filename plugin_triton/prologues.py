"""Finds functions that are cheaper computed on the tiles that a product reads than written into memory before it.

A cast, a scale, what was quantised: a tile of the operand is made of tiles of the inputs and weights behind it.
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
"""Rows and columns that one program is taken to compute, of the smallest tile that rules give large products."""
FEW = 2
"""Tiles for which an expensive function is computed again rather than read."""
MOST_FUNCTIONS = 16


@dataclass(frozen=True, eq=False)
class Prologue:
    """Functions that give an operand."""

    group: Group
    """In loops along the operand's dims."""
    is_spread: bool
    """True where something is read along both dims of the matrix, so that values come as a tile."""


@dataclass(frozen=True, eq=False)
class Multiplied(Template):
    """Matrix products of which one or both operands are functions of what lies in memory."""

    product: Product
    left: Prologue | None
    """None where the operand lies in memory."""
    right: Prologue | None


@dataclass(frozen=True)
class _Read:
    """A tensor that is read somewhere behind an operand."""

    tensor: Tensor
    shape: tuple[Size, ...]
    """What it is taken to have: its own shape, or another one of the same elements in the same order."""
    index: Index
    """Which of its elements, over the operand's dims."""


@dataclass
class _Operand:
    """Functions behind an operand, as they are found: what stands behind a view is computed where the view reads it."""

    tensor: Tensor
    made: dict[_Read, Tensor] = field(default_factory=dict[_Read, Tensor])
    """What stands for each function."""
    known: dict[_Read, tuple[Tensor, Index]] = field(default_factory=dict[_Read, tuple[Tensor, Index]])
    """What is read from memory for everything else, with the index over the operand's dims."""
    crossed: set[Tensor] = field(default_factory=set[Tensor])
    """Functions under other shapes."""

    @property
    def leaves(self) -> Collection[tuple[Tensor, Index]]:
        """What is read from memory."""
        return self.known.values()

    @property
    def given(self) -> tuple[Tensor, ...]:
        """What has to lie in memory, each once."""
        return tuple(dict.fromkeys(leaf for leaf, _ in self.leaves)) if self.made else (self.tensor,)

    @property
    def result(self) -> Tensor:
        """What the operand is computed as."""
        return list(self.made.values())[-1] if self.made else self.tensor

    def prologue(self) -> Prologue | None:
        """Return the functions; None where there are none."""
        if not self.made:
            return None
        shape = self.tensor.shape
        placement = tuple(None if size == 1 else dim for dim, size in enumerate(shape))
        across = (len(shape) - 2, len(shape) - 1)
        is_spread = any(all(memory_index(leaf, index).factor(dim) != 0 for dim in across) for leaf, index in self.leaves)
        return Prologue(Group(shape, members=dict.fromkeys(self.made.values(), placement)), is_spread)


class Prologues:
    """Takes functions that nobody else reads along into products of a program."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self._readers = read_by(outputs)
        self.moved: dict[Tensor, Tensor] = {}
        """What became of functions."""

    def before(self, old: Product, new: Product) -> Tensor:
        """Return a product, or parts of it, with what stands before it; `old` is the one in the program."""
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
        """Return the functions behind an operand; none where they do not come along."""
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
    """Enter a tensor; gives what it is computed as in loops along the operand's dims."""
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
    """Return what lies behind views and other shapes of functions, as long as it is read at affine places."""
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
    """Return an index over dims of a shape as one over those of another shape of the same elements in the same order.

    None where it is not affine over these: a row of [B * S] does not say by which multiple of which factor it is in B.
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
    """Return whether functions of inputs and weights stand before an operand, and no more is moved with them."""
    if not 0 < len(found.made) <= MOST_FUNCTIONS:
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
    """Return whether neighbours in a row or a column are neighbours in memory, or one dim is not read along."""
    place, rank = memory_index(leaf, index), len(operand.shape)
    steps = [place.factor(dim) for dim in (rank - 2, rank - 1)]
    return 0 in steps or 1 in steps


def _moves_less(found: _Operand, across: Size, *, is_expensive: bool) -> bool:
    """Compare bytes: what each tile reads of the inputs, with reading these once, and writing and reading the operand."""
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
