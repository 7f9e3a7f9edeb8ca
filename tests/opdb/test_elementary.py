"""What counts as exact, element by element."""

from __future__ import annotations

import pytest
import torch

from tests.opdb.elementary import too_far

ONE = torch.tensor([1.0, 3.0e-3])
UNIT = torch.tensor([2.0**-23, 2.0**-32])


def test_two_units_are_free_and_three_are_not() -> None:
    """A unit is the distance to the next number at each value, not at the largest one."""
    assert too_far(ONE + 2 * UNIT, ONE, ONE.double(), 2.0) == ""
    assert "1 of 2 wrong; at [1]" in too_far(ONE + torch.tensor([0.0, 3 * 2.0**-32]), ONE, ONE.double(), 2.0)


def test_as_near_as_eager_is_near_enough() -> None:
    """What eager itself is off by in the same tensor is free."""
    eager = ONE + torch.tensor([5 * 2.0**-23, 0.0])
    assert too_far(ONE + 5 * UNIT, eager, ONE.double(), 2.0) == ""
    assert "6 units off" in too_far(ONE + 6 * UNIT, eager, ONE.double(), 2.0)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [(1, 2), (True, False), (0.0, -0.0), (float("nan"), 1.0), (1.0, float("inf")), (float("inf"), 1.0)],
)
def test_what_has_no_units_must_be_equal(got: float, wanted: float) -> None:
    """Whole numbers, bools, NaN, infinities, and the sign of zero."""
    mine, eager = torch.tensor([got]), torch.tensor([wanted])
    assert too_far(mine, eager, eager.double(), 2.0)
    assert too_far(eager, eager, eager.double(), 2.0) == ""
