"""Operators that IREE takes: those of the core's table that came out right, with what was found beside them. No torch here.

Found by the conformance suite with torch-mlir 20261001 and IREE 3.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hub.conditions import has_dims, not_empty, on_cpu, one_of, plain
from hub.lowering.operators import ROWS
from hub.support import Condition, OperatorTable, argument, dtypes, is_symbolic, value_of

if TYPE_CHECKING:
    from torch import fx

MOST_STEPS = 64
"""Steps of an LSTM: each is written out, and compiling takes longer with each."""

_TRIED = dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
"""The suite has no sample calls with int16 and int8."""

_FLOAT = dtypes("float32", "float64")
_NARROW = dtypes("float32", "float16", "bfloat16")
"""IREE links no library of functions for float64."""


def unprojected(node: fx.Node) -> str | None:
    """An LSTM without projections, over batched steps of known number, which are unrolled."""
    each = (4 if argument(node, "has_biases") else 2) * (2 if argument(node, "bidirectional") else 1)
    if len(argument(node, "params")) != each * argument(node, "num_layers"):
        return "an LSTM with projections"
    shape = value_of(argument(node, "input")).shape
    if len(shape) != 3:
        return f"input is {list(shape)}, three dims here"
    steps = shape[1] if argument(node, "batch_first") else shape[0]
    return f"{steps} steps, at most {MOST_STEPS} here" if is_symbolic(steps) or steps > MOST_STEPS else None


def _names(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


def grown(node: fx.Node) -> str | None:
    """Padding adds and cuts nothing off."""
    return "negative padding" if any(size < 0 for size in argument(node, "pad")) else None


DECLINED: Mapping[str, str] = {
    "aten.slice_scatter.default": "torch-mlir runs out of memory over an end beyond the size",
}
FURTHER: Mapping[str, tuple[Condition, ...]] = {
    **dict.fromkeys(
        _names("softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default"), (has_dims,)
    ),
    **dict.fromkeys(_names("gelu.default tanh.default sin.default cos.default"), (_NARROW,)),
    "aten.pow.Tensor_Scalar": (_NARROW,),
    **dict.fromkeys(_names("pad.default constant_pad_nd.default"), (plain("pad"), grown)),
}
_TAKEN = tuple(name for name in ROWS if name not in DECLINED)

OWN: Mapping[str, tuple[Condition, ...]] = {
    "aten.lstm.input": (_FLOAT, one_of("train", False), unprojected),
}
"""Operators beside the core's table."""

OPERATORS = OperatorTable(
    {**{name: (*ROWS[name], *FURTHER.get(name, ())) for name in _TAKEN}, **OWN},
    everywhere=(_TRIED, on_cpu, not_empty),
)
