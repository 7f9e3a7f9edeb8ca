"""What is known of the functions of single elements, whichever code generator writes them. Imports no torch."""

from __future__ import annotations

TRANSCENDENTAL = (
    *("exp", "expm1", "exp2", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("tanh", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "atan2", "hypot"),
)
"""Functions that cost more than reading their result again; libraries have them under these names."""
