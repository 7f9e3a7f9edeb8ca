"""Lowering of each ATen overload to OpenVINO's opset: one rule per overload, in tables by theme."""

from __future__ import annotations

from collections.abc import Mapping

from plugin_openvino.rules import (
    activations,
    convolutions,
    creation,
    elementwise,
    indexing,
    matrix,
    norms,
    recurrent,
    reductions,
    shapes,
)
from plugin_openvino.rules.elementwise import Rule

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **activations.RULES,
    **shapes.RULES,
    **reductions.RULES,
    **matrix.RULES,
    **convolutions.RULES,
    **norms.RULES,
    **recurrent.RULES,
    **indexing.RULES,
    **creation.RULES,
}
"""Rules by overload. The keys equal the rows of `plugin_openvino.support.OPERATORS`, which a test checks."""
