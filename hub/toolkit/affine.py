"""Affine index expressions: a constant plus multiples of numbered variables, which are dims of a tensor or loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hub.toolkit.sizes import Size, plus, times


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + sum of factor * variable; terms are sorted and no factor is 0, so equal expressions compare equal."""

    constant: Size = 0
    terms: tuple[tuple[int, Size], ...] = ()

    def __add__(self, other: Affine) -> Affine:
        factors = dict(self.terms)
        for variable, factor in other.terms:
            factors[variable] = plus(factors.get(variable, 0), factor)
        return Affine(plus(self.constant, other.constant), _sorted(factors))

    def scaled(self, by: Size) -> Affine:
        """Return `by` times this expression."""
        return Affine(times(self.constant, by), _sorted({variable: times(factor, by) for variable, factor in self.terms}))

    def at(self, index: Sequence[Affine]) -> Affine:
        """Return the expression with variable n replaced by `index[n]`."""
        result = Affine(self.constant)
        for variable, factor in self.terms:
            result = result + index[variable].scaled(factor)
        return result

    def factor(self, variable: int) -> Size:
        """Return the factor of a variable; 0 if it does not occur."""
        return dict(self.terms).get(variable, 0)


Index = tuple[Affine, ...]
"""One expression for each dim of the tensor that is read."""


def variable(number: int, factor: Size = 1, constant: Size = 0) -> Affine:
    """Return constant + factor * variable."""
    return Affine(constant, _sorted({number: factor}))


def identity(shape: Sequence[Size]) -> Index:
    """Return the index that reads each element at its own position; 0 for dims of size 1."""
    return tuple(Affine() if size == 1 else variable(dim) for dim, size in enumerate(shape))


def composed(outer: Sequence[Affine], inner: Sequence[Affine]) -> Index:
    """Return `outer` with its variables, which number dims, substituted by the expressions in `inner`."""
    return tuple(part.at(inner) for part in outer)


def linear(index: Sequence[Affine], strides: Sequence[Size]) -> Affine:
    """Return the offset in memory: the sum of index times stride."""
    result = Affine()
    for part, stride in zip(index, strides, strict=True):
        result = result + part.scaled(stride)
    return result


def _sorted(factors: Mapping[int, Size]) -> tuple[tuple[int, Size], ...]:
    return tuple(sorted((variable, factor) for variable, factor in factors.items() if factor != 0))
