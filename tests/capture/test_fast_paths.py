"""Modules that PyTorch computes in one opaque operator reach backends in operators that these know."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hub

OPAQUE = "_transformer_encoder_layer_fwd"


def compiled_operators(
    layer: nn.Module, *inputs: Any, **keywords: Any
) -> tuple[tuple[str, ...], torch.Tensor, torch.Tensor]:
    """Return a plan's operators, the compiled result and eager's."""
    compiled: Any = torch.compile(layer, backend="hub", options={"backends": [], "tune": "off"})
    with torch.no_grad():
        got, wanted = compiled(*inputs, **keywords), layer(*inputs, **keywords)
    (plan,) = hub.plans(compiled)
    assert not any("fast_paths" in line for cluster in plan.clusters for line in cluster.source)
    return tuple(operator for cluster in plan.clusters for operator in cluster.operators), got, wanted


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "both"])
def test_an_encoder_layer_is_taken_apart(norm_first: bool, activation: str, mask: str) -> None:
    """Its attention, norms and products are nodes of their own, and the result is the layer's, masks included."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation=activation, batch_first=True, norm_first=norm_first).eval()
    masks = {
        "none": {},
        "causal": {"src_mask": nn.Transformer.generate_square_subsequent_mask(6)},
        "both": {
            "src_mask": torch.ones(6, 6, dtype=torch.bool).triu(1),
            "src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2]),
        },
        "padding": {"src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
    }
    operators, got, wanted = compiled_operators(layer, torch.randn(2, 6, 32), **masks[mask])
    assert not any(OPAQUE in operator for operator in operators)
    assert sum("linear" in operator for operator in operators) == 4
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_row_that_sees_nothing_stays_nan() -> None:
    """The operator gives NaN where every key is hidden, and so does what stands for it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    hidden = torch.tensor([[False] * 6, [True] * 6])
    _, got, wanted = compiled_operators(layer, torch.randn(2, 6, 32), src_key_padding_mask=hidden)
    assert torch.isnan(wanted[1]).all()
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
