"""Every sample call of the elementwise operators that DISC takes, to units in the last place."""

from __future__ import annotations

import pytest

from plugin_disc.backend import create
from plugin_disc.support import OPERATORS
from tests.opdb.calls import Cell, calls_of
from tests.opdb.elementary import cells, judged
from tests.slices import drawn

CELLS = {f"{cell.operator}-{cell.dtype}": cell for cell in cells(OPERATORS.rows)}


@pytest.mark.parametrize("cell", drawn(CELLS.values(), one_in=4), ids=CELLS)
def test_disc_is_as_exact_as_one_operator_can_be(cell: Cell) -> None:
    """Whole numbers and bools are eager's to the bit, floats within 2 units for an operator, or as near as eager is."""
    taken, wrong = judged(create(), list(calls_of(cell)))
    assert not wrong, "\n".join(wrong)
    if not taken:
        pytest.skip(f"DISC refuses every sample of {cell.operator} in {cell.dtype}")
