"""Reductions to a few values are made of parts, where nothing expensive is computed twice."""

from __future__ import annotations

import sympy

from hub.toolkit.builders import pointwise, reduced
from hub.toolkit.parts import may_be_cut, parts_of, readers_of
from hub.toolkit.reading import in_order
from hub.toolkit.simplify import simplified
from hub.toolkit.tensors import Reduce, Source, Tensor

THREADS = 4


def total(source: Tensor, *dims: int) -> Reduce:
    result = reduced("sum", source, dims or range(len(source.shape)))
    assert isinstance(result, Reduce)
    return result


def reductions(*outputs: Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shapes before and after each reduction in a program that threads share."""
    order = in_order(simplified(outputs, in_order(outputs), threads=THREADS))
    return [(each.source.shape, each.shape) for each in order if isinstance(each, Reduce)]


def test_a_sum_of_everything_is_one_of_parts() -> None:
    """64 parts of a dim that they divide, then one sum of 64."""
    found = reductions(total(Source((256, 1024), "f32", "x")))
    assert found == [((64, 4, 1024), (64, 1, 1)), ((64, 1, 1), (1, 1, 1))]


def test_parts_are_worth_a_task() -> None:
    """No part has less than 4,096 elements, and a size that nothing divides is left whole."""
    parts = parts_of(total(Source((128, 1024), "f32", "x")), THREADS)
    assert parts is not None and parts.count == 32
    assert parts_of(total(Source((4, 1024), "f32", "x")), THREADS) is None
    assert parts_of(total(Source((65537,), "f32", "x")), THREADS) is None


def test_rows_enough_are_left_whole() -> None:
    """Threads share rows; fewer channels than threads, of many elements, are cut."""
    assert parts_of(total(Source((64, 4096), "f32", "x"), 1), THREADS) is None
    parts = parts_of(total(Source((16, 3, 64, 64), "f32", "x"), 0, 2, 3), THREADS)
    assert parts is not None and (parts.dim, parts.shape) == (2, (16, 3, 32, 2, 64))


def test_half_precision_is_not_rounded_twice() -> None:
    """Results of parts would be kept in half precision."""
    assert parts_of(total(Source((256, 1024), "bf16", "x")), THREADS) is None


def test_what_is_read_elsewhere_is_not_computed_twice() -> None:
    """An exp that is also a result keeps its sum with it; a product of two reads does not."""
    x = Source((256, 1024), "f32", "x")
    for function, is_cut in (("exp", False), ("mul", True)):
        each = pointwise(function, x) if function == "exp" else pointwise(function, x, x)
        outputs = (each, total(each))
        assert may_be_cut(outputs[1], readers_of(outputs, in_order(outputs))) is is_cut
        assert len(reductions(*outputs)) == 1 + is_cut


def test_a_mean_inside_does_not_hinder() -> None:
    """Distances from a mean are added up in parts as the mean is."""
    x = Source((256, 1024), "f32", "x")
    apart = pointwise("sub", x, total(x))
    assert len(reductions(total(pointwise("mul", apart, apart)))) == 4


def test_distances_from_row_means_stay_whole() -> None:
    """Parts of rows would read a row's mean at other places."""
    y = Source((64, 1 << 10), "f32", "y")
    assert len(reductions(total(pointwise("sub", y, total(y, 1))))) == 2


def test_sums_of_everything_of_unknown_sizes_are_those_of_rows() -> None:
    """Threads share the rows; a single dim of unknown size is left whole, and so are short rows of known length."""
    rows, columns = sympy.symbols("rows columns", integer=True, nonnegative=True)
    x = Source((rows, columns), "f32", "x")
    assert reductions(total(x)) == [((rows, columns), (rows, 1)), ((rows, 1), (1, 1))]
    assert len(reductions(total(Source((rows,), "f32", "x")))) == 1
    assert len(reductions(total(Source((rows, 8), "f32", "x")))) == 1
    assert len(reductions(total(x, 1))) == 1
