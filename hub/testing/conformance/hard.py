"""Hard values: the kinds of generated inputs that verification uses, on one compiled call of an operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from hub.errors import HubError, text_of
from hub.plugin.backend import Executable
from hub.plugin.graph import Cluster
from hub.plugin.table import elements, operator_name, tensors_of, value_of
from hub.testing.conformance.judge import granted
from hub.testing.conformance.layouts import copied
from hub.testing.conformance.target import Target
from hub.verification.compare import Judge
from hub.verification.inputs import INTEGERS, KINDS, Kind
from hub.verification.verify import Trial

ELSEWHERE = ("normal", "another size", "sizes apart", "half the size", "several times the size", "size one", "size zero")
"""Kinds for which there are other samples, or separate examinations."""
_FUSED = "_scaled_dot_product_flash_attention_for_cpu"
"""An operator that returns 0 for a row of NaN, for which attention's other kernels return NaN."""
_CASTS = ("aten.to.", "aten._to_copy.", "aten.type_as.")
HARD = tuple(kind for kind in KINDS if kind.name not in ELSEWHERE)


def hard_problems(target: Target, cluster: Cluster, executable: Executable, inputs: Sequence[Any]) -> tuple[str, ...]:
    """Return where results differ from eager's by more than verification allows; nothing if the values are refused.

    Differences that verification only guards against in a plan are problems here: a table covers all inputs of an operator.
    """
    judge = Judge.of(cluster, target.name, granted() or None)
    try:
        trial = Trial(judge, executable, copied(inputs), saturates=target.entry.info.saturates)
        trial.run_generated(_kinds_for(cluster), math.inf)
    except HubError as error:
        return (text_of(error),)
    return tuple(trial.differences)


def _kinds_for(cluster: Cluster) -> Sequence[Kind]:
    """Return the hard kinds, without infinities and NaN if eager's own result for them depends on which kernel runs.

    Only some kernels multiply the padding of a convolution by weights that are NaN; NaN cast to an integer is undefined in
    C++.
    """
    names = tuple(map(operator_name, cluster.nodes))
    has_weights = len(cluster.inputs) > 1 and any("conv" in name for name in names)
    is_vague = has_weights or any(map(_casts_to_integers, cluster.nodes)) or any(_FUSED in name for name in names)
    return tuple(kind for kind in HARD if not (is_vague and kind.unusual))


def _casts_to_integers(node: fx.Node) -> bool:
    has_floats = any(tensor.is_floating_point() for source in node.all_input_nodes for tensor in tensors_of(source))
    has_integers = any(tensor.dtype in INTEGERS for tensor in elements(value_of(node)) if isinstance(tensor, torch.Tensor))
    is_cast = operator_name(node).startswith(_CASTS) or "dtype" in node.kwargs
    return is_cast and has_floats and has_integers
