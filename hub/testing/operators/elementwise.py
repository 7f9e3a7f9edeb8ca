"""Samples of elementwise operators: functions, arithmetic, comparisons, logic, choice."""

from __future__ import annotations

from math import inf, nan

import torch

from hub.testing.operators.sample import Table, at, b, bf16, call, f, f16, f64, i32, i64, lit, pos, rows, u8, unit

_EDGES = lit(nan, inf, -inf, 0.0, -0.0, 1e-40, -1.5, 3e38)
_BIG = lit(-100.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 88.0, 100.0)
_HALVES = lit(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49999, -0.0)
_LIMITS = lit(2**31 - 1, -(2**31), -1, 0, 1, 7, dtype=torch.int32)
_SIGNED = lit(-7, -6, -1, 0, 1, 6, 7, 13)
_DIVISORS = lit(3, -4, 5, 2, -1, -6, 2, -5)

_ANY_SHAPE = (
    call(f(3, 4)),
    call(f(2, 3, 5)),
    call(f()),
    call(f(1)),
    call(f(0, 3)),
    call(f(4, 3).T),
    call(f(2, 6).strided),
    call(f64(5)),
    call(f16(5)),
    call(bf16(5)),
)
_POSITIVE = (
    call(pos(3, 4)),
    call(pos()),
    call(pos(4, 3).T),
    call(pos(5, dtype=torch.float64)),
    call(lit(1e-30, 1.0, 1e30, inf)),
)
_INSIDE = (call(unit(3, 4)), call(unit()), call(unit(4, 3).T), call(unit(5, dtype=torch.float64)))
_WHOLE = (call(i64(3, 4)), call(i32(7)), call(_SIGNED))
_TRUTH = (call(b(3, 4)), call(i64(3, 4, low=0, high=2)), call(f(4)), call(lit(0.0, nan, -1.0, 2.0)))

_FUNCTIONS: Table = {
    **rows("relu.default abs.default neg.default", *_ANY_SHAPE, *_WHOLE, call(_EDGES)),
    **rows("sign.default sgn.default square.default", *_ANY_SHAPE, *_WHOLE, call(_BIG)),
    **rows("exp.default expm1.default exp2.default sigmoid.default tanh.default", *_ANY_SHAPE, call(_EDGES), call(_BIG)),
    **rows("silu.default mish.default selu.default log_sigmoid.default", *_ANY_SHAPE, call(_BIG)),
    **rows("erf.default erfc.default atan.default asinh.default", *_ANY_SHAPE, call(_BIG), call(_EDGES)),
    **rows("sin.default cos.default", *_ANY_SHAPE, call(lit(-100.0, -3.1415927, 1.5707964, 100.0, nan))),
    **rows("tan.default sinh.default cosh.default frac.default sinc.default", *_ANY_SHAPE),
    **rows("floor.default ceil.default trunc.default fix.default", *_ANY_SHAPE, call(_HALVES), call(_EDGES)),
    **rows("round.default", *_ANY_SHAPE, call(_HALVES), call(lit(inf, nan, 1e20))),
    "aten.round.decimals": (call(f(3, 4), decimals=2), call(lit(12.5, 1234.5), decimals=-1)),
    **rows("reciprocal.default", *_ANY_SHAPE, call(lit(0.0, -0.0, inf, 4.0)), call(lit(1, 2, -4))),
    **rows(
        "log.default log2.default log10.default log1p.default sqrt.default",
        *_POSITIVE,
        call(lit(0.0, -1.0, nan)),
        call(lit(1, 2, 9)),
    ),
    **rows("rsqrt.default lgamma.default digamma.default", *_POSITIVE),
    **rows("acos.default asin.default atanh.default erfinv.default", *_INSIDE),
    "aten.acosh.default": (call(lit(1.0, 1.5, 20.0)), call(lit(0.5, inf))),
    "aten.logit.default": (call(pos(3, 4)), call(unit(5), 1e-3)),
    **rows("isnan.default isinf.default isfinite.default", *_ANY_SHAPE, call(_EDGES), call(i64(3))),
    **rows("deg2rad.default rad2deg.default positive.default", call(f(3, 4)), call(f())),
    **rows("logical_not.default", *_TRUTH, call(_EDGES)),
    **rows("bitwise_not.default", call(b(3, 4)), call(i64(5)), call(_LIMITS), call(u8(4))),
    **rows("clone.default alias.default", *_ANY_SHAPE, *_WHOLE, call(b(3))),
    "aten.contiguous.default": (call(f(2, 3)), call(f(3, 4).T), call(f(1, 4, 3, 3), memory_format=torch.channels_last)),
    "aten.log_sigmoid_forward.default": (call(f(3, 4)).reads(0), call(_BIG).reads(0)),
}

_ACTIVATIONS: Table = {
    "aten.gelu.default": (
        *_ANY_SHAPE,
        call(_BIG),
        call(f(3, 4), approximate="tanh"),
        call(_BIG, approximate="tanh"),
        call(f(5).strided, approximate="none"),
    ),
    "aten.leaky_relu.default": (*_ANY_SHAPE, call(f(3, 4), 0.2), call(f(3, 4), -0.5), call(_EDGES, 0.1)),
    "aten.elu.default": (*_ANY_SHAPE, call(f(3, 4), 0.5), call(f(3, 4), 1.5, 2.0, 0.7), call(_BIG)),
    "aten.celu.default": (*_ANY_SHAPE, call(f(3, 4), 0.5)),
    "aten.softplus.default": (*_ANY_SHAPE, call(f(3, 4), 2), call(f(3, 4), 0.5, 0.1), call(_BIG)),
    **rows(
        "hardswish.default hardsigmoid.default relu6.default", *_ANY_SHAPE, call(_BIG), call(lit(-3.0, 3.0, 6.0, nan, inf))
    ),
    "aten.hardtanh.default": (
        *_ANY_SHAPE,
        call(f(3, 4), -0.5, 0.25),
        call(f(3, 4), 0.0, 6.0),
        call(lit(nan, inf, -inf), 0.0, 6.0),
    ),
    "aten.hardshrink.default": (call(f(3, 4)), call(f(3, 4), 1)),
    "aten.softshrink.default": (call(f(3, 4)), call(f(3, 4), 1)),
    "aten.threshold.default": (call(f(3, 4), 0.1, 20), call(f(3, 4), -0.5, -7.0)),
    "aten.prelu.default": (
        call(f(2, 3, 4), f(3)),
        call(f(2, 3), f(1)),
        call(f(2, 3, 4, 4), f(3)),
        call(bf16(2, 3), bf16(3)),
    ),
    "aten._prelu_kernel.default": (call(f(2, 3, 4), f(1, 3, 1)), call(f(2, 3), f(1, 1)), call(f16(2, 3), f16(1, 3))),
    **rows("glu.default", call(f(2, 6)), call(f(4, 3), 0), call(f(2, 4, 3), -2)),
}

_PAIRS = (
    call(f(2, 3), f(2, 3)),
    call(f(2, 3, 4), f(4)),
    call(f(2, 1, 4), f(3, 1)),
    call(f(3, 4), f()),
    call(f(), f(3)),
    call(f(3, 2).T, f(2, 3)),
    call(f(0, 3), f(3)),
    call(f64(3), f64(3)),
    call(bf16(3, 4), bf16(4)),
    call(f16(3, 4), f16(4)),
)
_WHOLE_PAIRS = (call(i64(3, 4), i64(4)), call(i32(3), i32(3)), call(_LIMITS, _LIMITS))
_MIXED_PAIRS = (call(f(3), i64(3)), call(i32(3), i64(3)), call(f(3), f64()), call(bf16(3), f(3)), call(i64(3), f()))
_ADDENDS = (*_PAIRS, *_WHOLE_PAIRS, *_MIXED_PAIRS, call(b(3), f(3)))
_SCALED = (call(f(2, 3), f(3), alpha=2), call(f(2, 3), f(3), alpha=-0.5), call(i64(3), i64(3), alpha=3))
_NUMBERS = (
    call(f(3, 4), 2.5),
    call(f(3, 4), 3),
    call(f(), -1.5),
    call(i64(3), 2),
    call(i32(3), -3),
    call(bf16(4), 1.5),
    call(f16(4), 2),
    call(i64(3), 0.5),
)

_HALF_PAIRS = (call(f16(2, 3), f16(3)), call(bf16(2, 3), bf16(3)))
_ARITHMETIC: Table = {
    "aten.add.Tensor": (*_ADDENDS, *_SCALED, call(b(4), b(4)), call(f(3), 2.5), call(i64(3), 2)),
    "aten.sub.Tensor": (*_PAIRS, *_WHOLE_PAIRS, *_MIXED_PAIRS, *_SCALED, call(f(3), 1.5), call(i64(3), 1)),
    "aten.rsub.Tensor": (*_PAIRS[:5], *_SCALED),
    "aten.mul.Tensor": (*_ADDENDS, call(b(4), b(4)), call(f(3), 0.125), call(i64(3), -2), call(f(3, 4).strided, f(3, 1))),
    "aten.add.Scalar": (*_NUMBERS, call(f(3), 2, 3)),
    "aten.sub.Scalar": (*_NUMBERS, call(f(3), 2, 3)),
    "aten.rsub.Scalar": (*_NUMBERS, call(f(3), 1, 2)),
    "aten.mul.Scalar": _NUMBERS,
    **rows(
        "div.Tensor true_divide.Tensor",
        *_PAIRS,
        call(i64(5), i64(5, low=1)),
        call(lit(1.0, -1.0, 0.0), lit(0.0, 0.0, 0.0)),
        call(f(3), 8.0),
        call(i64(4), 4),
    ),
    "aten.div.Scalar": (*_NUMBERS, call(i64(4), 3)),
    "aten.div.Tensor_mode": (
        call(f(3, 4), f(4), rounding_mode="floor"),
        call(f(3, 4), f(4), rounding_mode="trunc"),
        call(f(3, 4), f(4), rounding_mode=None),
        call(_SIGNED, _DIVISORS, rounding_mode="floor"),
        call(_SIGNED, _DIVISORS, rounding_mode="trunc"),
        call(i32(4), lit(2, dtype=torch.int32), rounding_mode="floor"),
        call(lit(-7.0, 7.0, -0.5, 6.0), lit(2.0, -2.0, 3.0, 0.1), rounding_mode="floor"),
        call(_SIGNED, 3, rounding_mode="trunc"),
    ),
    "aten.div.Scalar_mode": (
        call(f(3, 4), 0.3, rounding_mode="floor"),
        call(_SIGNED, 3, rounding_mode="floor"),
        call(_SIGNED, -4, rounding_mode="trunc"),
    ),
    "aten.floor_divide.default": (
        call(f(3, 4), f(4)),
        call(_SIGNED, _DIVISORS),
        call(_SIGNED, 3),
        call(lit(0, 7, 200, dtype=torch.uint8), 3),
        call(lit(-7.0, 7.0), lit(2.0, -2.0)),
        call(i32(4), lit(-3, dtype=torch.int32)),
    ),
    "aten.floor_divide.Scalar": (call(f(3, 4), 2.0), call(_SIGNED, 3), call(_SIGNED, -4)),
    "aten.remainder.Tensor": (
        call(f(3, 4), pos(4)),
        call(_SIGNED, _DIVISORS),
        call(lit(-7.0, 7.0, -5.5), lit(3.0, -3.0, 2.0)),
        call(i32(3), lit(4, dtype=torch.int32)),
    ),
    "aten.remainder.Scalar": (call(f(3, 4), 2.0), call(_SIGNED, 3), call(_SIGNED, -3), call(lit(-7.5, 7.5), -2.0)),
    "aten.fmod.Tensor": (
        call(f(3, 4), pos(4)),
        call(_SIGNED, _DIVISORS),
        call(lit(-7.0, 7.0, -5.5), lit(3.0, -3.0, 2.0)),
    ),
    "aten.fmod.Scalar": (call(f(3, 4), 2.0), call(_SIGNED, 3), call(_SIGNED, -3)),
    "aten.pow.Tensor_Scalar": (
        *(call(f(3, 4), exponent) for exponent in (2, 3, 2.0, 0, 1, -1, -2)),
        *(call(pos(3, 4), exponent) for exponent in (0.5, -0.5, 1.7)),
        *(call(i64(4), exponent) for exponent in (2, 3, 0)),
        call(f(), 2),
        call(bf16(4), 2),
        call(lit(0.0, -1.0, -8.0, inf), 1 / 3),
        call(i32(4), 2),
        call(i64(4), 2.0),
    ),
    "aten.pow.Tensor_Tensor": (
        call(pos(3, 4), f(4)),
        call(i64(3), at(3, below=4)),
        call(pos(3), f()),
        call(lit(-2.0, 0.0, -2.0), lit(3.0, 0.0, 0.5)),
        call(pos(3), i64(3)),
    ),
    "aten.pow.Scalar": (call(2.0, f(3, 4)), call(2, at(4, below=6)), call(0.5, f()), call(10000.0, pos(4))),
    "aten.atan2.default": (
        call(f(3, 4), f(4)),
        call(lit(0.0, -0.0, 1.0, -1.0, 0.0), lit(-1.0, -1.0, 0.0, 0.0, 0.0)),
        *_HALF_PAIRS,
    ),
    "aten.hypot.default": (call(f(3, 4), f(4)), *_HALF_PAIRS),
    "aten.copysign.Tensor": (call(f(3, 4), f(4)), call(f(2), lit(0.0, -0.0)), *_HALF_PAIRS),
    "aten.xlogy.Tensor": (
        call(pos(3), pos(3)),
        call(lit(0.0, 0.0, 1.0), lit(0.0, nan, 0.0)),
        call(bf16(3), pos(3, dtype=torch.bfloat16)),
    ),
    "aten.logaddexp.default": (call(f(3, 4), f(4)), call(lit(-100.0, 50.0), lit(-100.0, 60.0)), *_HALF_PAIRS),
    "aten.addcmul.default": (
        call(f(2, 3), f(2, 3), f(3)),
        call(f(2, 3), f(2, 3), f(1, 3), value=0.5),
        call(f(3), f(2, 1), f(1, 3)),
    ),
    "aten.addcdiv.default": (call(f(2, 3), f(2, 3), pos(3)), call(f(2, 3), f(2, 3), pos(1, 3), value=-2)),
    "aten.lerp.Scalar": (
        call(f(2, 3), f(3), 0.25),
        call(f(2, 3), f(2, 3), 0.75),
        call(f(2), f(2), 1.5),
        call(bf16(2, 3), bf16(3), 0.25),
    ),
    "aten.lerp.Tensor": (call(f(2, 3), f(3), f(2, 3)), call(f(2, 3), f(2, 3), pos()), call(f16(2, 3), f16(3), f16(2, 3))),
    "aten.gcd.default": (call(i64(5), i64(5)),),
    **rows(
        "maximum.default minimum.default",
        *_PAIRS,
        call(i64(3, 4), i64(4)),
        call(lit(nan, 1.0, inf, -inf), lit(0.0, nan, 1.0, 1.0)),
        call(b(4), b(4)),
        call(f(3), i64(3)),
    ),
    **rows("max.other min.other", call(f(2, 3), f(3)), call(lit(nan, 1.0), lit(0.0, nan)), call(i64(3), i64(3))),
    **rows("fmax.default fmin.default", call(f(2, 3), f(3)), call(lit(nan, 1.0, nan), lit(0.0, nan, nan))),
}

_COMPARED = (
    *_PAIRS[:6],
    call(i64(3, 4), i64(4)),
    call(f(3), i64(3)),
    call(lit(nan, inf, 0.0), lit(nan, inf, -0.0)),
    call(b(4), b(4)),
    call(i32(4), i64(4)),
    call(f64(3), f64(3)),
)
_COMPARED_NUMBERS = (
    call(f(3, 4), 0),
    call(f(3, 4), 0.5),
    call(f(), 0),
    call(i64(3, 4), 2),
    call(i64(5), 1.5),
    call(lit(nan, inf, 1.0), 1.0),
    call(b(4), 1),
    call(bf16(4), 0.5),
    call(i32(6), -1),
)
_LOGICAL = (
    call(b(3, 4), b(4)),
    call(b(3, 1), b(4)),
    call(f(3), b(3)),
    call(i64(4), i64(4)),
    call(b(), b(3)),
    call(f(3, 1), f(1)),
)
_BITS = (call(b(3, 4), b(4)), call(i64(5), i64(5)), call(_LIMITS, _LIMITS), call(u8(4), u8(4)), call(b(3, 1), b(1, 4)))

_LOGIC: Table = {
    **rows("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", *_COMPARED),
    **rows("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", *_COMPARED_NUMBERS),
    **rows("logical_and.default logical_or.default logical_xor.default", *_LOGICAL),
    **rows("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor __and__.Tensor __or__.Tensor __xor__.Tensor", *_BITS),
    **rows(
        "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __and__.Scalar __or__.Scalar __xor__.Scalar",
        call(i64(5), 3),
        call(i32(5), 6),
        call(b(4), True),
    ),
    **rows(
        "bitwise_left_shift.Tensor bitwise_right_shift.Tensor __lshift__.Tensor __rshift__.Tensor",
        call(i64(5, low=0), at(5, below=4)),
        call(i32(4, low=0), i32(4, low=0, high=3)),
    ),
    **rows(
        "bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar __lshift__.Scalar __rshift__.Scalar",
        call(i64(5), 2),
        call(i32(5), 1),
        call(u8(5), 3),
    ),
    **rows("bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor", call(100, at(5, below=4))),
}

_CHOICE: Table = {
    "aten.where.self": (
        *(
            call(b(2, 3), left, right)
            for left, right in ((f(2, 3), f(2, 3)), (f(2, 1), f(3)), (f(), f(2, 3)), (i64(3), i64(2, 1)), (b(3), b(3)))
        ),
        call(b(3), f(2, 3), f(1)),
        call(b(2, 1), f(3), i64(2, 3)),
        call(b(2, 3), lit(nan), f(3)),
        call(b(), f(3), f(3)),
        call(b(3), bf16(3), bf16(3)),
    ),
    "aten.where.ScalarSelf": (call(b(2, 3), 0.0, f(2, 3)), call(b(3), 1, i64(3))),
    "aten.where.ScalarOther": (call(b(2, 3), f(2, 3), -inf), call(b(3), i64(3), 0), call(b(3), f(2, 3), 1)),
    "aten.where.Scalar": (call(b(2, 3), 0.0, 1.0), call(b(3), 0.0, -inf)),
    "aten.clamp.default": (
        *(call(f(3, 4), *limits) for limits in ((-0.5, 0.5), (0.0,), (None, 0.25), (-1, 1), (0.5, -0.5))),
        call(i64(5), -2, 3),
        call(i64(5), None, 3),
        call(i32(5), 0),
        call(lit(nan, inf, -inf), -1.0, 1.0),
        call(bf16(4), 0.0, 1.0),
        call(f(), 0.0),
        call(i64(5), 0.5, 2.5),
        call(f(3, 4), min=-0.5, max=0.5),
    ),
    "aten.clamp.Tensor": (
        call(f(2, 3), f(3), pos(3)),
        call(f(2, 3), None, f(2, 3)),
        call(f(2, 3), f(1)),
        call(lit(nan, 1.0, 2.0), lit(0.0, nan, 0.0), lit(1.0, 3.0, 1.0)),
    ),
    "aten.clamp_min.default": (call(f(3, 4), 0.0), call(i64(4), 1), call(lit(nan, -inf), 1e-12), call(f(3), 1)),
    "aten.clamp_max.default": (call(f(3, 4), 0.0), call(i64(4), 1), call(lit(nan, inf), 1e12)),
    **rows("clamp_min.Tensor clamp_max.Tensor", call(f(2, 3), f(3)), call(i64(3), i64(3))),
    "aten.masked_fill.Scalar": (
        call(f(2, 3), b(2, 3), 0),
        call(f(2, 3), b(3), -inf),
        call(f(2, 2, 3), b(2, 1, 1), -1e9),
        call(i64(3), b(3), 7),
        call(f(3), b(2, 3), 1.5),
        call(b(3), b(3), True),
        call(bf16(3), b(3), -inf),
    ),
    "aten.masked_fill.Tensor": (call(f(2, 3), b(2, 3), f()), call(i64(3), b(3), i64())),
    "aten.nan_to_num.default": (
        call(_EDGES),
        call(_EDGES, 1.0, 5.0, -5.0),
        call(f(3)),
        *(call(lit(nan, inf, -inf, -1.5, dtype=dtype)) for dtype in (torch.float16, torch.bfloat16)),
    ),
    "aten.heaviside.default": (call(f(3, 4), f()), call(lit(0.0, -1.0, 2.0), f(3))),
}

TABLE: Table = {**_FUNCTIONS, **_ACTIVATIONS, **_ARITHMETIC, **_LOGIC, **_CHOICE}
