"""Elementwise functions as TVM's expressions, with PyTorch's semantics. TVM is imported when one is created.

Half-precision numbers are computed as float32 and rounded after each function; memory holds bfloat16 as uint16 and booleans
as uint8, so that TVM's own rules for them are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.plugin import CompileError
from hub.toolkit.functions import TRANSCENDENTAL

FLOATS = ("f64", "f32", "f16", "bf16")
MEMORY: Mapping[str, str] = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16"},
    **{"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "i1": "uint8"},
}
"""TVM's dtype in memory for each kind of element."""
CARRIED: Mapping[str, str] = {**MEMORY, "f16": "float32", "bf16": "float32", "i1": "bool"}
"""TVM's dtype in computations for each kind of element."""
_LLVM = {
    **{"max": "maximum", "min": "minimum", "abs": "fabs", "round": "nearbyint"},
    **{name: name for name in ("sqrt", "floor", "ceil", "trunc", "fma", "copysign")},
}
"""Functions of floats with an LLVM intrinsic; its `maximum` and `minimum` keep NaN, which TVM's lose."""
_LIBM = (*TRANSCENDENTAL, "fmod")
"""Functions of floats called from the C library: TVM's own are approximations, or have a wrong range."""
_COMPARED = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_TRUTH = {"add": "or", "mul": "and", "max": "or", "min": "and"}
"""Logic functions that replace arithmetic between booleans."""
COSTLY = frozenset((*_LIBM, "sqrt", "div", "idiv", "irem"))
"""Functions that are too expensive to compute twice."""


@dataclass(frozen=True)
class Value:
    """An expression, and the kind of element that it yields."""

    expression: Any
    kind: str


def constant(number: float, kind: str) -> Value:
    """Return one number."""
    from plugin_tvm.library import tirx

    if kind == "i1":
        return Value(tirx.const(bool(number), "bool"), kind)
    if kind not in FLOATS:
        return Value(tirx.const(int(number), CARRIED[kind]), kind)
    return Value(tirx.const(float(number), CARRIED[kind]), kind)


def loaded(expression: Any, kind: str) -> Value:
    """Convert an element in memory to the form in which it is computed with."""
    from plugin_tvm.library import tirx

    if kind == "bf16":
        expression = tirx.reinterpret("float32", expression.astype("uint32") << tirx.const(16, "uint32"))
    elif kind == "f16":
        expression = expression.astype("float32")
    elif kind == "i1":
        expression = tirx.NE(expression, tirx.const(0, "uint8"))
    return Value(expression, kind)


def stored(value: Value) -> Any:
    """Convert an element to the form in which it is written to memory."""
    from plugin_tvm.library import tirx

    if value.kind == "bf16":
        return _brain(value.expression)
    if value.kind == "f16":
        return value.expression.astype("float16")
    if value.kind == "i1":
        return tirx.Select(value.expression, tirx.const(1, "uint8"), tirx.const(0, "uint8"))
    return value.expression


def _brain(expression: Any) -> Any:
    """Return the upper half of a float32, rounded to nearest, ties to even; NaN stays NaN."""
    from plugin_tvm.library import tirx

    number = tirx.Var("number", "float32")
    bits = tirx.reinterpret("uint32", number)
    odd = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
    nearest = (bits + odd + tirx.const(0x7FFF, "uint32")) >> tirx.const(16, "uint32")
    kept = tirx.Select(_differs(number, number), tirx.const(0x7FC0, "uint32"), nearest)
    return tirx.Let(number, expression, kept.astype("uint16"))


def _rounded(expression: Any, kind: str) -> Value:
    """Return a float32, rounded to half precision if that is its kind."""
    if kind in ("f16", "bf16"):
        return loaded(stored(Value(expression, kind)), kind)
    return Value(expression, kind)


def cast(value: Value, kind: str) -> Value:
    """Convert an element to another kind: any number but 0 is true; floats are truncated to integers."""
    from plugin_tvm.library import tirx

    if value.kind == kind:
        return value
    expression = value.expression
    if kind == "i1":
        zero = tirx.const(0, CARRIED[value.kind])
        is_float = value.kind in FLOATS
        return Value(_differs(expression, zero) if is_float else tirx.NE(expression, zero), kind)
    if value.kind == "i1":
        one, zero = (tirx.const(number, CARRIED[kind]) for number in (1, 0))
        return Value(tirx.Select(expression, one, zero), kind)
    if value.kind in FLOATS and kind in ("i16", "i8", "u8"):
        expression = expression.astype("int64")  # numbers out of range wrap, as in PyTorch
    return _rounded(expression.astype(CARRIED[kind]), kind)


def applied(function: str, kind: str, arguments: Sequence[Value]) -> Value:
    """Return a function of elements with a result of a kind. Raise CompileError if it has no expression."""
    from plugin_tvm.library import tirx

    first = arguments[0]
    if function == "copy":
        return first
    if function == "cast":
        return cast(first, kind)
    parts = [argument.expression for argument in arguments]
    if function == "select":
        return Value(tirx.Select(*parts), kind)
    if function in _COMPARED:
        if first.kind == "i1":
            parts = [cast(argument, "i32").expression for argument in arguments]
        elif first.kind in FLOATS:
            truth = _differs(*parts) if function == "ne" else getattr(tirx, _COMPARED[function])(*parts)
            return Value(_kept(truth), kind)
        return Value(getattr(tirx, _COMPARED[function])(*parts), kind)
    if first.kind == "i1":
        return Value(_logic(_TRUTH.get(function, function), parts), kind)
    if first.kind in FLOATS:
        return _rounded(_of_floats(function, CARRIED[first.kind], parts), kind)
    return Value(_of_integers(function, CARRIED[first.kind], parts), kind)


def _differs(left: Any, right: Any) -> Any:
    """Return whether two floats differ, as an expression; NaN differs from everything.

    TVM's NE, into which it rewrites the negation of EQ, is false for NaN.
    """
    from plugin_tvm.library import tirx

    if left.same_as(right):
        return _is_nan(left)
    apart = tirx.Or(tirx.LT(left, right), tirx.GT(left, right))
    return tirx.Or(apart, tirx.Or(_is_nan(left), _is_nan(right)))


def _kept(truth: Any) -> Any:
    """Hide what is compared from TVM, which takes floats to be ordered: to it, one of x > 0 and x <= 0 is always true."""
    from plugin_tvm.library import tirx

    return tirx.NE(truth.astype("uint8"), tirx.const(0, "uint8"))


def _is_nan(number: Any) -> Any:
    """Return whether a float is NaN, as an expression on its bits: TVM simplifies a comparison of a number with itself."""
    from plugin_tvm.library import tirx

    if isinstance(number, tirx.FloatImm):
        return tirx.const(math.isnan(float(number.value)), "bool")
    is_single = str(number.ty.dtype).endswith("32")
    kind = "uint32" if is_single else "uint64"
    size, infinite = (0x7FFFFFFF, 0x7F800000) if is_single else (0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000)
    return tirx.GT(tirx.reinterpret(kind, number) & tirx.const(size, kind), tirx.const(infinite, kind))


def _logic(function: str, parts: Sequence[Any]) -> Any:
    from plugin_tvm.library import tirx

    if function == "not":
        return tirx.Not(parts[0])
    if function == "and":
        return tirx.And(*parts)
    if function == "or":
        return tirx.Or(*parts)
    if function == "xor":
        return tirx.Or(tirx.And(parts[0], tirx.Not(parts[1])), tirx.And(tirx.Not(parts[0]), parts[1]))
    raise _unknown(function, "bool")


def _of_floats(function: str, dtype: str, parts: Sequence[Any]) -> Any:
    from plugin_tvm.library import tirx

    if function in _LLVM:
        return tirx.call_llvm_pure_intrin(dtype, f"llvm.{_LLVM[function]}", *parts)
    if function in _LIBM:
        return tirx.call_pure_extern(dtype, function if dtype == "float64" else f"{function}f", *parts)
    if function == "neg":  # 0 - x would lose the sign of zero
        return parts[0] * tirx.const(-1.0, dtype)
    if function in ("mul", "div"):
        parts = [_opaque(part, dtype) for part in parts]
        return parts[0] * parts[1] if function == "mul" else tirx.div(parts[0], parts[1])
    if function in ("add", "sub"):
        return parts[0] + parts[1] if function == "add" else parts[0] - parts[1]
    raise _unknown(function, dtype)


def _opaque(part: Any, dtype: str) -> Any:
    """Hide a zero from TVM, which simplifies x * 0 and 0 / x to 0, although x may be infinite or NaN."""
    from plugin_tvm.library import tirx

    if not isinstance(part, tirx.FloatImm) or float(part.value) != 0.0:
        return part
    sign = tirx.const(math.copysign(1.0, float(part.value)), dtype)
    return tirx.call_llvm_pure_intrin(dtype, "llvm.copysign", part, sign)


_INTEGER: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "mul": lambda left, right: left * right,
    "and": lambda left, right: left & right,
    "or": lambda left, right: left | right,
    "xor": lambda left, right: left ^ right,
    "shl": lambda left, right: left << right,
    "shr": lambda left, right: left >> right,
}

_WRAPPED = ("add", "sub", "mul")
"""Functions of integers whose results may leave the range, where they wrap."""
_WIDER = {"int32": "int64", "int64": "int128"}
"""Integers of which TVM and LLVM assume that no result leaves the range, and those in which none does.

LLVM makes one narrow operation of it, which wraps.
"""


def _of_integers(function: str, dtype: str, parts: Sequence[Any]) -> Any:
    from plugin_tvm.library import tirx

    if function == "neg":
        function, parts = "sub", [tirx.const(0, dtype), parts[0]]
    if function in _WRAPPED and (wider := _WIDER.get(dtype)):
        wide = _INTEGER[function](*(_bits(part.astype(wider), wider) for part in parts))
        return _bits(wide, dtype)
    if function in _INTEGER:
        return _INTEGER[function](*parts)
    if function in ("idiv", "irem", "max", "min"):
        found = {"idiv": tirx.truncdiv, "irem": tirx.truncmod, "max": tirx.max, "min": tirx.min}[function]
        return found(*parts)
    if function == "not":
        return tirx.bitwise_not(parts[0])
    if function == "abs":
        return _of_integers("max", dtype, [parts[0], _of_integers("neg", dtype, parts)]) if dtype != "uint8" else parts[0]
    raise _unknown(function, dtype)


def _bits(part: Any, dtype: str) -> Any:
    """Return an integer, cut off to a dtype of as many bits or fewer, as one of which TVM knows nothing."""
    from plugin_tvm.library import tirx

    if isinstance(part, tirx.IntImm):
        half = 1 << int(dtype.removeprefix("int")) - 1
        return tirx.const((int(part.value) + half) % (2 * half) - half, dtype)
    return tirx.reinterpret(dtype, part.astype(f"u{dtype}"))


def _unknown(function: str, dtype: str) -> CompileError:
    return CompileError(f"no expression for {function} of {dtype}")


# --- Along dims -------------------------------------------------------------------------------------------------------

_COMBINED = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}


def combined(function: str, left: Value, right: Value) -> Value:
    """Combine two elements of a reduction, in which TVM recognizes plain sums and products."""
    name = _COMBINED.get(function, function)
    if name in _WRAPPED and left.kind not in (*FLOATS, "i1"):
        return Value(_INTEGER[name](left.expression, right.expression), left.kind)
    return applied(name, left.kind, (left, right))
