"""Decompositions of opaque operators, which PyTorch's modules call without gradients, into operators that backends know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from hub.torch_private import OpOverload

_OVER_POSITIONS, _OVER_KEYS, _OVER_ALL = 0, 1, 2
"""Kinds of masks: which position does not attend to which, [L, L], which keys of a batch are masked, [B, L], or both,
[B, H, L, L]."""


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Compute `nn.TransformerEncoderLayer` over [B, L, D] as `aten::_transformer_encoder_layer_fwd` does."""
    if src.is_nested or src.dim() != 3 or (mask is not None and mask_type not in (_OVER_POSITIONS, _OVER_KEYS, _OVER_ALL)):
        return NotImplemented

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = functional.linear(x, qkv_weight, qkv_bias).chunk(3, dim=-1)
        heads = [part.view(batch, length, num_heads, embed_dim // num_heads).transpose(1, 2) for part in parts]
        seen = _attended(*heads, hidden=mask, mask_type=mask_type)
        return functional.linear(seen.transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)

    def forward(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else functional.relu(inner), ffn_weight_2, ffn_bias_2)

    if norm_first:
        between = src + attention(norm_1(src))
        return between + forward(norm_2(between))
    between = norm_1(src + attention(src))
    return norm_2(between + forward(between))


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, hidden: torch.Tensor | None, mask_type: int | None
) -> torch.Tensor:
    """Compute attention over [B, H, L, D]. A fully masked row is NaN, which `scaled_dot_product_attention` would hide."""
    if hidden is None:
        return functional.scaled_dot_product_attention(query, key, value)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    is_hidden = hidden.to(torch.bool)
    if mask_type == _OVER_KEYS:
        is_hidden = is_hidden[:, None, None, :]
    return scores.masked_fill(is_hidden, -torch.inf).softmax(dim=-1) @ value


SAID: Mapping[OpOverload, Callable[..., Any]] = {
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
"""Decompositions by operator. One that returns NotImplemented keeps the operator."""
