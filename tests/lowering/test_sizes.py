"""Arithmetic on sizes and indices that are known only at the call."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv

from hub.toolkit.affine import Affine, composed, linear, variable
from hub.toolkit.sizes import (
    ceil_div,
    floor_div,
    is_multiple,
    parts_shown,
    plus,
    printed,
    product,
    python_text,
    strides_of,
    times,
)

S, T = sympy.symbols("s t", integer=True, positive=True)


def evaluated(size: object, **values: int) -> int:
    """Return the value of a size's Python text."""
    return eval(python_text(size, {S: "s", T: "t"}), values)


def test_equal_sizes_are_equal_values() -> None:
    """A product is multiplied out, whatever way it came about."""
    assert times(plus(S, 1), T) == plus(times(S, T), T)
    assert plus(times(S, 2), times(S, -2)) == 0
    assert isinstance(plus(S, times(S, -1)), int)


def test_texts_compute_sizes() -> None:
    """The Python text of a size gives its value."""
    assert evaluated(ceil_div(times(S, T), 4), s=3, t=5) == 4
    assert evaluated(product((S, 2, T)), s=3, t=5) == 30
    assert evaluated(7) == 7


@pytest.mark.parametrize(("size", "by"), [(7, 2), (-7, 2), (8, 2), (0, 3), (1, 5)])
def test_quotients_are_rounded_down_and_up(size: int, by: int) -> None:
    """Known at once, or at the call."""
    for quotient, expected in ((floor_div, size // by), (ceil_div, -(-size // by))):
        assert quotient(size, by) == expected
        assert eval(printed(quotient(S, by)), {"s": size}) == expected
        assert eval(printed(quotient(S, T)), {"s": size, "t": by}) == expected


def test_unknown_symbols_are_named() -> None:
    """A size of which no input tells is an error, not a guess."""
    with pytest.raises(ValueError, match="no input shows"):
        python_text(times(S, T), {S: "s"})


def test_parts_of_shown_sizes_are_known() -> None:
    """A size such as (s - 1) // 2 + 1 shows (s - 1) // 2 to other sizes, though not s."""
    half = FloorDiv(S - 1, sympy.Integer(2))
    known = parts_shown({plus(half, 1): "x.shape[0]"})
    text = python_text(times(plus(half, 1), plus(half, 2)), known).replace("x.shape[0]", "5")
    assert eval(text) == 5 * 6


def test_strides_of_packed_memory() -> None:
    """The last dim has stride 1, each other one that of all behind it."""
    assert strides_of((4, S, 3)) == (times(S, 3), 3, 1)


def test_views_compose() -> None:
    """Reading every second row of a transposed matrix is one affine place in memory."""
    turned = (variable(1), variable(0))
    every_second = (variable(0, 2), variable(1))
    place = linear(composed(turned, every_second), (10, 1))
    assert place == Affine(0, ((0, 2), (1, 10)))


def test_terms_that_cancel_are_gone() -> None:
    """An index that does not depend on a loop says so."""
    assert variable(0, 3) + variable(0, -3) == Affine()


def test_multiples_of_sizes() -> None:
    """What is a product with another size is no less than that; a sum or a quotient may be."""
    assert is_multiple(times(S, T), S) and is_multiple(times(4, T), T) and is_multiple(12, 4)
    assert not is_multiple(S, T) and not is_multiple(S, times(S, T)) and not is_multiple(plus(S, -1), S)
    assert not is_multiple(T, 2) and not is_multiple(12, 5) and not is_multiple(12, 0)
