"""The table of operators with a rule, and what other compilers make of it."""

from __future__ import annotations

import operator

import pytest
import torch
from plugin_iree.support import OPERATORS as IREE
from plugin_tvm.support import OPERATORS as TVM
from plugin_xla.support import OPERATORS as XLA

from hub.plugin.table import OperatorTable
from hub.testing.conformance.cases import tensors_in
from hub.testing.operators import SAMPLES, case_cluster
from hub.toolkit.operators import NARROWER, ROWS
from plugin_disc.support import OPERATORS as DISC

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
