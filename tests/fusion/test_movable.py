"""Which views and joins may trade places with functions."""

from __future__ import annotations

from hub.toolkit.affine import variable
from hub.toolkit.builders import joined, padded, pointwise, reduced, reshaped, sliced
from hub.toolkit.movable import (
    finest,
    has_few_functions,
    is_joined_dims,
    is_moved,
    seam_dim,
    seams_of,
    slices_reduction,
    span_of,
)
from hub.toolkit.tensors import Join, Source, Tensor, View


def source(*shape: int) -> Source:
    return Source(shape, "f32", "x")


def joined_of(*widths: int, dim: int = 1) -> Join:
    """Return tensors of some widths joined along a dim."""
    result = joined([source(*(width if place == dim else 4 for place in range(2))) for width in widths], dim)
    assert isinstance(result, Join)
    return result


def part_of(tensor: Tensor, start: int, size: int) -> View:
    result = sliced(tensor, 1, start, size)
    assert isinstance(result, View)
    return result


def test_the_seam_of_pieces_side_by_side() -> None:
    """Pieces that fill a dim have seams along it; a padded tensor, and a single piece, have none."""
    padding = padded(source(4, 8), (0, 1), (0, 0), 0.0)
    assert isinstance(padding, Join)
    assert [seam_dim(each) for each in (joined_of(3, 5), joined_of(3, 5, dim=0), padding, joined_of(8))] == [
        1,
        0,
        None,
        None,
    ]


def test_seams_of_several_joins() -> None:
    """Stretches lie between all seams of all joins."""
    assert seams_of(1, [joined_of(3, 5), joined_of(6, 2)]) == [(0, 3), (3, 3), (6, 2)]


def test_a_cheap_function_moves_behind_a_slice() -> None:
    """A slice of few functions is computed where it is read."""
    total = pointwise("add", source(4, 8), source(4, 8))
    assert is_moved(total, part_of(total, 2, 4))


def test_a_slice_of_a_reduction_stays() -> None:
    """What reads part of the rows' values would need the whole reduction again."""
    total = pointwise("add", source(4, 8), reduced("sum", source(4, 8), (0,)))
    assert not is_moved(total, part_of(total, 2, 4))
    assert slices_reduction(total, 1)
    assert not slices_reduction(total, 0)


def test_functions_that_share_arguments_are_looked_at_once() -> None:
    """A long chain in which every function reads its argument twice takes no time that doubles with each."""
    total: Tensor = source(4, 8)
    for _ in range(2000):
        total = pointwise("mul", total, total)
    assert not slices_reduction(total, 1)
    assert not is_moved(total, part_of(total, 2, 4))
    assert not has_few_functions(total)


def test_the_span_of_an_index() -> None:
    """Lowest and highest place, also where it runs backwards."""
    assert span_of(variable(1, 2, 3), (4, 5)) == (3, 11)
    assert span_of(variable(1, -1, 4), (4, 5)) == (0, 4)


def test_dims_before_they_were_joined() -> None:
    """Functions of several joined tensors can run in the finest of their dims."""
    coarse, fine = (reshaped(pointwise("neg", source(*shape)), (4, 24)) for shape in ((4, 3, 8), (4, 3, 2, 4)))
    assert is_joined_dims(coarse)
    assert finest([coarse, fine], (4, 24)) == (4, 3, 2, 4)
    other = reshaped(pointwise("neg", source(4, 8, 3)), (4, 24))
    assert finest([coarse, other], (4, 24)) is None
