"""exp and tanh in float32, written inline so that nothing is spilled around a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .registers import by_register
from .writer import Value, Writer

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187045e-06
_EXP_TERMS = (
    0.000198527617612853646278381,
    0.00139304355252534151077271,
    0.00833336077630519866943359,
    0.0416664853692054748535156,
    0.166666671633720397949219,
    0.5,
)
"""Sleef's reduction and polynomial for exp in float32 (xexpf): at most 1 ULP off."""
_EXP_LIMIT = 105.0
"""The magnitude beyond which exp is infinite or 0."""
_AVX512_LANES = 16


@dataclass(frozen=True)
class _Terms:
    """Float32 arithmetic on values of one width and level, those of `like`."""

    writer: Writer
    like: Value

    def kind(self, dtype: str) -> str:
        return self.writer.type_of(dtype, is_wide=self.like.is_wide)

    def put(self, text: str, dtype: str = "f32", shown: str = "") -> Value:
        text = f"{text} : {shown or self.kind(dtype)}"
        return self.writer.put(text, dtype, is_wide=self.like.is_wide, level=self.like.level)

    def constant(self, number: float, dtype: str = "f32") -> Value:
        return self.writer.constant(number, dtype, is_wide=self.like.is_wide)

    def of(self, operation: str, *values: Value, dtype: str = "f32") -> Value:
        return self.put(f"{operation} {', '.join(value.name for value in values)}", dtype)

    def is_so(self, relation: str, left: Value, right: Value) -> Value:
        return self.put(f"arith.cmpf {relation}, {left.name}, {right.name}", "i1", self.kind("f32"))

    def chosen(self, condition: Value, yes: Value, no: Value) -> Value:
        shown = ", ".join((*([self.kind("i1")] if self.like.is_wide else []), self.kind("f32")))
        return self.put(f"arith.select {condition.name}, {yes.name}, {no.name}", "f32", shown)

    def polynomial(self, terms: Sequence[float], at: Value) -> Value:
        result = self.constant(terms[0])
        for term in terms[1:]:
            result = self.of("math.fma", result, at, self.constant(term))
        return result


def exponential(writer: Writer, value: Value) -> Value:
    """Return exp(x) = 2^n (1 + r + r^2 p(r)) with x = n ln 2 + r; NaN and infinities are handled."""
    terms = _Terms(writer, value)
    zero, high = terms.constant(0.0), terms.constant(_EXP_LIMIT)
    # On Intel, a result that rounds to 0 costs 150 cycles, and a mask makes many of them: no lane may compute one.
    is_nothing = terms.is_so("olt", value, terms.constant(-_EXP_LIMIT))
    inside = value if _has_scale(terms) else terms.chosen(is_nothing, zero, value)
    inside = terms.chosen(terms.is_so("ogt", inside, high), high, inside)  # one instruction, which passes NaN through
    steps = terms.of("math.roundeven", terms.of("arith.mulf", inside, terms.constant(_LOG2_E)))
    rest = terms.of("math.fma", steps, terms.constant(-_LN2_HIGH), inside)
    rest = terms.of("math.fma", steps, terms.constant(-_LN2_LOW), rest)
    curve = terms.polynomial(_EXP_TERMS, rest)
    result = terms.of("math.fma", terms.of("arith.mulf", rest, rest), curve, rest)
    scaled = _by_power(terms, terms.of("arith.addf", result, terms.constant(1.0)), steps)
    return terms.chosen(is_nothing, zero, scaled)  # with AVX-512, this masks the scaling itself


def _has_scale(terms: _Terms) -> bool:
    """Return whether a single instruction multiplies by powers of 2."""
    return terms.like.is_wide and terms.writer.natural == _AVX512_LANES


def _by_power(terms: _Terms, value: Value, steps: Value) -> Value:
    """Return value * 2^steps, which is correct even if the power alone is outside float32's range."""
    if _has_scale(terms):
        return _scaled(terms.writer, value, steps)
    is_number = terms.is_so("ord", steps, steps)
    known = terms.chosen(is_number, steps, terms.constant(0.0))
    count = terms.put(f"arith.fptosi {known.name}", "i32", f"{terms.kind('f32')} to {terms.kind('i32')}")
    half = terms.of("arith.shrsi", count, terms.constant(1, "i32"), dtype="i32")
    for power in (half, terms.of("arith.subi", count, half, dtype="i32")):
        shifted = terms.of("arith.addi", power, terms.constant(127, "i32"), dtype="i32")
        bits = terms.of("arith.shli", shifted, terms.constant(23, "i32"), dtype="i32")
        factor = terms.put(f"arith.bitcast {bits.name}", "f32", f"{terms.kind('i32')} to {terms.kind('f32')}")
        value = terms.of("arith.mulf", value, factor)
    return value


def _scaled(writer: Writer, value: Value, steps: Value) -> Value:
    """Return value * 2^steps by AVX-512's scalef instruction."""
    all_lanes = writer.put("llvm.mlir.constant(-1 : i16) : i16", "i16", is_wide=False, level=0).name
    rounding = writer.put("llvm.mlir.constant(4 : i32) : i32", "i32", is_wide=False, level=0).name

    def scale(names: Sequence[str], kind: str) -> str:
        one, by = names
        operands = f"{one}, {by}, {one}, {all_lanes}, {rounding}"
        kinds = f"({kind}, {kind}, {kind}, i16, i32) -> {kind}"
        return f'llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.512"({operands}) : {kinds}'

    return by_register(writer, (value, steps), _AVX512_LANES, scale)


_TANH_TERMS = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""Cephes' tanhf below 0.625: a relative error of at most 1.3e-7."""
_TANH_BEND = 0.625


def hyperbolic_tangent(writer: Writer, value: Value) -> Value:
    """Return tanh(x): near 0 by a polynomial, else 1 - 2 / (exp(2 |x|) + 1); with the sign of x, even of zeros."""
    terms = _Terms(writer, value)
    square = terms.of("arith.mulf", value, value)
    curve = terms.of("arith.mulf", terms.polynomial(_TANH_TERMS, square), square)
    near = terms.of("math.fma", curve, value, value)
    size = terms.of("math.absf", value)
    one, two = terms.constant(1.0), terms.constant(2.0)
    power = exponential(writer, terms.of("arith.addf", size, size))
    part = terms.of("arith.divf", two, terms.of("arith.addf", power, one))
    is_near = terms.is_so("olt", size, terms.constant(_TANH_BEND))
    return terms.of("math.copysign", terms.chosen(is_near, near, terms.of("arith.subf", one, part)), value)
