"""Pointwise functions as expressions in Triton's language. Imports neither torch nor triton."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.toolkit.functions import TRANSCENDENTAL

TYPES: Mapping[str, str] = {
    "f64": "tl.float64",
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "i16": "tl.int16",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "i1": "tl.int1",
}
"""Names of a tensor program's dtypes in Triton."""
ITEMSIZES: Mapping[str, int] = {
    **{"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "i1": 1},
}
"""Bytes of an element."""
FLOATS = ("f64", "f32", "f16", "bf16")
HALVES = ("f16", "bf16")

_INFIX: Mapping[str, str] = {
    **{"add": "+", "sub": "-", "mul": "*", "idiv": "//", "irem": "%"},
    **{"and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    **{"eq": operator.eq, "ne": operator.ne, "lt": operator.lt},
    **{"le": operator.le, "gt": operator.gt, "ge": operator.ge},
}
_INFIX_OF_BOOLEANS: Mapping[str, str] = {"add": "|", "mul": "&", "max": "|", "min": "&"}
_ORDERED = ("lt", "le", "gt", "ge")
_CALLS: Mapping[str, str] = {"abs": "tl.abs", "floor": "tl.floor", "ceil": "tl.ceil", "fma": "tl.fma"}
_LIBRARY: Mapping[str, str] = {
    "round": "nearbyint",
    **{name: name for name in (*TRANSCENDENTAL, "fmod", "trunc", "copysign")},
}
"""Function -> its name in libdevice, whose results are within a few ULP; Triton's own exp and log are approximations."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression with its dtype, and its number if it is a constant."""

    text: str
    dtype: str
    number: float | None = None


def constant(number: float, dtype: str) -> Value:
    """Return a constant as a value."""
    text = shown(number, dtype)
    return Value(f"tl.full((), {text}, {TYPES[dtype]})", dtype, number)


def folded(function: str, arguments: Sequence[Value]) -> Value | None:
    """Return the comparison of two constants as a constant; None for all else.

    Triton's interpreter would not accept the result of such a comparison next to tensors.
    """
    numbers = [argument.number for argument in arguments]
    if function not in _COMPARED or None in numbers:
        return None
    return constant(_COMPARED[function](*numbers), "i1")


def expression(function: str, dtype: str, arguments: Sequence[Value]) -> str:
    """Return the expression of a function of values, with a result of `dtype`. Raise KeyError for an unknown function."""
    first = arguments[0]
    if function == "copy":
        return first.text
    if function == "cast":
        return cast(first, dtype)
    if function == "select":
        return f"tl.where({', '.join(argument.text for argument in arguments)})"
    if first.dtype == "i1" and function in _INFIX_OF_BOOLEANS:
        return f"({first.text} {_INFIX_OF_BOOLEANS[function]} {arguments[1].text})"
    if first.dtype == "i1" and function in _ORDERED:
        arguments = [Value(cast(argument, "i32"), "i32") for argument in arguments]
    if function in _INFIX:
        return f"({_operand(arguments, 0)} {_INFIX[function]} {_operand(arguments, 1)})"
    return _called(function, dtype, arguments)


def _called(function: str, dtype: str, arguments: Sequence[Value]) -> str:
    texts = ", ".join(argument.text for argument in arguments)
    if function in ("max", "min"):
        name = "tl.maximum" if function == "max" else "tl.minimum"
        return f"{name}({texts}, propagate_nan=tl.PropagateNan.ALL)" if dtype in FLOATS else f"{name}({texts})"
    if function == "neg":  # 0 - x would lose the sign of zero
        return f"({texts} * -1.0)" if dtype in FLOATS else f"(-{texts})"
    if function == "not":
        return f"(~{texts})"
    if function == "div":
        return f"tl.div_rn({texts})" if dtype == "f32" else f"({arguments[0].text} / {arguments[1].text})"
    if function == "sqrt":
        return f"tl.sqrt_rn({texts})" if dtype == "f32" else f"tl.sqrt({texts})"
    if function in _CALLS:
        return f"{_CALLS[function]}({texts})"
    return f"libdevice.{_LIBRARY[function]}({texts})"


def cast(value: Value, dtype: str) -> str:
    """Return a value cast to another dtype: nonzero is true, and half precision is reached through float32."""
    if value.dtype == dtype:
        return value.text
    if dtype == "i1":
        return f"({value.text} != 0)"
    is_long_way = dtype in HALVES and value.dtype not in (*HALVES, "f32")  # rounded twice, as PyTorch does
    text = f"{value.text}.to(tl.float32)" if is_long_way else value.text
    return f"{text}.to({TYPES[dtype]})"


def _operand(arguments: Sequence[Value], place: int) -> str:
    """Return an operand of an infix operation; a plain number takes the dtype of the tensor that is the other operand."""
    value = arguments[place]
    has_equal_dtype = any(other.number is None and other.dtype == value.dtype for other in arguments)
    return shown(value.number, value.dtype) if value.number is not None and has_equal_dtype else value.text


def shown(number: float, dtype: str) -> str:
    """Return a number of a dtype as text."""
    if dtype == "i1":
        return str(bool(number))
    if dtype not in FLOATS:
        return str(int(number))
    number = float(number)
    return repr(number).replace("e+", "e") if math.isfinite(number) else f'float("{number}")'
