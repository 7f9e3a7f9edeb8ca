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


_TAKEN = _names(
    "exp.default log.default sqrt.default sin.default cos.default tanh.default erf.default rsqrt.default "
    "sigmoid.default abs.default neg.default relu.default silu.default gelu.default hardtanh.default add.Tensor "
    "add.Scalar sub.Tensor mul.Tensor mul.Scalar div.Tensor div.Scalar pow.Tensor_Scalar eq.Tensor ne.Scalar ge.Scalar "
    "le.Tensor __and__.Tensor _to_copy.default alias.default new_ones.default arange.default view.default "
    "unsqueeze.default permute.default expand.default transpose.int slice.Tensor select.int cat.default split.Tensor "
    "pad.default diff.default mean.dim softmax.int cumsum.default layer_norm.default "
    "_native_batch_norm_legit_no_training.default linear.default addmm.default scaled_dot_product_attention.default "
    "conv2d.default max_pool2d.default adaptive_avg_pool2d.default embedding.default gather.default index.Tensor"
)
"""Tried with every sample call of the conformance suite. A row that the core adds is not taken before that."""


DECLINED: Mapping[str, str] = {
    "aten.slice_scatter.default": "torch-mlir runs out of memory over an end beyond the size",
}
"""Operators of the core's table that are left out, and why."""

FURTHER: Mapping[str, tuple[Condition, ...]] = {
    # IREE's compiler does not end over a tensor without dims.
    **dict.fromkeys(
        _names("softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default"), (has_dims,)
    ),
    # erf is not legalised; of the others IREE's linker says: undefined symbol.
    **dict.fromkeys(_names("gelu.default erf.default tanh.default sin.default cos.default"), (_NARROW,)),
    # torch-mlir raises no integers to powers.
    "aten.pow.Tensor_Scalar": (_NARROW,),
    # A negative one reads memory beside the tensor.
    **dict.fromkeys(_names("pad.default constant_pad_nd.default"), (plain("pad"), grown)),
}
"""Conditions beside those of the core's table."""

OWN: Mapping[str, tuple[Condition, ...]] = {
    "aten.lstm.input": (dtypes("float32"), one_of("train", False), unprojected),
}
"""Operators beside the core's table."""

OPERATORS = OperatorTable(
    {**{name: (*ROWS[name], *FURTHER.get(name, ())) for name in _TAKEN}, **OWN},
    everywhere=(_TRIED, on_cpu, not_empty),
)
