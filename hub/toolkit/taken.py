"""Reads of computed elements at computed positions, rewritten as functions of reads from memory."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.affine import Affine, Index, identity
from hub.toolkit.builders import view
from hub.toolkit.sizes import Size
from hub.toolkit.tensors import Fill, Number, Pointwise, Source, Take, Tensor, View


def taken_apart(source: Pointwise, shape: tuple[Size, ...], index: tuple[Affine | Tensor, ...]) -> Tensor | None:
    """Return a read as a function of reads; None if no read would check the index."""
    reads: list[Tensor] = []
    found = _taken(source, shape, index, {}, reads)
    return found if reads else None


def _taken(
    tensor: Tensor,
    shape: tuple[Size, ...],
    index: tuple[Affine | Tensor, ...],
    seen: dict[Tensor, Tensor],
    reads: list[Tensor],
) -> Tensor | None:
    """Return elements at computed positions as a function of reads, recorded in `reads`; None if one cannot be checked."""
    if isinstance(tensor, (Fill, Number)):
        return view(tensor, shape, ())
    if isinstance(tensor, Pointwise):
        if tensor not in seen:
            parts = [_taken(each, shape, index, seen, reads) for each in tensor.arguments]
            whole = [part for part in parts if part is not None]
            if len(whole) < len(parts):
                return None
            seen[tensor] = Pointwise(shape, tensor.dtype, tensor.function, tuple(whole))
        return seen[tensor]
    if isinstance(tensor, View):
        return _read(tensor.source, tensor.index, tensor.shape, shape, index, reads)
    return _read(tensor, identity(tensor.shape), tensor.shape, shape, index, reads)


def _read(
    source: Tensor,
    places: Index,
    sizes: Sequence[Size],
    shape: tuple[Size, ...],
    index: tuple[Affine | Tensor, ...],
    reads: list[Tensor],
) -> Tensor | None:
    """Return what lies at `index` of a view; None unless the index is checked against the same sizes as before."""
    parts: list[Affine | Tensor] = []
    for place, size in zip(places, source.shape, strict=True):
        computed = [variable for variable, _ in place.terms if isinstance(index[variable], Tensor)]
        if not computed:
            parts.append(place.at([part if isinstance(part, Affine) else Affine() for part in index]))
        elif place.terms == ((computed[0], 1),) and place.constant == 0 and sizes[computed[0]] == size:
            parts.append(index[computed[0]])
        else:
            return None
    if any(isinstance(part, Tensor) for part in parts):
        if not isinstance(source, Source):
            return None
        reads.append(source)
        return Take(shape, source.dtype, source, tuple(parts))
    return view(source, shape, tuple(part for part in parts if isinstance(part, Affine)))
