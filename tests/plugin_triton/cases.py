"""Programs with what the code generator has templates for, as functions with inputs by size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

Inputs = tuple[torch.Tensor, ...]
Case = tuple[Callable[..., Any], Callable[[int], Inputs]]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed numbers."""
    return torch.randn(shape).to(dtype)


def placed(values: Inputs, dtype: torch.dtype | None = None, device: str = "cpu") -> Inputs:
    """Return inputs on a device; floating ones in a dtype, if one is given, while indices stay integers."""
    return tuple(
        value.to(device=device, dtype=dtype if dtype is not None and value.is_floating_point() else value.dtype)
        for value in values
    )


CASES: Mapping[str, Case] = {
    "pointwise": (lambda x, b: F.silu(x) * b.exp(), lambda n: (random(3, n), random(n))),
    "transposed": (lambda x: x.transpose(0, 1) + 1.0, lambda n: (random(5, n),)),
    "expanded": (lambda x, y: x.expand_as(y) - y, lambda n: (random(n, 1), random(n, 3))),
    "sliced": (lambda x: x[:, ::2] * 2.0, lambda n: (random(4, 2 * n),)),
    "softmax": (lambda x: x.softmax(-1), lambda n: (random(3, n),)),
    "columns": (lambda x: (x.sum(0), x.amax(0)), lambda n: (random(n, 6),)),
    "multiplied at places": (
        lambda x, i, v: x.scatter_reduce(1, i, v, "prod"),
        lambda n: (random(2, n), torch.arange(6).reshape(2, 3) % 2 % n, random(2, 3)),
    ),
    "largest at places": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax", include_self=False),
        lambda n: (random(4, n), torch.arange(3 * n).reshape(3, n) % 2, random(3, n)),
    ),
    "averaged at places": (
        lambda x, i, v: x.scatter_reduce(1, i, v, "mean"),
        lambda n: (random(2, n), torch.arange(6).reshape(2, 3) % 2 % n, random(2, 3)),
    ),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x + 1.0, (x.shape[1],), w, b),
        lambda n: (random(2, n), random(n), random(n)),
    ),
    "all": (lambda x: (x.sum(), x.mean(), (x > 0).any()), lambda n: (random(2, n),)),
    "product": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda n: (random(n, 19), random(23, 19), random(23))),
    "deep product": (torch.matmul, lambda n: (random(2, n), random(n, 3))),
    "batched product": (lambda x, y: torch.bmm(x, y).relu(), lambda n: (random(2, 3, n), random(2, n, 5))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n: (random(1, 2, n, 8), random(1, 2, n, 8), random(1, 2, n, 8)),
    ),
    "masked attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        lambda n: (random(1, 2, n, 8), random(1, 2, n, 8), random(1, 2, n, 5), torch.arange(n * n).reshape(n, n) % 3 > 0),
    ),
    "biased attention": (
        lambda q, k, v, m: F.softmax(q @ k.transpose(-1, -2) / 3.0 + m, -1) @ v,
        lambda n: (random(2, 2, 5, 16), random(2, 2, n, 16), random(2, 2, n, 16), random(2, 1, 1, n)),
    ),
    "grouped queries": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2) * 2.0,
        lambda n: (random(1, 4, n, 8), random(1, 2, n, 8), random(1, 2, n, 8)),
    ),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        lambda n: (random(1, 3, 4, n), random(5, 3, 3, 3), random(5)),
    ),
    "cat": (lambda x, y: torch.cat((x, y.neg()), 1), lambda n: (random(2, n), random(2, 3))),
    "padded": (lambda x: F.pad(x, (1, 2), value=3.0), lambda n: (random(2, n),)),
    "running": (lambda x: (x.cumsum(1), x[:, :9].cumprod(0)), lambda n: (random(3, n),)),
    "embedding": (lambda i, w: F.embedding(i, w) * 2.0, lambda n: (torch.arange(n) % 7, random(7, 5))),
    "scatter add": (
        lambda x, i, v: x.scatter_add(1, i, v) * 2.0,
        lambda n: (random(2, n), torch.arange(6).reshape(2, 3) % n, random(2, 3)),
    ),
    "rows added": (
        lambda g, i: torch.zeros(7, 5, device=g.device).index_put((i,), g, accumulate=True),
        lambda n: (random(n, 5), torch.arange(n) % 7),
    ),
    "rows replaced": (
        lambda cache, place, new: cache.index_copy(1, place, new).sum(2),
        lambda n: (random(2, n, 3), torch.tensor([n - 1]), random(2, 1, 3)),
    ),
    "gather": (lambda x, i: x.gather(1, i).tanh(), lambda n: (random(2, n), torch.arange(6).reshape(2, 3) % n)),
    "cross entropy": (
        lambda x, i: -x.log_softmax(1).gather(1, i[:, None]).mean(),
        lambda n: (random(5, n), torch.arange(5) % n),
    ),
}
HALF: Mapping[str, Case] = {
    "pointwise": (lambda x: F.gelu(x) + x, lambda n: (random(3, n),)),
    "softmax": (lambda x: x.softmax(-1), lambda n: (random(3, n),)),
    "product": (lambda x, w: F.relu(x @ w), lambda n: (random(n, 19), random(19, 23))),
    "layer of a batch": (F.linear, lambda n: (random(2, n, 19), random(23, 19), random(23))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n: (random(1, 2, n, 64), random(1, 2, n, 64), random(1, 2, n, 64)),
    ),
    "wide attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        lambda n: (random(1, 2, n, 128), random(1, 2, n, 128), random(1, 2, n, 128), random(n, n)),
    ),
    "rows added": (
        lambda x, i: torch.zeros(3, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, i, x),
        lambda n: (random(3, n), torch.tensor([1, 1, 0])),
    ),
    "summed at places": (
        lambda x, i, v: x.scatter_reduce(1, i, v, "sum"),
        lambda n: (random(2, n), torch.arange(6).reshape(2, 3) % 2 % n, random(2, 3)),
    ),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x + 1.0, (x.shape[1],), w, b),
        lambda n: (random(2, n), random(n), random(n)),
    ),
    "rms norm": (lambda x, w: F.rms_norm(x, (x.shape[1],), w), lambda n: (random(2, n), random(n))),
    "columns": (lambda x: (x.sum(0), x.amax(0)), lambda n: (random(n, 6),)),
    "all": (lambda x: (x.sum(), x.mean(), (x > 0).any()), lambda n: (random(2, n),)),
    "running": (lambda x: x.cumsum(1), lambda n: (random(3, n),)),
    "cat": (lambda x, y: torch.cat((x, y.neg()), 1), lambda n: (random(2, n), random(2, 3))),
    "batched product": (lambda x, y: torch.bmm(x, y).relu(), lambda n: (random(2, 3, n), random(2, n, 5))),
    "masked attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0),
        lambda n: (random(1, 2, n, 8), random(1, 2, n, 8), random(1, 2, n, 5), random(n, n)),
    ),
    "grouped queries": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2) * 2.0,
        lambda n: (random(1, 4, n, 8), random(1, 2, n, 8), random(1, 2, n, 8)),
    ),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        lambda n: (random(1, 3, 4, n), random(5, 3, 3, 3), random(5)),
    ),
    "overflow": (lambda x: (x * 60000.0, (x * 300.0).float().square().to(x.dtype)), lambda n: (random(3, n),)),
}
"""Run in half precision."""
LARGE: Mapping[str, Case] = {
    "norm": (lambda x, w: F.layer_norm(x, (x.shape[1],), w), lambda n: (random(2, n) * 2e4, random(n))),
    "rms norm": (lambda x: F.rms_norm(x, (x.shape[1],)), lambda n: (random(2, n) * 2e4,)),
    "sum": (lambda x: (x.sum(1), x.mean(1)), lambda n: (random(3, n).abs() * 2e4,)),
    "columns": (lambda x: (x.sum(0), x.mean(0), x.amax(0)), lambda n: (random(n, 6) * 2e4,)),
    "softmax": (lambda x: x.softmax(-1), lambda n: (random(3, n) * 2e4,)),
    "running": (lambda x: x.cumsum(1), lambda n: (random(3, n).abs() * 2e3,)),
    "cat": (lambda x, y: torch.cat((x * 4.0, y), 1), lambda n: (random(2, n) * 2e4, random(2, 3))),
    "product": (lambda x, w: (x @ w).relu(), lambda n: (random(n, 19) * 200.0, random(19, 23) * 200.0)),
    "scaled product": (
        lambda x, w, b: (x @ w + b) * 0.001,
        lambda n: (random(3, n) * 99.0, random(n, 5) * 99.0, random(5)),
    ),
    "batched product": (torch.bmm, lambda n: (random(2, 3, n) * 200.0, random(2, n, 5) * 200.0)),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        lambda n: (random(1, 3, 4, n) * 200.0, random(5, 3, 3, 3) * 200.0, random(5)),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n: (random(1, 2, n, 8) * 100.0, random(1, 2, n, 8) * 100.0, random(1, 2, n, 8) * 2e4),
    ),
    "masked attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        lambda n: (random(1, 2, n, 8), random(1, 2, n, 8), random(1, 2, n, 5) * 2e4, (random(n, n) > 0) * -6e4),
    ),
    "grouped queries": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda n: (random(1, 4, n, 8) * 100.0, random(1, 2, n, 8) * 100.0, random(1, 2, n, 8) * 2e4),
    ),
    "rows added": (
        lambda g, i: torch.zeros(7, 5, dtype=g.dtype).index_put((i,), g, accumulate=True),
        lambda n: (random(n, 5).abs() * 2e4, torch.arange(n) % 7),
    ),
}
"""Run in float16, beyond whose range their values go: on the way, or as results."""
EMPTY: Mapping[str, Inputs] = {
    "softmax": (random(0, 5),),
    "layer norm": (random(0, 5), random(5), random(5)),
    "columns": (random(5, 0),),
    "attention": (random(0, 2, 5, 8), random(0, 2, 5, 8), random(0, 2, 5, 8)),
    "masked attention": (random(1, 2, 0, 8), random(1, 2, 7, 8), random(1, 2, 7, 5), torch.ones(0, 7, dtype=torch.bool)),
    "biased attention": (random(2, 0, 5, 16), random(2, 0, 7, 16), random(2, 0, 7, 16), random(2, 1, 1, 7)),
    "grouped queries": (random(0, 4, 5, 8), random(0, 2, 5, 8), random(0, 2, 5, 8)),
    "convolution": (random(0, 3, 4, 5), random(5, 3, 3, 3), random(5)),
    "scatter add": (random(0, 5), torch.zeros(0, 3, dtype=torch.int64), random(0, 3)),
    "multiplied at places": (random(0, 5), torch.zeros(0, 3, dtype=torch.int64), random(0, 3)),
    "averaged at places": (random(0, 5), torch.zeros(0, 3, dtype=torch.int64), random(0, 3)),
    "rows replaced": (random(0, 5, 3), torch.tensor([4]), random(0, 1, 3)),
    "gather": (random(0, 5), torch.zeros(0, 3, dtype=torch.int64)),
}
"""Inputs along whose rows or batch there is nothing, for cases in which the last dim may not be empty."""
RAGGED = (1, 7, 127, 129, 1000)
"""Sizes below, at and above those of blocks."""
