"""Kernels where they belong: on a GPU, against eager there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

import hub
from hub.backend import CompileSettings
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.cases import CASES, HALF, RAGGED, Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
]


def assert_right(case: Case, size: int, dtype: torch.dtype | None = None) -> None:
    """Asserts that results are as exact as plugins' have to be."""
    function, inputs = case
    values = [value.cuda() if dtype is None else value.to("cuda", dtype) for value in inputs(size)]
    cluster, given = whole_cluster(Wrapped(function), tuple(values))
    found: Sequence[Any] = create(Settings()).compile(cluster, CompileSettings(threads=1))(*given)
    assert value_problem(found, eager(cluster, given), exact(cluster, given)) == ""


def test_probe() -> None:
    """One addition is compiled and runs."""
    assert create(Settings()).probe().accepted


@pytest.mark.parametrize("size", RAGGED)
@pytest.mark.parametrize("name", CASES)
def test_every_template_at_ragged_sizes(name: str, size: int) -> None:
    """Masks hold at the edges of blocks."""
    assert_right(CASES[name], size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Products are made by the tensor cores."""
    assert_right(HALF[name], 1000, dtype)


@pytest.mark.parametrize("backends", [("triton",), ()], ids=["Triton alone", "every backend"])
def test_a_whole_model(backends: tuple[str, ...]) -> None:
    """BERT on the GPU, alone and in a plan by cost: eager's numbers, and no fallback."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    model = transformers.BertModel(config).eval().cuda()
    tokens = torch.randint(0, config.vocab_size, (2, 64), device="cuda")
    options = {"tune": "off", **({"backends": backends} if backends else {})}
    compiled: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        found, wanted = compiled(tokens).last_hidden_state, model(tokens).last_hidden_state
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    events = [event for plan in hub.plans(compiled) for event in plan.events]
    assert [event for event in events if event.kind in ("failed", "fallback")] == []
