"""Fast mathematics on demand: BladeDISC's levels as LLVM's flags on a program's arithmetic."""

from __future__ import annotations

import re

FLAGS = ("", "afn,arcp", "afn,arcp,reassoc", "afn,arcp,reassoc,nnan,nsz", "fast")
"""Level -> flags. Levels as TorchBlade's config describes them: approximate functions; reassociation; no NaN and no signed
zeros; everything. exp and its like are polynomials or Sleef's functions at every level, so level 1 is about
divisions."""
_ARITHMETIC = re.compile(r"(= arith\.(?:addf|subf|mulf|divf|remf) [^:\n]*?) :")
"""Extremes are left out: reductions begin them with infinities, which `fast` declares impossible. So is `math.fma`, which
carries the exact part of polynomials."""


def with_fast_math(text: str, level: int) -> str:
    """Return a program's text with the flags of a level on its additions, products and quotients; level 0 adds none."""
    return _ARITHMETIC.sub(rf"\1 fastmath<{FLAGS[level]}> :", text) if level else text
