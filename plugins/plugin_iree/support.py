"""Operators that IREE takes: those of the core's table that came out right, with what was found beside them. No torch here.

Found by the conformance suite with torch-mlir 20261001 and IREE 3.13.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub.conditions import not_empty, on_cpu
from hub.lowering.operators import ROWS
from hub.support import Condition, OperatorTable, dtypes

_TRIED = dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
"""The suite has no sample calls with int16 and int8."""

DECLINED: Mapping[str, str] = {}
FURTHER: Mapping[str, tuple[Condition, ...]] = {}
_TAKEN = tuple(ROWS)

OPERATORS = OperatorTable(
    {name: (*ROWS[name], *FURTHER.get(name, ())) for name in _TAKEN},
    everywhere=(_TRIED, on_cpu, not_empty),
)
