"""Fixed-point numbers: formats, and how real values become integers.

An integer `q` in a format with `fraction` bits represents `q / 2**fraction`. Rounding is to the nearest integer, halves
upward (add one half, then shift right, as an adder and a shifter do); values that do not fit saturate. Integers are held
in float64 tensors, in which sums of up to 2**53 are exact in any order: results do not depend on threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hub.plugin import ConstantsRefused

MAX_FRACTION = 24
"""Largest number of fraction bits; tensors with all values below 2**-9 use it."""
ACCUMULATOR_BITS = 48
"""Width of the multiply-accumulate units' sums: that of a DSP48 slice; the boards' FPGAs have thousands."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format QX.Y: `bits` in total, Y = `fraction` of them after the point."""

    bits: int
    fraction: int

    @property
    def largest(self) -> int:
        """The largest integer; the smallest is `-largest - 1`."""
        return (1 << (self.bits - 1)) - 1

    @property
    def limit(self) -> float:
        """The largest value."""
        return self.largest / 2.0**self.fraction

    def __str__(self) -> str:
        return f"Q{self.bits - self.fraction}.{self.fraction}"


Q8_8 = Format(16, 8)


def chosen(largest: float, bits: int, *, headroom: float, what: str) -> Format:
    """Return the finest format that holds `headroom` times a tensor's largest magnitude, or at least the magnitude itself.

    A tensor of zeros has no known range, and gets half of the bits after the point. Raise ConstantsRefused, naming `what`,
    if no format holds the magnitude.
    """
    if not math.isfinite(largest):
        raise ConstantsRefused(f"{what} holds NaN or infinity, which no fixed-point format has", backend="mdla")
    if largest == 0:
        return Format(bits, bits // 2)
    for wanted in (largest * headroom, largest):
        for fraction in range(MAX_FRACTION, -1, -1):
            found = Format(bits, fraction)
            if wanted <= found.limit:
                return found
    raise ConstantsRefused(
        f"{what} reaches {largest:.6g}, beyond every {bits}-bit format (at most {Format(bits, 0).limit:.0f} in Q{bits}.0)",
        backend="mdla",
        hint="scale the model's values down, or force the operator elsewhere with options={'force': ...}",
    )


@dataclass(frozen=True, slots=True)
class Quantised:
    """Integers, and the number of values that did not fit."""

    integers: torch.Tensor
    saturated: int = 0
    not_finite: int = 0


def quantise(values: torch.Tensor, form: Format) -> Quantised:
    """Convert real values to integers. NaN becomes 0 and infinities the ends of the range; all are counted."""
    wide = values.to(torch.float64)
    bad = 0 if bool(torch.isfinite(wide).all()) else int((~torch.isfinite(wide)).sum())
    if bad:
        wide = torch.nan_to_num(wide, nan=0.0, posinf=float(2**62), neginf=-float(2**62))
    found = requantise(wide, 0, form)
    return Quantised(found.integers, found.saturated, bad)


def requantise(integers: torch.Tensor, fraction: int, form: Format) -> Quantised:
    """Convert integers (or reals, with `fraction` 0) with `fraction` bits to a format. Exact up to 2**52."""
    rounded = (integers * 2.0 ** (form.fraction - fraction) + 0.5).floor_()
    return saturate(rounded, form)


def saturate(integers: torch.Tensor, form: Format) -> Quantised:
    """Clamp integers to a format's range, and count those that were outside."""
    low, high = -form.largest - 1, form.largest
    if not integers.numel():
        return Quantised(integers)
    least, most = torch.aminmax(integers)
    if float(least) >= low and float(most) <= high:
        return Quantised(integers)
    outside = int(((integers < low) | (integers > high)).sum())
    return Quantised(integers.clamp(low, high), outside)


def dequantise(integers: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the float32 values of integers, exactly: 16 bits fit into its 24."""
    return (integers * 2.0**-form.fraction).to(torch.float32)
