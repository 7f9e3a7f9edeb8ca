"""The rules that lower operators to tensors, one for each operator."""

from __future__ import annotations

from collections.abc import Mapping

from hub.toolkit.rules import (
    backward,
    casts,
    elementwise,
    gradients,
    indexing,
    layers,
    losses,
    moves,
    products,
    puts,
    reductions,
    windows,
)
from hub.toolkit.rules.call import Rule

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **casts.RULES,
    **moves.RULES,
    **indexing.RULES,
    **puts.RULES,
    **reductions.RULES,
    **products.RULES,
    **layers.RULES,
    **losses.RULES,
    **windows.RULES,
    **backward.RULES,
    **gradients.RULES,
}
"""Rules by overload name."""
