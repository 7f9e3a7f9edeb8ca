"""Operators that DISC supports: those with a rule, on the CPU. Imports no torch."""

from __future__ import annotations

from hub.plugin import OperatorTable, on_cpu
from hub.toolkit.operators import ROWS

OPERATORS = OperatorTable(ROWS, everywhere=(on_cpu,))
