"""The functions of single elements: each by MLIR operations, or by a call of the vector library inside PyTorch (Sleef)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hub.toolkit.functions import TRANSCENDENTAL

from .curves import exponential, hyperbolic_tangent
from .registers import by_register
from .writer import SCALAR, Value, Writer

Emit = Callable[[Writer, "str", Sequence[Value]], Value]
"""Function that writes an operation for a result dtype; all arguments are wide, or none is."""

INTEGERS = ("i64", "i32", "i16", "i8", "u8", "i1")
_SLEEF = {
    "exp": "exp{}_u10",
    "expm1": "expm1{}_u10",
    "exp2": "exp2{}_u10",
    "log": "log{}_u10",
    "log2": "log2{}_u10",
    "log10": "log10{}_u10",
    "log1p": "log1p{}_u10",
    "sin": "sin{}_u10",
    "cos": "cos{}_u10",
    "tan": "tan{}_u10",
    "asin": "asin{}_u10",
    "acos": "acos{}_u10",
    "atan": "atan{}_u10",
    "sinh": "sinh{}_u10",
    "cosh": "cosh{}_u10",
    "tanh": "tanh{}_u10",
    "asinh": "asinh{}_u10",
    "acosh": "acosh{}_u10",
    "atanh": "atanh{}_u10",
    "erf": "erf{}_u10",
    "erfc": "erfc{}_u15",
    "pow": "pow{}_u10",
    "atan2": "atan2{}_u10",
    "hypot": "hypot{}_u05",
}
assert set(_SLEEF) == set(TRANSCENDENTAL)
_WRITTEN_OUT = {"exp": exponential, "tanh": hyperbolic_tangent}
"""Functions written inline in float32."""


def emitted(writer: Writer, function: str, dtype: str, arguments: Sequence[Value]) -> Value:
    """Return a function of values; the result is wide if any of them is."""
    if any(argument.is_wide for argument in arguments):
        arguments = [writer.wide(argument) for argument in arguments]
    if dtype == "f32" and function in _WRITTEN_OUT:
        return _WRITTEN_OUT[function](writer, arguments[0])
    if function in _SLEEF:
        found = _called(writer, function, dtype, arguments)
        return found if function not in ("acosh", "asinh") else _where_large(writer, function, dtype, arguments[0], found)
    return FUNCTIONS[function](writer, dtype, arguments)


def _put(writer: Writer, operation: str, dtype: str, arguments: Sequence[Value]) -> Value:
    level = max(argument.level for argument in arguments)
    return writer.put(operation, dtype, is_wide=arguments[0].is_wide, level=level)


def _kind(writer: Writer, value: Value) -> str:
    return writer.type_of(value.dtype, is_wide=value.is_wide)


def _plain(for_floats: str, for_integers: str = "", for_booleans: str = "", for_bytes: str = "") -> Emit:
    """Return the writer of an operation whose operands and result have the same type."""

    def emit(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
        name = for_floats if dtype in ("f32", "f64") else for_booleans if dtype == "i1" else for_integers
        name = for_bytes if for_bytes and dtype == "u8" else name
        if not name:
            raise NotImplementedError(f"{for_floats} of {dtype}")
        names = ", ".join(argument.name for argument in arguments)
        return _put(writer, f"{name} {names} : {_kind(writer, arguments[0])}", dtype, arguments)

    return emit


def _compared(for_floats: str, for_integers: str, unsigned: str = "") -> Emit:
    def emit(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
        kind = arguments[0].dtype
        names = ", ".join(argument.name for argument in arguments)
        if kind in ("f32", "f64"):
            text = f"arith.cmpf {for_floats}, {names}"
        else:
            text = f"arith.cmpi {(unsigned or for_integers) if kind in ('u8', 'i1') else for_integers}, {names}"
        return _put(writer, f"{text} : {_kind(writer, arguments[0])}", dtype, arguments)

    return emit


def _select(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
    condition, yes, no = arguments
    names = f"{condition.name}, {yes.name}, {no.name}"
    return _put(writer, f"arith.select {names} : {_kind(writer, condition)}, {_kind(writer, yes)}", dtype, arguments)


def _copy(_writer: Writer, _dtype: str, arguments: Sequence[Value]) -> Value:
    return arguments[0]


def _negated(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
    (value,) = arguments
    if dtype in ("f32", "f64"):
        return _put(writer, f"arith.negf {value.name} : {_kind(writer, value)}", dtype, arguments)
    zero = writer.constant(0, dtype, is_wide=value.is_wide)
    return _put(writer, f"arith.subi {zero.name}, {value.name} : {_kind(writer, value)}", dtype, arguments)


def _absolute(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
    (value,) = arguments
    if dtype in ("f32", "f64"):
        return _put(writer, f"math.absf {value.name} : {_kind(writer, value)}", dtype, arguments)
    if dtype == "u8":
        return value
    negative = _negated(writer, dtype, arguments)
    text = f"arith.maxsi {value.name}, {negative.name} : {_kind(writer, value)}"
    return _put(writer, text, dtype, arguments)


def _divided(name: str, *, is_quotient: bool) -> Emit:
    """Return the writer of an integer division towards zero by any divisor; a division by 0 is one by 1.

    The instruction that divides by 0, or the smallest number by -1, ends the process, even in unused lanes.
    """

    def emit(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
        left, right = arguments
        is_wide = left.is_wide

        def is_equal(number: int) -> Value:
            return emitted(writer, "eq", "i1", (right, writer.constant(number, dtype, is_wide=is_wide)))

        is_bad, is_turned = is_equal(0), None
        if dtype != "u8":
            is_turned = is_equal(-1)
            is_bad = emitted(writer, "or", "i1", (is_bad, is_turned))
        by = emitted(writer, "select", dtype, (is_bad, writer.constant(1, dtype, is_wide=is_wide), right))
        operation = f"arith.{name}{'ui' if dtype == 'u8' else 'si'}"
        result = _put(writer, f"{operation} {left.name}, {by.name} : {_kind(writer, left)}", dtype, (left, by))
        if is_turned is None or not is_quotient:
            return result
        return emitted(writer, "select", dtype, (is_turned, _negated(writer, dtype, (left,)), result))

    return emit


def _not(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
    (value,) = arguments
    ones = writer.constant(True if dtype == "i1" else -1, dtype, is_wide=value.is_wide)
    return _put(writer, f"arith.xori {value.name}, {ones.name} : {_kind(writer, value)}", dtype, arguments)


def _cast(writer: Writer, dtype: str, arguments: Sequence[Value]) -> Value:
    (value,) = arguments
    if value.dtype == dtype:
        return value
    if dtype == "i1":
        return _is_nonzero(writer, value)
    if value.dtype == "bf16":
        return _cast(writer, dtype, (_widened(writer, value),))
    if dtype == "bf16":
        return _rounded(writer, _cast(writer, "f32", (value,)))
    if value.dtype == "f64" and dtype == "f16":  # as in eager; for one step LLVM calls a function that is not linked
        value = _cast(writer, "f32", (value,))
    if value.dtype not in INTEGERS and dtype in _NARROW:
        return _cast(writer, dtype, (_wrapping(writer, value),))
    name = _conversion(value.dtype, dtype)
    if not name:  # between u8 and i8
        return Value(value.name, dtype, value.is_wide, value.level)
    kinds = f"{_kind(writer, value)} to {writer.type_of(dtype, is_wide=value.is_wide)}"
    return _put(writer, f"{name} {value.name} : {kinds}", dtype, (value,))


def _widened(writer: Writer, value: Value) -> Value:
    """Return a bfloat16, the upper half of a float32, as float32."""
    bits = _cast(writer, "i32", (Value(value.name, "i16", value.is_wide, value.level),))
    upper = emitted(writer, "shl", "i32", (bits, writer.constant(16, "i32", is_wide=value.is_wide)))
    return _reinterpreted(writer, upper, "f32")


def _rounded(writer: Writer, value: Value) -> Value:
    """Return a float32 rounded to the nearest bfloat16, ties to even."""

    def number(bits: int) -> Value:
        return writer.constant(bits, "i32", is_wide=value.is_wide)

    bits = _reinterpreted(writer, value, "i32")
    is_odd = emitted(writer, "and", "i32", (emitted(writer, "shru", "i32", (bits, number(16))), number(1)))
    raised = emitted(writer, "add", "i32", (emitted(writer, "add", "i32", (bits, number(0x7FFF))), is_odd))
    rounded = emitted(writer, "shru", "i32", (raised, number(16)))
    is_nan = emitted(writer, "ne", "i1", (value, value))
    upper = _cast(writer, "i16", (emitted(writer, "select", "i32", (is_nan, number(0x7FC0), rounded)),))
    return Value(upper.name, "bf16", upper.is_wide, upper.level)


def _reinterpreted(writer: Writer, value: Value, dtype: str) -> Value:
    kinds = f"{_kind(writer, value)} to {writer.type_of(dtype, is_wide=value.is_wide)}"
    return _put(writer, f"arith.bitcast {value.name} : {kinds}", dtype, (value,))


_NARROW = ("i16", "i8", "u8")
_TWO_TO_31 = 2147483648.0


def _wrapping(writer: Writer, value: Value) -> Value:
    """Return a float as i32, eager's intermediate for narrower integers: NaN and out-of-range values become the lowest."""
    if value.dtype == "f16":
        value = _cast(writer, "f32", (value,))
    low, high = (writer.constant(limit, value.dtype, is_wide=value.is_wide) for limit in (-_TWO_TO_31, _TWO_TO_31))
    fits = emitted(
        writer, "and", "i1", [emitted(writer, "ge", "i1", (value, low)), emitted(writer, "lt", "i1", (value, high))]
    )
    return _cast(writer, "i32", (emitted(writer, "select", value.dtype, (fits, value, low)),))


def _conversion(source: str, dtype: str) -> str:
    unsigned = source in ("i1", "u8")
    if source in INTEGERS:
        if dtype not in INTEGERS:
            return "arith.uitofp" if unsigned else "arith.sitofp"
        old, new = _bits(source), _bits(dtype)
        if old == new:
            return ""
        return "arith.trunci" if new < old else "arith.extui" if unsigned else "arith.extsi"
    if dtype in INTEGERS:
        return "arith.fptosi"
    return "arith.truncf" if _bits(dtype) < _bits(source) else "arith.extf"


def _bits(dtype: str) -> int:
    return int(SCALAR[dtype].lstrip("bfi"))


def _is_nonzero(writer: Writer, value: Value) -> Value:
    if value.dtype == "bf16":
        value = _widened(writer, value)
    if value.dtype in INTEGERS:
        zero = writer.constant(0, value.dtype, is_wide=value.is_wide)
        text = f"arith.cmpi ne, {value.name}, {zero.name} : {_kind(writer, value)}"
    else:
        zero = writer.constant(0.0, value.dtype, is_wide=value.is_wide)
        text = f"arith.cmpf une, {value.name}, {zero.name} : {_kind(writer, value)}"
    return _put(writer, text, "i1", (value,))


def _called(writer: Writer, function: str, dtype: str, arguments: Sequence[Value]) -> Value:
    """Return a call of the vector library, split into as many parts as its registers need."""
    is_wide = arguments[0].is_wide
    wide = [writer.wide(argument) for argument in arguments]
    natural = writer.natural if dtype == "f32" else writer.natural // 2
    name = "Sleef_" + _SLEEF[function].format(f"f{natural}" if dtype == "f32" else f"d{natural}")
    pointer = writer.slot(writer.frame.function(name), "!llvm.ptr")

    def call(names: Sequence[str], kind: str) -> str:
        signature = f"!llvm.ptr, ({', '.join(kind for _ in names)}) -> {kind}"
        return f"llvm.call {pointer.name}({', '.join(names)}) : {signature}"

    result = by_register(writer, wide, natural, call)
    if is_wide:
        return result
    text = f"vector.extract {result.name}[0] : {dtype} from {writer.vector(dtype)}"
    return writer.put(text, dtype, is_wide=False, level=result.level)


_LARGE = 2.0**28
"""Magnitude from which log(2 |x|) differs from acosh and asinh in no bit of a float64."""


def _where_large(writer: Writer, function: str, dtype: str, source: Value, found: Value) -> Value:
    """Return acosh or asinh; large numbers, which Sleef squares beyond what is finite, have the logarithm instead."""

    def number(value: float) -> Value:
        return writer.constant(value, dtype, is_wide=source.is_wide)

    size = source if function == "acosh" else emitted(writer, "abs", dtype, (source,))
    large = emitted(writer, "add", dtype, (emitted(writer, "log", dtype, (size,)), number(math.log(2.0))))
    if function == "asinh":
        large = emitted(writer, "copysign", dtype, (large, source))
    is_large = emitted(writer, "gt", "i1", (size, number(_LARGE)))
    return emitted(writer, "select", dtype, (is_large, large, found))


FUNCTIONS: dict[str, Emit] = {
    "copy": _copy,
    "cast": _cast,
    "select": _select,
    "add": _plain("arith.addf", "arith.addi", "arith.ori"),
    "sub": _plain("arith.subf", "arith.subi"),
    "mul": _plain("arith.mulf", "arith.muli", "arith.andi"),
    "div": _plain("arith.divf"),
    "fmod": _plain("arith.remf"),
    "fma": _plain("math.fma"),
    "max": _plain("arith.maximumf", "arith.maxsi", "arith.ori", "arith.maxui"),
    "min": _plain("arith.minimumf", "arith.minsi", "arith.andi", "arith.minui"),
    "idiv": _divided("div", is_quotient=True),
    "irem": _divided("rem", is_quotient=False),
    "and": _plain("", "arith.andi", "arith.andi"),
    "or": _plain("", "arith.ori", "arith.ori"),
    "xor": _plain("", "arith.xori", "arith.xori"),
    "shl": _plain("", "arith.shli"),
    "shr": _plain("", "arith.shrsi", "", "arith.shrui"),
    "shru": _plain("", "arith.shrui"),
    "neg": _negated,
    "abs": _absolute,
    "not": _not,
    "sqrt": _plain("math.sqrt"),
    "floor": _plain("math.floor"),
    "ceil": _plain("math.ceil"),
    "trunc": _plain("math.trunc"),
    "round": _plain("math.roundeven"),
    "copysign": _plain("math.copysign"),
    "eq": _compared("oeq", "eq"),
    "ne": _compared("une", "ne"),
    "lt": _compared("olt", "slt", "ult"),
    "le": _compared("ole", "sle", "ule"),
    "gt": _compared("ogt", "sgt", "ugt"),
    "ge": _compared("oge", "sge", "uge"),
}
