"""Properties of elementwise functions that hold for every code generator. Imports no torch."""

from __future__ import annotations

import ctypes
import math
import struct

TRANSCENDENTAL = (
    *("exp", "expm1", "exp2", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("tanh", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "atan2", "hypot"),
)
"""Functions that cost more than reading their result again; libraries provide them under these names."""
_LOWEST = {"i64": -(2**63), "i32": -(2**31), "i16": -(2**15), "i8": -128, "u8": 0, "i1": 0}
_HIGHEST = {"i64": 2**63 - 1, "i32": 2**31 - 1, "i16": 2**15 - 1, "i8": 127, "u8": 255, "i1": 1}


def single(value: float) -> float:
    """Return a number rounded to float32."""
    return ctypes.c_float(value).value


def halved(value: float, dtype: str) -> float:
    """Return a number rounded to "f16" or "bf16", by way of float32 as in PyTorch."""
    value = single(value)
    if not math.isfinite(value):
        return value
    if dtype == "f16":
        try:
            return struct.unpack("e", struct.pack("e", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    (bits,) = struct.unpack("I", struct.pack("f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0]


def neutral(function: str, dtype: str) -> float:
    """Return the neutral element of "sum", "prod", "max", "min", "any" or "all" for a dtype."""
    if function in ("sum", "any"):
        return 0
    if function in ("prod", "all"):
        return 1
    bounds = _LOWEST if function == "max" else _HIGHEST
    return bounds.get(dtype, -math.inf if function == "max" else math.inf)
