"""Optional fast mathematics: BladeDISC's levels as LLVM's fast-math flags on a program's arithmetic."""

from __future__ import annotations

import re

FLAGS = ("", "afn,arcp", "afn,arcp,reassoc", "afn,arcp,reassoc,nnan,nsz", "fast")
"""Level -> flags. The levels are those of TorchBlade's config: approximate functions; reassociation; no NaN and no signed
zeros; everything. exp and similar functions are polynomials or Sleef's functions at every level, so level 1 only affects
divisions."""
_ARITHMETIC = re.compile(r"(= arith\.(?:addf|subf|mulf|divf|remf) [^:\n]*?) :")
"""The operations that get flags. Maxima and minima are left out: reductions start them with infinities, which `fast`
declares impossible. So is `math.fma`, which computes the exact part of polynomials."""


def with_fast_math(text: str, level: int) -> str:
    """Return a program's text with a level's flags on its sums, differences, products and quotients; level 0 adds none."""
    return _ARITHMETIC.sub(rf"\1 fastmath<{FLAGS[level]}> :", text) if level else text
