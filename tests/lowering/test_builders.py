"""Reshapes that are views, at known and at symbolic sizes; sizes that do not fit."""

from __future__ import annotations

import pytest
import sympy

from hub.toolkit.affine import Affine, variable
from hub.toolkit.builders import broadcast, cut_index, matrix_product, pointwise, reshaped
from hub.toolkit.sizes import Size
from hub.toolkit.tensors import Source

C, ROWS = (sympy.Symbol(name, integer=True, positive=True) for name in ("c", "rows"))


def test_dims_of_one_element_come_and_go() -> None:
    """No dim at all can be cut into dims of size 1, and back."""
    assert cut_index((), (1, 1)) == ()
    assert cut_index((1,), ()) == (Affine(),)
    assert cut_index((4, 1, 3), (1, 4, 3)) == (variable(1), Affine(), variable(2))


def test_known_sizes_are_cut_by_their_products() -> None:
    """Row-major; dims that are joined, or that do not fit, have no index."""
    assert cut_index((2, 12), (2, 3, 4)) == (variable(0), variable(1, 4) + variable(2))
    assert cut_index((2, 3, 4), (2, 12)) is None
    assert cut_index((2, 6), (4, 3)) is None


def test_the_one_symbolic_dim_that_is_left_is_cut() -> None:
    """They have the same number of elements, regardless of the dims around it; two remaining ones are not distinguished."""
    part = sympy.floor(C / 4)
    assert cut_index((ROWS, C, 5), (ROWS, 4, part, 5)) == (variable(0), variable(1, part) + variable(2), variable(3))
    assert cut_index((C, ROWS), (4, part, 2, sympy.floor(ROWS / 2))) is None
    assert cut_index((ROWS, 4, part), (ROWS, C)) is None


def of(*shape: Size) -> Source:
    """Return a tensor from outside."""
    return Source(shape, "f32", "x")


def test_sizes_that_cannot_fit_are_no_program() -> None:
    """Machine code would read and write beyond the tensors; 1 fits, and what is known at a call only may fit."""
    with pytest.raises(ValueError, match=r"\[2, 3\] cannot be broadcast to \[4, 3\]"):
        broadcast(of(2, 3), (4, 3))
    with pytest.raises(ValueError, match="cannot be broadcast"):
        broadcast(of(2, 3), (3,))
    with pytest.raises(ValueError, match="cannot be broadcast"):
        pointwise("add", of(2, 3), of(4, 3))
    with pytest.raises(ValueError, match="cannot be broadcast"):
        matrix_product(of(4, 5, 6), of(2, 6, 7))
    with pytest.raises(ValueError, match=r"\[5, 6\] cannot be multiplied by \[7, 6\]"):
        matrix_product(of(5, 6), of(7, 6))
    with pytest.raises(ValueError, match=r"\[2, 3\] cannot be reshaped to \[7\]"):
        reshaped(of(2, 3), (7,))
    assert broadcast(of(1, 3), (4, 3)).shape == (4, 3)
    assert matrix_product(of(4, 5, C), of(1, 6, 7)).shape == (4, 5, 7)
    assert reshaped(of(C, 3), (ROWS,)).shape == (ROWS,)
