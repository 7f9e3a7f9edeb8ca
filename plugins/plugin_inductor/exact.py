"""Functions that Inductor's vectorised C++ computes inaccurately near zero, rewritten to be exact to a few roundings.

Measured with torch 2.13 on x86-64 with AVX-512, float32, relative error at 1e-7: 100 % for `expm1` and thus `elu`, `selu`,
`celu` (computed as exp(x) - 1), 100 % for `erf` (a polynomial with an absolute error), 100 % for `atanh`. GPUs need none of
this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import factorial, pi, sqrt
from typing import Any

import torch

_ERF_TERMS = tuple(2 / sqrt(pi) * (-1) ** n / (factorial(n) * (2 * n + 1)) for n in range(7))
"""Taylor series of erf(x) / x in x * x. Below 1/2 the first omitted term is 8e-10."""


def expm1(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x) - 1, through tanh near zero, where the subtraction would cancel."""
    if not _is_inexact(x):
        return NotImplemented
    half = torch.tanh(x * 0.5)
    return torch.where(x.abs() < 0.5, 2 * half / (1 - half), x.exp() - 1)


def atanh(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse of tanh, through log1p of the absolute value, so that both ends behave alike."""
    if not _is_inexact(x):
        return NotImplemented
    size = x.abs()
    return torch.copysign(0.5 * torch.log1p(2 * size / (1 - size)), x)


def erf(x: torch.Tensor) -> torch.Tensor:
    """Return the error function, by its series near zero."""
    if not _is_inexact(x):
        return torch.erf(x)
    square = x * x
    series = torch.full_like(x, _ERF_TERMS[-1])
    for term in reversed(_ERF_TERMS[:-1]):
        series = series * square + term
    return torch.where(x.abs() < 0.5, x * series, torch.erf(x))


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.atanh.default: atanh,
}
"""Decompositions for these operators everywhere, including inside other decompositions."""

REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {torch.ops.aten.erf.default: erf}
"""Replacements only for nodes of the received program: inside `gelu`, erf is added to 1, which hides its error."""


def _is_inexact(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32
