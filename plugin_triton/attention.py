"""Find attention in a tensor program: two products with a softmax between them, which one kernel computes.

The pointwise functions between the first product and the softmax (a scale, masks, a bias, a cap) are fused, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hub.toolkit.affine import Affine, Index, identity, variable
from hub.toolkit.deferral import Placement
from hub.toolkit.groups import Group
from hub.toolkit.nest import loop_index
from hub.toolkit.reading import in_order, through_views
from hub.toolkit.sizes import is_static
from hub.toolkit.tensors import Fill, Iota, Number, Pointwise, Product, Reduce, Template, Tensor, View, arguments_of

from .functions import FLOATS
from .rewrite import before_cast, rebuilt

WIDEST = 256
"""Length of the longest rows of queries, keys and values that a program holds whole."""
FEW_ROWS = 16
"""Number of queries that fit into the smallest tile."""
MANY_KEYS = 1024
_SAME = ("cast", "copy")

Readers = Mapping[Tensor, Sequence[Tensor | None]]
"""The readers of each tensor, through views; None stands for the caller."""


@dataclass(frozen=True, eq=False)
class Attention(Template):
    """softmax(f(query @ key)) @ value: [..., M, D], [..., D, K] and [..., K, N] give [..., M, N], in float32."""

    query: Tensor
    key: Tensor
    value: Tensor
    dots: Product
    """query @ key [..., M, K], which is never written to memory."""
    scores: Tensor
    """The argument of the softmax."""
    between: Group
    """The functions from `dots` to `scores`, in loops along the dims of `scores`."""
    is_causal: bool
    """True if scores right of the diagonal are minus infinity."""
    is_safe: bool
    """True if a row of minus infinities gives 0; else it gives NaN."""
    inside: frozenset[Tensor]
    """All tensors between the inputs and the result, none of which is written to memory."""

    @property
    def seen(self) -> Tensor:
        """The scores left of the diagonal, without the causal mask."""
        return self.scores.arguments[1] if self.is_causal and isinstance(self.scores, Pointwise) else self.scores


def with_attention(
    outputs: Sequence[Tensor], others: Callable[[Product, Product], Tensor], programs: int
) -> dict[Tensor, Tensor]:
    """Return the replacement of each tensor behind some outputs: attention replaces the products that it consists of.

    `others` returns the replacement of any other product; it is called with the product and with the product over replaced
    operands. `programs` is the number of programs that keep a GPU busy.
    """
    readers = read_by(outputs)
    products = [tensor for tensor in in_order(outputs) if isinstance(tensor, Product)]
    found = {tensor: attention for tensor in products if (attention := _attention(tensor)) is not None}
    last = {
        tensor
        for tensor, attention in found.items()
        if _is_alone(tensor, attention, readers) and not _is_starved(attention, programs)
    }
    first = {found[tensor].dots for tensor in last}

    def change(old: Tensor, new: Tensor) -> Tensor:
        if not isinstance(old, Product) or not isinstance(new, Product) or old in first:
            return new
        attention = _attention(new) if old in last else None
        return others(old, new) if attention is None else attention

    return rebuilt(outputs, change)


def read_by(outputs: Sequence[Tensor]) -> Readers:
    """Return the readers of each tensor behind some outputs."""
    readers: dict[Tensor, list[Tensor | None]] = {}
    for tensor in in_order(outputs):
        if not isinstance(tensor, View):
            for source in arguments_of(tensor):
                readers.setdefault(_source(source), []).append(tensor)
    for output in outputs:
        readers.setdefault(_source(output), []).append(None)
    return readers


def _is_alone(last: Product, attention: Attention, readers: Readers) -> bool:
    """Return whether neither another tensor nor the caller reads a tensor that would not be written to memory."""
    return not any(
        reader is not last and reader not in attention.inside
        for each in attention.inside
        for reader in readers.get(each, ())
    )


def _is_starved(attention: Attention, programs: int) -> bool:
    """Return True for few queries and many keys, as in decoding: a few programs would each loop over many keys.

    The scores are small then, and both products can be split into parts, along the keys' rows and the values' depth.
    """
    *lead, rows, _ = attention.shape
    keys = attention.dots.shape[-1]
    is_known = all(map(is_static, (*lead, rows, keys)))
    return is_known and rows <= FEW_ROWS and keys >= MANY_KEYS and 2 * math.prod(lead) <= programs


def _attention(last: Product) -> Attention | None:
    softmax = _softmax(last.left)
    between = None if softmax is None else _between(softmax.scores)
    if softmax is None or between is None or not _is_narrow(between.dots, last):
        return None
    dots, half = between.dots, before_cast(last.right)
    value = last.right if half is None else half
    return Attention(
        last.shape,
        last.dtype,
        (dots.left, dots.right, value, *between.leaves),
        query=dots.left,
        key=dots.right,
        value=value,
        dots=dots,
        scores=softmax.scores,
        between=Group(dots.shape, members=between.members),
        is_causal=_is_causal(softmax.scores),
        is_safe=softmax.is_safe,
        inside=frozenset((dots, *softmax.parts, *between.depending)),
    )


def _is_narrow(dots: Product, last: Product) -> bool:
    widths = (dots.left.shape[-1], last.shape[-1])
    return dots.dtype == last.dtype == "f32" and all(is_static(width) and width <= WIDEST for width in widths)


# --- The softmax ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Softmax:
    scores: Tensor
    parts: tuple[Tensor, ...]
    """All tensors that it consists of."""
    is_safe: bool


def _softmax(shares: Tensor) -> _Softmax | None:
    """Match shares as exp(scores - top) / sum of that, along the last dim, perhaps with 0 for empty rows; else None."""
    parts: list[Tensor] = []
    while isinstance(shares, Pointwise) and shares.function in _SAME and shares.dtype in FLOATS:
        parts.append(shares)
        (shares,) = shares.arguments
    is_safe = isinstance(shares, Pointwise) and shares.function == "select"
    if is_safe and isinstance(shares, Pointwise):
        parts.append(shares)
        is_empty, zero, quotient = shares.arguments
        if not isinstance(zero, Fill) or zero.value != 0:
            return None
        parts.append(_source(is_empty))
        shares = quotient
    powers, total = _arguments(shares, "div", 2)
    (away,) = _arguments(powers, "exp", 1)
    scores, top = _arguments(away, "sub", 2)
    total, top = _source(total), _source(top)
    is_one = _is_row(total, "sum", powers) and _is_row(top, "max", scores)
    if not is_one or (is_safe and not _is_nothing(parts[-1], top)):
        return None
    return _Softmax(scores, (*parts, shares, powers, total, away, top), is_safe)


def _arguments(tensor: Tensor, function: str, count: int) -> tuple[Tensor, ...]:
    is_it = isinstance(tensor, Pointwise) and tensor.function == function
    return tensor.arguments if is_it and isinstance(tensor, Pointwise) else (tensor,) * count


def _is_row(tensor: Tensor, function: str, source: Tensor) -> bool:
    is_reduction = isinstance(tensor, Reduce) and tensor.function == function and tensor.source is source
    return is_reduction and isinstance(tensor, Reduce) and tensor.dims == (len(source.shape) - 1,)


def _is_nothing(test: Tensor, top: Tensor) -> bool:
    """Return whether a tensor tests if a row's largest score is minus infinity."""
    first, second = _arguments(test, "eq", 2)
    return first is top and isinstance(second, Fill) and second.value == -math.inf


# --- What stands before it --------------------------------------------------------------------------------------------


@dataclass
class _Between:
    """The functions from a product to scores, collected during the search."""

    shape: tuple[object, ...]
    dots: Product
    members: dict[Tensor, Placement] = field(default_factory=dict[Tensor, Placement])
    depending: set[Tensor] = field(default_factory=set[Tensor])
    """Members that depend on the product."""
    leaves: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    """The tensors that are read from memory."""


def _between(scores: Tensor) -> _Between | None:
    """Return the functions from one product, of the scores' shape and order, to the scores; None if there is no product."""
    index = identity(scores.shape)
    dots = next(_products(scores, index), None)
    if dots is None:
        return None
    found = _Between(scores.shape, dots)
    _enter(scores, index, found)
    return found


def _products(tensor: Tensor, index: Index) -> Iterator[Product]:
    tensor, place = through_views(tensor, index)
    if isinstance(tensor, Product) and place == index:
        yield tensor
    elif isinstance(tensor, Pointwise) and place == index:
        for argument in tensor.arguments:
            yield from _products(argument, index)


def _enter(tensor: Tensor, index: Index, found: _Between) -> bool:
    """Add a tensor that is read at an index over the scores' loops, and return whether it depends on the product."""
    tensor, index = through_views(tensor, index)
    if isinstance(tensor, (Fill, Number, Iota)):
        return False
    if tensor is found.dots and index == identity(tensor.shape):
        return True
    placement = _placement(index)
    if not isinstance(tensor, Pointwise) or placement is None or found.members.get(tensor, placement) != placement:
        found.leaves[tensor] = None
        return False
    inner = loop_index(placement)
    depends = [_enter(argument, inner, found) for argument in tensor.arguments]
    found.members[tensor] = placement
    if any(depends):
        found.depending.add(tensor)
    return any(depends)


def _placement(index: Index) -> Placement | None:
    """Return the loop along each dim, None for no loop; None if the index of some dim is not a single loop."""
    found: list[int | None] = []
    for part in index:
        if part == Affine():
            found.append(None)
        elif len(part.terms) == 1 and part == variable(part.terms[0][0]):
            found.append(part.terms[0][0])
        else:
            return None
    return tuple(found)


def _is_causal(scores: Tensor) -> bool:
    rank = len(scores.shape)
    condition, _, hidden = _arguments(scores, "select", 3)
    column, row = _arguments(condition, "le", 2)
    is_diagonal = isinstance(column, Iota) and isinstance(row, Iota) and (column.dim, row.dim) == (rank - 1, rank - 2)
    return is_diagonal and isinstance(hidden, Fill) and hidden.value == -math.inf


def _source(tensor: Tensor) -> Tensor:
    return through_views(tensor, identity(tensor.shape))[0]
