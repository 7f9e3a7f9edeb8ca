"""Every sample call of the elementwise operators that DISC takes, to units in the last place."""

from __future__ import annotations

import pytest

from plugin_disc.backend import create
from plugin_disc.support import OPERATORS
from tests.opdb.calls import Cell, calls_of
from tests.opdb.elementary import cells, judged
from tests.slices import drawn

CELLS = {f"{cell.operator}-{cell.dtype}": cell for cell in cells(OPERATORS.rows)}


REFUSED = {
    "bool": (
        "atan2",
        "clamp_max",
        "clamp_min",
        "copysign",
        "deg2rad",
        "fmax",
        "fmin",
        "nan_to_num",
        "rad2deg",
        "sgn",
        "sign",
        "square",
        "xlogy",
    ),
    "float32": (
        "round.decimals_0",
        "round.decimals_3",
        "round.decimals_neg_3",
    ),
    "int64": (
        "addcmul",
        "atan2",
        "copysign",
        "deg2rad",
        "div.floor_rounding",
        "div.trunc_rounding",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "nan_to_num",
        "nn.functional.hardtanh",
        "nn.functional.relu6",
        "pow",
        "rad2deg",
        "remainder",
        "xlogy",
    ),
}
"""By dtype: operators of which DISC refuses every sample. One that it supports now has to be removed from this list."""


@pytest.mark.parametrize("cell", drawn(CELLS.values(), one_in=4), ids=CELLS)
def test_disc_is_as_exact_as_one_operator_can_be(cell: Cell) -> None:
    """Whole numbers and bools are eager's to the bit, floats within 2 units for an operator, or as near as eager is."""
    taken, wrong = judged(create(), list(calls_of(cell)))
    assert not wrong, "\n".join(wrong)
    assert (taken == 0) == (cell.operator in REFUSED.get(cell.dtype, ())), f"{taken} calls taken"


def test_what_is_refused_is_there() -> None:
    """Each name in the list is a cell's, else it would excuse nothing and stay for ever."""
    assert {f"{name}-{dtype}" for dtype, names in REFUSED.items() for name in names} <= set(CELLS)
