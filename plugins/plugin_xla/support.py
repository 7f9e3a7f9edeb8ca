"""Operators that XLA takes, one row each. Imports no torch."""

from __future__ import annotations

from hub.conditions import on_cpu
from hub.lowering.operators import ROWS
from hub.support import OperatorTable

OPERATORS = OperatorTable(ROWS, everywhere=(on_cpu,))
