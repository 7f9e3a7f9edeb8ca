"""The table of operators with a rule, and what other compilers make of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plugin_iree.support import OPERATORS as IREE
from plugin_tvm.support import OPERATORS as TVM
from plugin_xla.support import OPERATORS as XLA
from torch.nn import functional

from hub.plugin.backend import CompileSettings
from hub.plugin.table import OperatorTable
from hub.testing.conformance.cases import tensors_in
from hub.testing.operators import SAMPLES, case_cluster
from hub.testing.single import whole_cluster
from hub.toolkit.operators import NARROWER, ROWS
from plugin_disc.backend import create
from plugin_disc.support import OPERATORS as DISC
from tests.functions import Of

ONE = torch.tensor(2.5)
EMPTY: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "linear by one row": (functional.linear, (torch.randn(2, 3), torch.randn(3))),
    "flip": (lambda x: torch.flip(x * 2, [0]), (ONE,)),
    "movedim": (lambda x: torch.movedim(x * 2, 0, -1), (ONE,)),
    "prelu": (functional.prelu, (ONE, torch.tensor([0.25]))),
    "gather of nothing": (lambda x, i: x.gather(0, i), (torch.randn(3, 4), torch.zeros(0, dtype=torch.int64))),
    "adaptive pool to nothing": (lambda x: functional.adaptive_avg_pool2d(x, 0), (torch.randn(1, 2, 4, 4),)),
    "attention without width": (
        functional.scaled_dot_product_attention,
        (torch.randn(1, 2, 3, 0), torch.randn(1, 2, 5, 0), torch.randn(1, 2, 5, 0)),
    ),
}
"""Calls that PyTorch takes: of tensors without dims or elements, or of fewer dims than usual."""
HALVES = {torch.float16, torch.bfloat16}


@pytest.mark.parametrize("table", [IREE, TVM, XLA], ids=["iree", "tvm", "xla"])
def test_compilers_take_no_halves_that_they_were_not_tried_with(table: OperatorTable) -> None:
    """The rules take them since: samples that have halves, which DISC takes, are refused by the others."""
    assert set(NARROWER) <= set(ROWS)
    tried = 0
    for name in NARROWER:
        for sample in SAMPLES[name]:
            if name == "aten.rms_norm.default" or not {tensor.dtype for tensor in tensors_in(sample)} & HALVES:
                continue
            cluster, _ = case_cluster(name, sample)
            node = next(each for each in cluster.nodes if each.target is not operator.getitem)
            assert DISC.supports(node).accepted
            assert not table.supports(node).accepted
            tried += 1
    assert tried >= len(NARROWER) - 1


@pytest.mark.parametrize("name", EMPTY)
def test_a_call_that_is_taken_can_be_lowered(name: str) -> None:
    """Its cluster compiles, or the operator is refused beforehand and the rest of its cluster stays."""
    function, inputs = EMPTY[name]
    cluster, values = whole_cluster(Of(function), inputs)
    if all(DISC.supports(node).accepted for node in cluster.nodes):
        (found,) = create().compile(cluster, CompileSettings(threads=1))(*values)
        assert torch.equal(found, function(*inputs))
