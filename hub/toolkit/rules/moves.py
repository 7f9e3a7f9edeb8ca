"""Operators that move elements: views, slices, joins, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub.toolkit.affine import Affine, identity, variable
from hub.toolkit.builders import (
    broadcast,
    cast,
    fill,
    iota,
    joined,
    padded,
    permuted,
    pointwise,
    reshaped,
    select,
    sliced,
    swapped,
    view,
)
from hub.toolkit.rules.call import Call, Rule
from hub.toolkit.rules.reductions import as_number
from hub.toolkit.sizes import Size, floor_div, from_front, plus, slice_start, times
from hub.toolkit.tensors import Tensor


def _reshape(call: Call) -> Tensor:
    return reshaped(call.first(), call.shape)


def _expand(call: Call) -> Tensor:
    return broadcast(call.first(), call.shape)


def _permute(call: Call) -> Tensor:
    source = call.first()
    rank = len(source.shape)
    return permuted(source, [dim % rank for dim in call.raw("dims")])


def _transpose(call: Call) -> Tensor:
    source = call.first()
    rank = max(len(source.shape), 1)
    dims: list[Any] = list(call.node.args[1:3])
    one, other = (int(value) % rank for value in dims)
    return swapped(source, one, other) if source.shape else source


def _reversed(call: Call) -> Tensor:
    source = call.first()
    return permuted(source, list(reversed(range(len(source.shape)))))


def _last_two(call: Call) -> Tensor:
    return swapped(call.first(), -2, -1)


def _moved(call: Call) -> Tensor:
    source = call.first()
    rank = len(source.shape)
    froms, tos = (
        [value] if isinstance(value, int) else list(value) for value in (call.raw("source"), call.raw("destination"))
    )
    froms, tos = [dim % rank for dim in froms], [dim % rank for dim in tos]
    rest = iter(dim for dim in range(rank) if dim not in froms)
    places = dict(zip(tos, froms, strict=True))
    return permuted(source, [places[dim] if dim in places else next(rest) for dim in range(rank)])


def _slice(call: Call) -> Tensor:
    source = call.first()
    dim = call.raw("dim") % len(source.shape)
    given = call.raw("start")  # never compare the argument with 0: a symbol would be specialised
    start = slice_start(0 if given is None else call.as_size(given), source.shape[dim])
    return sliced(source, dim, start, call.shape[dim], call.raw("step"))


def _select(call: Call) -> Tensor:
    source = call.first()
    dim = call.raw("dim") % len(source.shape)
    index = from_front(call.size("index"), source.shape[dim])
    return reshaped(sliced(source, dim, index, 1), call.shape)


def _narrow(call: Call) -> Tensor:
    source = call.first()
    dim = call.raw("dim") % len(source.shape)
    return sliced(source, dim, from_front(call.size("start"), source.shape[dim]), call.shape[dim])


def _pieces(call: Call) -> tuple[Tensor, ...]:
    """Split along a dim into pieces of the sizes of the results."""
    source = call.first()
    dim = (call.raw("dim") if call.has("dim") else 0) % len(source.shape)
    start: Size = 0
    result: list[Tensor] = []
    for place in range(len(call.node.meta["val"])):
        size = call.result(place)[0][dim]
        result.append(sliced(source, dim, start, size))
        start = plus(start, size)
    return tuple(result)


def _unbound(call: Call) -> tuple[Tensor, ...]:
    source = call.first()
    dim = call.raw("dim") % len(source.shape)
    count = len(call.node.meta["val"])
    return tuple(reshaped(sliced(source, dim, place, 1), call.result(place)[0]) for place in range(count))


def _cat(call: Call) -> Tensor:
    rank = len(call.shape)
    pieces = [cast(piece, call.dtype) for piece in call.tensors("tensors")]
    pieces = [piece for piece in pieces if len(piece.shape) == rank]  # an empty tensor without dims is allowed among them
    return pieces[0] if len(pieces) == 1 else joined(pieces, call.raw("dim") % rank)


def _stack(call: Call) -> Tensor:
    rank = len(call.shape)
    dim = call.raw("dim") % rank
    pieces = [cast(piece, call.dtype) for piece in call.tensors("tensors")]
    shape = tuple(1 if place == dim else size for place, size in enumerate(call.shape))
    return joined([reshaped(piece, shape) for piece in pieces], dim)


def _flip(call: Call) -> Tensor:
    source = call.first()
    index = list(identity(source.shape))
    for dim in call.raw("dims"):
        place = dim % len(source.shape)
        if source.shape[place] != 1:
            index[place] = variable(place, -1, plus(source.shape[place], -1))
    return view(source, source.shape, tuple(index))


def _roll(call: Call) -> Tensor:
    source = call.first()
    shifts, dims = ([value] if isinstance(value, int) else list(value) for value in (call.raw("shifts"), call.raw("dims")))
    if not dims:
        flat = reshaped(source, (_count(source.shape),))
        return reshaped(_rolled(flat, 0, shifts[0]), source.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        source = _rolled(source, dim % len(source.shape), shift)
    return source


def _rolled(source: Tensor, dim: int, shift: int) -> Tensor:
    size = source.shape[dim]
    if not size or not shift % size:
        return source
    cut = size - shift % size
    return joined([sliced(source, dim, cut, size - cut), sliced(source, dim, 0, cut)], dim)


def _count(shape: Sequence[Size]) -> Size:
    total: Size = 1
    for size in shape:
        total = times(total, size)
    return total


def _triangle(is_lower: bool) -> Rule:
    def rule(call: Call) -> Tensor:
        source = call.first()
        rank = len(source.shape)
        row, column = (iota(source.shape, rank - back) for back in (2, 1))
        edge = pointwise("add", row, as_number(call.size("diagonal"), row))
        kept = pointwise("le" if is_lower else "ge", column, edge)
        return select(kept, source, fill(0, source.dtype))

    return rule


def _repeat(call: Call) -> Tensor:
    source = call.first()
    given: Any = call.node.args[1]
    counts = [call.as_size(value) for value in given]
    lead = len(counts) - len(source.shape)
    counts = [1] * -lead + counts if lead < 0 else counts
    sizes = [1] * max(lead, 0) + list(source.shape)
    spread = reshaped(source, [part for size in sizes for part in (1, size)])
    shape = [part for count, size in zip(counts, sizes, strict=True) for part in (count, size)]
    return reshaped(broadcast(spread, shape), call.shape)


def _repeat_interleaved(call: Call) -> Tensor:
    source = call.first()
    count = call.as_size(call.raw("repeats"))
    if call.raw("dim") is None:
        source = reshaped(source, (_count(source.shape),))
    dim = (call.raw("dim") or 0) % len(source.shape)
    spread = reshaped(source, (*source.shape[: dim + 1], 1, *source.shape[dim + 1 :]))
    shape = (*source.shape[: dim + 1], count, *source.shape[dim + 1 :])
    return reshaped(broadcast(spread, shape), call.shape)


def _constant_pad(call: Call) -> Tensor:
    """Pad the last dims with a constant; PyTorch lists widths from the last dim; negative ones crop."""
    source, widths = call.first(), call.sizes("pad")
    rank = len(source.shape)
    before: list[Size] = [0] * rank
    after: list[Size] = [0] * rank
    for place in range(len(widths) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = widths[2 * place], widths[2 * place + 1]
    value = call.number("value")
    return padded(source, before, after, 0.0 if value is None else value, call.shape)


def _diff(call: Call) -> Tensor:
    source = call.first()
    dim = call.raw("dim") % len(source.shape)
    ends = [call.tensor(name) if call.has(name) else None for name in ("prepend", "append")]
    pieces = [cast(piece, call.dtype) for piece in (ends[0], source, ends[1]) if piece is not None]
    source = joined(pieces, dim)
    for _ in range(call.raw("n")):
        left = plus(source.shape[dim], -1)
        source = pointwise(
            "xor" if source.dtype == "i1" else "sub", sliced(source, dim, 1, left), sliced(source, dim, 0, left)
        )
    return source


def _diagonal(call: Call) -> Tensor:
    source = call.first()
    rank = len(source.shape)
    one, other = (call.raw(name) % rank for name in ("dim1", "dim2"))
    offset = call.raw("offset")
    rest = [dim for dim in range(rank) if dim not in (one, other)]
    last = len(call.shape) - 1
    index = [Affine()] * rank
    for place, dim in enumerate(rest):
        index[dim] = Affine() if source.shape[dim] == 1 else variable(place)
    along = Affine() if call.shape[last] == 1 else variable(last)
    index[one], index[other] = along + Affine(max(-offset, 0)), along + Affine(max(offset, 0))
    return view(source, call.shape, tuple(index))


def _unfold(call: Call) -> Tensor:
    source = call.first()
    dim = call.raw("dimension") % len(source.shape)
    index = list(identity(source.shape))
    starts = Affine() if call.shape[dim] == 1 else variable(dim, call.raw("step"))
    index[dim] = starts + (Affine() if call.raw("size") == 1 else variable(len(source.shape)))
    return view(source, call.shape, tuple(index))


def _shuffle_pixels(call: Call) -> Tensor:
    source = call.first()
    factor = call.raw("upscale_factor")
    *lead, channels, height, width = source.shape
    count = len(lead)
    cut = reshaped(source, (*lead, floor_div(channels, factor**2), factor, factor, height, width))
    order = (*range(count), count, count + 3, count + 1, count + 4, count + 2)
    return reshaped(permuted(cut, order), call.shape)


def _unshuffle_pixels(call: Call) -> Tensor:
    source = call.first()
    factor = call.raw("downscale_factor")
    *lead, channels, height, width = source.shape
    count = len(lead)
    cut = reshaped(source, (*lead, channels, floor_div(height, factor), factor, floor_div(width, factor), factor))
    order = (*range(count), count, count + 2, count + 4, count + 1, count + 3)
    return reshaped(permuted(cut, order), call.shape)


def _glu(call: Call) -> Tensor:
    from hub.toolkit.rules.elementwise import mul, sigmoid

    (source,) = call.promoted("self")
    dim = call.raw("dim") % len(source.shape)
    half = call.shape[dim]
    one, other = sliced(source, dim, 0, half), sliced(source, dim, half, half)
    return cast(mul(one, sigmoid(other)), call.dtype)


_RESHAPES = (
    "view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int view_as.default reshape_as.default"
    " ravel.default squeeze.default squeeze.dim squeeze.dims unsqueeze.default"
)
_PIECES = "split.Tensor unsafe_split.Tensor split_with_sizes.default split.sizes chunk.default tensor_split.sections"


def _broadcast_together(call: Call) -> tuple[Tensor, ...]:
    return tuple(broadcast(each, call.result(place)[0]) for place, each in enumerate(call.tensors("tensors")))


RULES: dict[str, Rule] = {
    **{f"aten.{name}": _reshape for name in _RESHAPES.split()},
    **{f"aten.{name}": _expand for name in ("expand.default", "expand_as.default", "broadcast_to.default")},
    "aten.permute.default": _permute,
    **{f"aten.{name}": _transpose for name in ("transpose.int", "swapaxes.default")},
    **{f"aten.{name}.default": _reversed for name in ("t", "numpy_T")},
    "aten.mT.default": _last_two,
    **{f"aten.movedim.{form}": _moved for form in ("int", "intlist")},
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.narrow.default": _narrow,
    **{f"aten.{name}": _pieces for name in _PIECES.split()},
    "aten.unbind.int": _unbound,
    "aten.broadcast_tensors.default": _broadcast_together,
    **{f"aten.{name}.default": _cat for name in ("cat", "concat")},
    "aten.stack.default": _stack,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.tril.default": _triangle(is_lower=True),
    "aten.triu.default": _triangle(is_lower=False),
    "aten.repeat.default": _repeat,
    "aten.tile.default": _repeat,
    "aten.repeat_interleave.self_int": _repeat_interleaved,
    "aten.constant_pad_nd.default": _constant_pad,
    "aten.pad.default": _constant_pad,
    "aten.diff.default": _diff,
    "aten.diagonal.default": _diagonal,
    "aten.unfold.default": _unfold,
    "aten.pixel_shuffle.default": _shuffle_pixels,
    "aten.pixel_unshuffle.default": _unshuffle_pixels,
    "aten.glu.default": _glu,
}
