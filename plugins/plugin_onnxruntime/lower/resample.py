"""Lowers resampling: as one `Resize` if its positions equal PyTorch's; otherwise by the arithmetic of PyTorch's kernels.

Both compute, for each new element, a position between the old ones, in float32 but in different orders of operations. A
position of 100,000 then differs by a hundredth of an element, and so does the interpolated value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .builder import ELEMENT
from .call import Call, lowers

_MAX_APART = 5e-6
"""Elements by which a position of `Resize` may differ from PyTorch's: float32's rounding error for values of 64."""
_CUBIC = -0.75
"""PyTorch's constant of the cubic kernel, the same as OpenCV's."""


@lowers(
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.default",
)
def nearest(call: Call) -> str:
    """Return, for each new element, the old one at or before its position."""
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resampled(call, is_aligned=False, offset=0.0, taps=_nearest, attributes=attributes)


@lowers(
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bilinear2d.default",
)  # fmt: skip
def linear(call: Call) -> str:
    """Return the linear interpolation along each dim."""
    is_aligned = bool(call["align_corners"])
    attributes = {"mode": "linear", "coordinate_transformation_mode": _corners(is_aligned)}
    return _resampled(call, is_aligned=is_aligned, offset=0.0 if is_aligned else 0.5, taps=_linear, attributes=attributes)


@lowers("upsample_bicubic2d.vec", "upsample_bicubic2d.default")
def cubic(call: Call) -> str:
    """Return the cubic interpolation along both dims."""
    is_aligned = bool(call["align_corners"])
    attributes = {"mode": "cubic", "coordinate_transformation_mode": _corners(is_aligned), "cubic_coeff_a": _CUBIC}
    return _resampled(call, is_aligned=is_aligned, offset=0.0 if is_aligned else 0.5, taps=_cubic, attributes=attributes)


def _corners(is_aligned: bool) -> str:
    return "align_corners" if is_aligned else "half_pixel"


def _resampled(call: Call, *, is_aligned: bool, offset: float, taps: Any, attributes: dict[str, Any]) -> str:
    name = call.declared[0]
    factors = _factors(call)
    source, result = call.shape(name)[2:], call.out_shape[2:]
    value = call.input(name)
    axes = [
        _Axis(call, value, *facts, offset) for facts in zip(range(2, call.rank(name)), source, result, factors, strict=True)
    ]
    if all(axis.is_resize_exact(is_aligned=is_aligned, is_floored=taps is _nearest) for axis in axes):
        if is_aligned or None in factors:
            return call.op("Resize", value, "", "", call.builder.sizes(call.out_shape), **attributes)
        return call.op("Resize", value, "", call.constant([1.0, 1.0, *factors], torch.float32), **attributes)
    for axis in reversed(axes):  # PyTorch's kernels add up rows first
        value = axis.applied(value, taps(axis, axis.places(is_aligned=is_aligned)))
    call.builder.know_shape(value, call.out_shape)
    return value


def _factors(call: Call) -> Sequence[float | None]:
    names = call.declared
    found = (
        call["scale_factors"] if "scale_factors" in names else [call[name] for name in names if name.startswith("scales")]
    )
    return found or [None] * (len(call.out_shape) - 2)


class _Axis:
    """One spatial dim during resampling."""

    def __init__(self, call: Call, value: str, axis: int, old: Any, new: Any, factor: float | None, offset: float) -> None:
        self.call, self.op = call, call.op
        self.value, self.axis, self.old, self.new, self.factor, self.offset = value, axis, old, new, factor, offset

    def is_resize_exact(self, *, is_aligned: bool, is_floored: bool) -> bool:
        """Return whether ONNX Runtime's positions equal PyTorch's: computed for known sizes, certain for powers of 2."""
        if not (isinstance(self.old, int) and isinstance(self.new, int)):
            factor = self.factor or 0.0
            return not is_aligned and factor >= 1 and math.frexp(factor)[0] == 0.5
        steps, last = torch.arange(self.new, dtype=torch.float32), max(self.new - 1, 1)
        if is_aligned:
            ours = steps * (torch.tensor(self.old - 1.0) / last)
            theirs = steps * (self.old - 1) / last
        else:
            scale = torch.tensor(self.new / self.old if self.factor is None else self.factor)
            if int(scale * self.old) != self.new and self.factor is not None:
                return False  # otherwise ONNX Runtime would truncate the product
            step = torch.tensor(self.old / self.new if self.factor is None else 1.0 / self.factor)
            ours = ((steps + self.offset).double() * step.double() - self.offset).float()
            theirs = (steps + self.offset) / scale - self.offset
        apart = (ours.floor() != theirs.floor()) if is_floored else (ours - theirs).abs() > _MAX_APART
        return not bool(apart.any())

    def places(self, *, is_aligned: bool) -> str:
        """Return the position of each new element among the old ones, in float32.

        PyTorch's kernels multiply and subtract in one instruction, which rounds once: float64 holds both exactly.
        """
        steps = self.steps()
        step = self._cast(self._step(is_aligned=is_aligned), torch.float64)
        if not self.offset:
            return self._cast(self.op("Mul", steps, step), torch.float32)
        half = self.call.constant(self.offset, torch.float64)
        return self._cast(self.op("Sub", self.op("Mul", self.op("Add", steps, half), step), half), torch.float32)

    def steps(self, dtype: torch.dtype = torch.float64) -> str:
        """Return the indices of the new elements."""
        return self._cast(self.op("Range", self._number(0), self.new_size, self._number(1)), dtype)

    def _step(self, *, is_aligned: bool) -> str:
        if self.factor is not None and not is_aligned:
            return self.call.constant(1.0 / self.factor, torch.float32)
        old, new = (self._cast(size, torch.float32) for size in (self.old_size, self.new_size))
        if not is_aligned:
            return self.op("Div", old, new)
        one = self.call.constant(1.0, torch.float32)
        last = self.op("Sub", new, one)
        step = self.op("Div", self.op("Sub", old, one), self.op("Max", last, one))
        return self.op("Mul", step, self.op("Min", last, one))  # a single new element is the first old one

    @property
    def old_size(self) -> str:
        """Number of old elements."""
        if isinstance(self.old, int):
            return self._number(self.old)
        return self.op("Squeeze", self.op("Shape", self.value, start=self.axis, end=self.axis + 1))

    @property
    def new_size(self) -> str:
        """Number of new elements; with a factor, the product truncated in float64, as in PyTorch."""
        if isinstance(self.new, int) or self.factor is None:
            return self.call.builder.scalar_size(self.new)
        product = self.op("Mul", self._cast(self.old_size, torch.float64), self.call.constant(self.factor, torch.float64))
        return self._cast(product, torch.int64)

    def before(self, places: str, shift: int = 0) -> str:
        """Return the index of the old element at or before each position, plus a shift; clamped to the valid range."""
        number = self._cast(self.op("Floor", places), torch.int64)
        last = self.op("Sub", self.old_size, self._number(1))
        number = self.op("Min", number, last)
        if shift:
            number = self.op("Min", self.op("Add", number, self._number(shift)), last)
        return self.op("Max", number, self._number(0))

    def beyond(self, places: str) -> str:
        """Return how far each position is beyond the old element before it, from 0 to 1."""
        before = self._cast(self.op("Min", self._cast(self.op("Floor", places), torch.int64), self._last()), torch.float32)
        return self.op("Min", self.op("Max", self.op("Sub", places, before), self._float(0.0)), self._float(1.0))

    def _last(self) -> str:
        return self.op("Sub", self.old_size, self._number(1))

    def applied(self, value: str, taps: Sequence[tuple[str, str]]) -> str:
        """Return the sum of old elements, by their indices, each times its weight ("" for one)."""
        shape = self.call.ints(-1, *[1] * (self.call.rank(self.call.declared[0]) - self.axis - 1))
        total = ""
        for number, weight in taps:
            part = self.op("Gather", value, number, axis=self.axis)
            part = self.op("Mul", part, self.op("Reshape", weight, shape)) if weight else part
            total = self.op("Add", total, part) if total else part
        return total

    def _number(self, value: int) -> str:
        return self.call.constant(value, torch.int64)

    def _float(self, value: float) -> str:
        return self.call.constant(value, torch.float32)

    def _cast(self, value: str, dtype: torch.dtype) -> str:
        return self.op("Cast", value, to=ELEMENT[dtype])


def _nearest(axis: _Axis, places: str) -> Sequence[tuple[str, str]]:
    return ((axis.before(places), ""),)


def _linear(axis: _Axis, places: str) -> Sequence[tuple[str, str]]:
    places = axis.op("Max", places, axis.call.constant(0.0, torch.float32))
    # If the new size equals the old size, the elements are copied, regardless of the factor.
    places = axis.op("Where", axis.op("Equal", axis.old_size, axis.new_size), axis.steps(torch.float32), places)
    after = axis.beyond(places)
    before = axis.op("Sub", axis.call.constant(1.0, torch.float32), after)
    return ((axis.before(places), before), (axis.before(places, 1), after))


def _cubic(axis: _Axis, places: str) -> Sequence[tuple[str, str]]:
    one = axis.call.constant(1.0, torch.float32)
    beyond = axis.beyond(places)
    short = axis.op("Sub", one, beyond)
    weights = (
        _far(axis, axis.op("Add", beyond, one)),
        _near(axis, beyond),
        _near(axis, short),
        _far(axis, axis.op("Add", short, one)),
    )
    return tuple((axis.before(places, shift), weight) for shift, weight in zip((-1, 0, 1, 2), weights, strict=True))


def _near(axis: _Axis, at: str) -> str:
    """Return ((a + 2) x - (a + 3)) x x + 1, for distances within one element."""
    return _polynomial(axis, at, (_CUBIC + 2, -(_CUBIC + 3), 0.0, 1.0))


def _far(axis: _Axis, at: str) -> str:
    """Return ((a x - 5 a) x + 8 a) x - 4 a, for distances from one element to two."""
    return _polynomial(axis, at, (_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC))


def _polynomial(axis: _Axis, at: str, factors: Sequence[float]) -> str:
    total, *rest = (axis.call.constant(factor, torch.float32) for factor in factors)
    for factor in rest:
        total = axis.op("Add", axis.op("Mul", total, at), factor)
    return total
