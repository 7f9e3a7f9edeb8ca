"""What Inductor takes: any ATen or prims operator on dense tensors, less a table of refusals with their reasons."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hub.support import ACCEPTED, Support, dtype_name, operator_name, refused, tensors_of, value_of

if TYPE_CHECKING:
    from torch import fx

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)

NAMESPACES = ("aten", "prims")

REFUSED: dict[str, str] = {}
"""Operators that Inductor compiles wrongly or not at all, each with the reason."""


def supports(node: fx.Node) -> Support:
    """Gives the verdict on one call_function node, from its operator and the fake values around it."""
    if node.target is operator.getitem:
        return ACCEPTED
    name = operator_name(node)
    namespace = name.partition(".")[0]
    if namespace not in NAMESPACES or not hasattr(node.target, "_schema"):
        return refused(f"{name}: only operators of {', '.join(NAMESPACES)} here")
    reason = REFUSED.get(name) or _dtype_refusal(node) or _layout_refusal(node) or _number_refusal(node)
    return refused(f"{name}: {reason}") if reason else ACCEPTED


def _dtype_refusal(node: fx.Node) -> str | None:
    bad = sorted({dtype_name(tensor.dtype) for tensor in tensors_of(node)}.difference(DTYPES))
    return f"dtype {', '.join(bad)}, only {', '.join(DTYPES)} here" if bad else None


def _layout_refusal(node: fx.Node) -> str | None:
    bad = next(
        (tensor for tensor in tensors_of(node) if str(tensor.layout) != "torch.strided" or tensor.is_quantized), None
    )
    return None if bad is None else f"a {bad.layout} tensor, only dense ones here"


def _number_refusal(node: fx.Node) -> str | None:
    """Inductor reads sizes from its inputs, but no other numbers that are known only at run time."""
    kinds = sorted({type(value).__name__ for value in _numbers(node)} & {"SymFloat", "SymBool"})
    return f"reads a {kinds[0]} known only at run time, only sizes here" if kinds else None


def _numbers(node: fx.Node) -> Iterator[Any]:
    return (value_of(source) for source in node.all_input_nodes)
