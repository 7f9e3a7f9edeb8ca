"""Reshapes that are views, at known and at symbolic sizes."""

from __future__ import annotations

import sympy

from hub.lowering.affine import Affine, variable
from hub.lowering.builders import cut_index

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
    """Of the same number of elements, whatever lies before and behind it; two that are left are not told apart."""
    part = sympy.floor(C / 4)
    assert cut_index((ROWS, C, 5), (ROWS, 4, part, 5)) == (variable(0), variable(1, part) + variable(2), variable(3))
    assert cut_index((C, ROWS), (4, part, 2, sympy.floor(ROWS / 2))) is None
    assert cut_index((ROWS, 4, part), (ROWS, C)) is None
