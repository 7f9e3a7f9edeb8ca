"""Rewrites of a program into an equal one that stores less in memory, by swapping moves of elements with computations.

- A view, or a read at computed positions, of computed elements becomes the same function of views or reads of its
  arguments.
- A function of concatenated tensors becomes the concatenation of functions of the pieces, written to their final places.
- A function of joined dims is computed in the dims before they were joined, because their memory is the same.
- A reduction to few values becomes one of parts and one of their results, if threads share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.affine import Affine, Index, composed
from hub.toolkit.builders import (
    cut_index,
    fill,
    joined,
    matrix_product,
    reduced,
    reshaped,
    scanned,
    sliced,
    stored,
    view,
    with_own_memory,
)
from hub.toolkit.movable import (
    finest,
    has_few_functions,
    in_dims,
    is_joined_dims,
    is_moved,
    seam_dim,
    seams_of,
    slices_reduction,
    span_of,
    splits_reduction,
)
from hub.toolkit.parts import Readers, by_rows, may_be_cut, parts_of, readers_of
from hub.toolkit.sizes import Size, is_multiple, is_static, plus, product
from hub.toolkit.taken import taken_apart
from hub.toolkit.tensors import (
    Join,
    Pointwise,
    Product,
    Put,
    Reduce,
    Reshape,
    Scan,
    Take,
    Tensor,
    View,
    arguments_of,
)


def simplified(outputs: Sequence[Tensor], order: Sequence[Tensor], *, threads: int = 1) -> list[Tensor]:
    """Return the outputs of an equal program; `order` holds all tensors behind them, sources first.

    Reductions to fewer values than there are threads are split into two steps.
    """
    done = simplifications(outputs, order, threads=threads)
    found: list[Tensor] = []
    for tensor in outputs:
        found.append(with_own_memory(done[tensor], found))
    return found


def simplifications(outputs: Sequence[Tensor], order: Sequence[Tensor], *, threads: int = 1) -> dict[Tensor, Tensor]:
    """Return what each tensor of a program becomes in an equal one, as in `simplified`; outputs may share memory."""
    moved = _Moved(readers_of(outputs, order), threads)
    for tensor in order:
        moved.done[tensor] = moved.rebuilt(tensor)
    return moved.done


class _Moved:
    """The tensors of the program as rebuilt so far."""

    def __init__(self, readers: Readers, threads: int) -> None:
        self._readers = readers
        self._threads = threads
        self.done: dict[Tensor, Tensor] = {}
        self._seen: dict[tuple[Tensor, tuple[Size, ...], Index], Tensor] = {}

    def rebuilt(self, tensor: Tensor) -> Tensor:
        """Return a tensor rebuilt from its rebuilt arguments."""
        arguments = [self.done[each] for each in arguments_of(tensor)]
        match tensor:
            case View():
                return view(arguments[0], tensor.shape, tensor.index)
            case Reshape():
                return reshaped(arguments[0], tensor.shape)
            case Pointwise():
                return self.function(tensor, [self.inside(each) for each in arguments])
            case Reduce():
                return self.reduction(tensor, self.inside(arguments[0]))
            case Take():
                return self.take(tensor, arguments)
            case Join():
                return self.join(tensor, [self.inside(each) for each in arguments])
            case Product():
                return matrix_product(arguments[0], arguments[1], tensor.dtype)
            case Scan():
                return scanned(tensor.function, arguments[0], tensor.dim)
            case Put():
                return self.put(tensor, arguments)
            case _:
                return tensor

    # --- views ---

    def inside(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the form that a loop reads best: what is computed behind a view is computed in that loop."""
        if not isinstance(tensor, View):
            return tensor
        source = tensor.source
        if isinstance(source, Join):
            return self._part(source, tensor)
        if isinstance(source, (Pointwise, Take)) and is_moved(source, tensor):
            return self.behind(source, tensor.shape, tensor.index)
        return tensor

    def behind(self, tensor: Tensor, shape: tuple[Size, ...], index: Index) -> Tensor:
        """Return a view of computed elements as the function of views."""
        if isinstance(tensor, View):
            tensor, index = tensor.source, composed(tensor.index, index)
        if not isinstance(tensor, (Pointwise, Take)):
            return view(tensor, shape, index)
        key = (tensor, shape, index)
        if key in self._seen:
            return self._seen[key]
        if isinstance(tensor, Pointwise):
            arguments = tuple(self.behind(each, shape, index) for each in tensor.arguments)
            found: Tensor = Pointwise(shape, tensor.dtype, tensor.function, arguments)
        else:
            parts = tuple(
                self.behind(part, shape, index) if isinstance(part, Tensor) else part.at(index) for part in tensor.index
            )
            found = Take(shape, tensor.dtype, tensor.source, parts)
        self._seen[key] = found
        return found

    def _part(self, join: Join, tensor: View) -> Tensor:
        """Return a view of concatenated pieces: of the single piece in which it lies, otherwise unchanged."""
        dim = seam_dim(join)
        if dim is None:
            return tensor
        part = tensor.index[dim]
        if (span := span_of(part, tensor.shape)) is not None:
            for piece, offsets in join.pieces:
                start, size = offsets[dim], piece.shape[dim]
                if is_static(start) and is_static(size) and start <= span[0] and span[1] < start + size:
                    index = tuple(
                        each + Affine(-start) if place == dim else each for place, each in enumerate(tensor.index)
                    )
                    return self.inside(view(piece, tensor.shape, index))
        return tensor

    # --- functions ---

    def function(self, tensor: Pointwise, arguments: Sequence[Tensor]) -> Tensor:
        """Return a function of tensors that may be concatenated pieces or joined dims."""
        for argument in arguments:
            if isinstance(argument, Join) and (cut := self._in_pieces(tensor, argument, arguments)) is not None:
                return cut
        dims = finest([each for each in arguments if is_joined_dims(each)], tensor.shape)
        if dims is not None and not any(splits_reduction(each, dims) for each in arguments):
            parts = [self.inside(in_dims(each, dims)) for each in arguments]
            spread = Pointwise(dims, tensor.dtype, tensor.function, tuple(parts))
            return reshaped(self.function(spread, parts), tensor.shape)
        if all(one is other for one, other in zip(arguments, tensor.arguments, strict=True)):
            return tensor
        return Pointwise(tensor.shape, tensor.dtype, tensor.function, tuple(arguments))

    def _in_pieces(self, tensor: Pointwise, join: Join, arguments: Sequence[Tensor]) -> Tensor | None:
        dim = seam_dim(join)
        if dim is None:
            return None
        seams = seams_of(dim, [each for each in arguments if isinstance(each, Join)])
        if seams is None or any(slices_reduction(each, dim) for each in arguments):
            return None
        pieces: list[Tensor] = []
        for start, size in seams:
            parts = [self._segment(each, dim, start, size) for each in arguments]
            shape = tuple(size if place == dim else each for place, each in enumerate(tensor.shape))
            pieces.append(self.function(Pointwise(shape, tensor.dtype, tensor.function, tuple(parts)), parts))
        return self.join_of(pieces, dim)

    def _segment(self, tensor: Tensor, dim: int, start: Size, size: Size) -> Tensor:
        if isinstance(tensor, Join):
            for piece, offsets in tensor.pieces:
                if offsets[dim] == start and piece.shape[dim] == size:
                    return self.inside(piece)
        return self.inside(sliced(tensor, dim, start, size))

    def reduction(self, tensor: Reduce, source: Tensor) -> Tensor:
        """Return a reduction; over joined dims, it is computed in the dims before they were joined."""
        if is_joined_dims(source):
            assert isinstance(source, Reshape)
            finer = source.source.shape
            cut = cut_index(tensor.source.shape, finer)
            assert cut is not None
            dims = [place for dim in tensor.dims for place, _ in cut[dim].terms]
            found = reduced(tensor.function, source.source, dims, tensor.dtype)
            return reshaped(self._in_parts(found, tensor), tensor.shape)
        if source is tensor.source:
            return self._in_parts(tensor, tensor)
        return self._in_parts(Reduce(tensor.shape, tensor.dtype, tensor.function, source, tensor.dims), tensor)

    def _in_parts(self, found: Tensor, tensor: Reduce) -> Tensor:
        """Return a rebuilt reduction, in two steps if that pays."""
        if not isinstance(found, Reduce) or not may_be_cut(tensor, self._readers):
            return found
        if (parts := parts_of(found, self._threads)) is not None:
            return parts.joined(found, self.behind(found.source, parts.shape, parts.index))
        return by_rows(found, self._threads) or found

    # --- reads at computed places ---

    def take(self, tensor: Take, arguments: Sequence[Tensor]) -> Tensor:
        """Return a read at computed positions; a read of a function becomes the function of reads."""
        source, *places = arguments
        left = iter([self.inside(each) for each in places])
        index = tuple(next(left) if isinstance(part, Tensor) else part for part in tensor.index)
        counts = [product(each.shape) for each in (source, tensor)]
        is_less = counts[1] <= counts[0] if all(map(is_static, counts)) else is_multiple(*counts)
        if isinstance(source, Pointwise) and is_less and has_few_functions(source):
            found = taken_apart(source, tensor.shape, index)
            if found is not None:
                return found
        return Take(tensor.shape, tensor.dtype, stored(source), index)

    def put(self, tensor: Put, arguments: Sequence[Tensor]) -> Tensor:
        """Return a write at computed positions; all its arguments lie in memory."""
        source, values, *places = map(stored, arguments)
        left = iter(places)
        index = tuple(next(left) if isinstance(part, Tensor) else part for part in tensor.index)
        return Put(tensor.shape, tensor.dtype, tensor.function, source, values, index)

    # --- joins ---

    def join(self, tensor: Join, pieces: Sequence[Tensor]) -> Tensor:
        """Return concatenated pieces; constant padding along one dim becomes two pieces, nested pieces are flattened."""
        offsets = [places for _, places in tensor.pieces]
        if tensor.fill is None:
            dim = seam_dim(tensor)
            if dim is not None:
                return self.join_of(pieces, dim)
            return Join(tensor.shape, tensor.dtype, tuple(zip(pieces, offsets, strict=True)))
        (piece,), (before,) = pieces, offsets
        dims = [dim for dim, size in enumerate(tensor.shape) if size != piece.shape[dim]]
        if len(dims) == 1:
            return self.join_of(_filled(tensor, piece, dims[0], before[dims[0]]), dims[0])
        return Join(tensor.shape, tensor.dtype, ((piece, before),), tensor.fill)

    def join_of(self, pieces: Sequence[Tensor], dim: int) -> Tensor:
        """Return the concatenation of tensors along a dim."""
        flat: list[Tensor] = []
        for piece in pieces:
            if isinstance(piece, Join) and seam_dim(piece) == dim:
                flat.extend(each for each, _ in piece.pieces)
            else:
                flat.append(piece)
        return joined(flat, dim)


def _filled(join: Join, piece: Tensor, dim: int, before: Size) -> list[Tensor]:
    """Return a padded piece as a list of pieces."""
    assert join.fill is not None
    after = plus(join.shape[dim], -plus(before, piece.shape[dim]))
    front, back = (
        fill(join.fill, join.dtype, tuple(width if place == dim else size for place, size in enumerate(join.shape)))
        for width in (before, after)
    )
    return [*([front] if before != 0 else []), piece, *([back] if after != 0 else [])]
