"""Reductions: how two values are combined, and how lanes become one value."""

from __future__ import annotations

from .functions import emitted
from .writer import SCALAR, Value, Writer

FUNCTION = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
"""Function of a `Reduce` -> function of two elements."""


def combined(writer: Writer, function: str, left: Value, right: Value) -> Value:
    """Return the combination of two values."""
    return emitted(writer, FUNCTION[function], left.dtype, (left, right))


def across_lanes(writer: Writer, function: str, value: Value) -> Value:
    """Return all lanes combined into a scalar, by halves: fewer roundings than one lane after the other."""
    width = writer.lanes
    name = value.name
    operation = {"sum": "arith.addf", "prod": "arith.mulf", "max": "arith.maximumf", "min": "arith.minimumf"}.get(function)
    kind = value.dtype
    if kind not in ("f32", "f64") or operation is None:
        sign = "u" if kind == "u8" else "s"
        words = {"sum": "add", "prod": "mul", "max": f"max{sign}i", "min": f"min{sign}i", "any": "or", "all": "and"}
        word = words[function]
        shown = writer.vector(kind)
        return writer.put(
            f"vector.reduction <{word}>, {name} : {shown} into {SCALAR[kind]}", kind, is_wide=False, level=value.level
        )
    while width > 1:
        half = width // 2
        halves: list[str] = []
        for start in (0, half):
            text = (
                f"vector.extract_strided_slice {name} {{offsets = [{start}], sizes = [{half}], strides = [1]}}"
                f" : vector<{width}x{kind}> to vector<{half}x{kind}>"
            )
            halves.append(writer.put(text, kind, is_wide=True, level=value.level).name)
        text = f"{operation} {halves[0]}, {halves[1]} : vector<{half}x{kind}>"
        name = writer.put(text, kind, is_wide=True, level=value.level).name
        width = half
    return writer.put(f"vector.extract {name}[0] : {kind} from vector<1x{kind}>", kind, is_wide=False, level=value.level)
