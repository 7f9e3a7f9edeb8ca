"""Programs at the sizes of real models, in no memory: what rules choose there is compiled and looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

Case = tuple[Callable[..., Any], Sequence[torch.Tensor]]
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
SINGLE, HALF, BRAIN, DOUBLE = torch.float32, torch.float16, torch.bfloat16, torch.float64


def of(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Return a tensor that takes no memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def heads(width: int, dtype: torch.dtype, rows: int = 2048, keys: int = 2048, shared: int = 1) -> Heads:
    """Return queries, keys and values of 16 heads, some of which share keys."""
    kept = of(2, 16 // shared, keys, width, dtype=dtype)
    return of(2, 16, rows, width, dtype=dtype), kept, kept


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute a layer of a transformer's MLP."""
    return F.gelu(F.linear(x, weight, bias))


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute attention of a language model."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute attention of an encoder without padding."""
    return F.scaled_dot_product_attention(query, key, value)


def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention with a mask or a bias."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute attention whose queries share keys."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def capped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute attention with capped scores, as Gemma has it."""
    scores = torch.tanh(query @ key.transpose(-1, -2) * 0.1 / 50.0) * 50.0
    return torch.softmax(scores.float(), -1).to(value.dtype) @ value


def layer(columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return a product of 4,096 rows with a weight and a bias."""
    return of(4096, 4096, dtype=dtype), of(columns, 4096, dtype=dtype), of(columns, dtype=dtype)


PRODUCTS: Mapping[str, Case] = {
    "bfloat16": (linear, layer(4096, BRAIN)),
    "float16": (linear, layer(11008, HALF)),
    "float32": (linear, layer(4096, SINGLE)),
    "float64": (torch.matmul, (of(2048, 2048, dtype=DOUBLE), of(2048, 2048, dtype=DOUBLE))),
    "ragged": (linear, (of(1000, 1000, dtype=BRAIN), of(3001, 1000, dtype=BRAIN), of(3001, dtype=BRAIN))),
    "ragged float32": (linear, (of(1000, 1001), of(3001, 1001), of(3001))),
    "ragged float64": (torch.matmul, (of(300, 301, dtype=DOUBLE), of(301, 303, dtype=DOUBLE))),
    "ragged batch": (lambda x, y: torch.bmm(x, y).relu(), (of(64, 77, 77, dtype=BRAIN), of(64, 77, 77, dtype=BRAIN))),
    "few rows": (linear, (of(48, 4096, dtype=BRAIN), of(4096, 4096, dtype=BRAIN), of(4096, dtype=BRAIN))),
    "few rows float32": (linear, (of(48, 4096), of(4096, 4096), of(4096))),
    "few ragged rows": (linear, (of(48, 1000, dtype=BRAIN), of(3001, 1000, dtype=BRAIN), of(3001, dtype=BRAIN))),
    "few ragged rows float32": (linear, (of(48, 1000), of(3001, 1000), of(3001))),
    "both transposed": (lambda x, y: x.t() @ y.t(), (of(4096, 2048, dtype=BRAIN), of(1024, 4096, dtype=BRAIN))),
    "batched": (lambda x, y: torch.bmm(x, y).relu(), (of(64, 512, 512, dtype=BRAIN), of(64, 512, 512, dtype=BRAIN))),
    "batched float32": (lambda x, y: torch.bmm(x, y).relu(), (of(64, 512, 512), of(64, 512, 512))),
    "one row": (torch.matmul, (of(1, 4096, dtype=BRAIN), of(4096, 11008, dtype=BRAIN))),
    "deep": (torch.matmul, (of(16, 16384, dtype=BRAIN), of(16384, 64, dtype=BRAIN))),
    "residual": (
        lambda x, w, r: r + (x @ w) * 0.5,
        (of(4096, 4096, dtype=BRAIN), of(4096, 1024, dtype=BRAIN), of(4096, 1024)),
    ),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        (of(8, 64, 56, 56), of(64, 64, 3, 3), of(64)),
    ),
    "convolution of halves": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        (of(8, 64, 56, 56, dtype=BRAIN), of(64, 64, 3, 3, dtype=BRAIN), of(64, dtype=BRAIN)),
    ),
}
ATTENTION: Mapping[str, Case] = {
    **{f"causal {width} {dtype}": (causal, heads(width, dtype)) for width in (64, 128, 256) for dtype in (SINGLE, BRAIN)},
    **{f"plain {width} {dtype}": (plain, heads(width, dtype)) for width in (64, 128, 256) for dtype in (SINGLE, HALF)},
    **{
        f"masked {width} {dtype}": (masked, (*heads(width, dtype), of(2, 1, 2048, 2048, dtype=torch.bool)))
        for width in (64, 128, 256)
        for dtype in (SINGLE, BRAIN)
    },
    **{
        f"biased {width} {dtype}": (masked, (*heads(width, dtype), of(2, 16, 2048, 2048, dtype=dtype)))
        for width in (64, 128)
        for dtype in (SINGLE, BRAIN)
    },
    "ragged": (causal, heads(64, BRAIN, 1000, 1000)),
    "ragged float32": (plain, heads(80, SINGLE, 1000, 77)),
    "grouped": (grouped, heads(128, BRAIN, shared=4)),
    "capped": (capped, heads(128, BRAIN)),
    "one query": (plain, heads(128, BRAIN, 1, 1000)),
}
ROWS: Mapping[str, Case] = {
    **{
        f"softmax {columns} {dtype}": (lambda x: x.softmax(-1), (of(4096, columns, dtype=dtype),))
        for columns in (1024, 4096, 16384, 50257)
        for dtype in (SINGLE, BRAIN)
    },
    **{
        f"layer norm {columns} {dtype}": (
            lambda x, y, w, b: F.layer_norm(x + y, (w.shape[0],), w, b),
            (
                of(4096, columns, dtype=dtype),
                of(4096, columns, dtype=dtype),
                of(columns, dtype=dtype),
                of(columns, dtype=dtype),
            ),
        )
        for columns in (768, 4096, 16384)
        for dtype in (SINGLE, BRAIN)
    },
    "layer norm float64": (lambda x: F.layer_norm(x, (8192,)), (of(512, 8192, dtype=DOUBLE),)),
    "group norm": (lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (of(8, 320, 64, 64), of(320), of(320))),
    "columns": (lambda x: (x.sum(0), x.amax(0), x.var(0)), (of(4096, 4096),)),
    "all": (lambda x: (x.sum(), x.mean(), (x > 0).any()), (of(4096, 4096),)),
    "cross entropy": (
        lambda x, i: -x.log_softmax(1).gather(1, i[:, None]).mean(),
        (of(4096, 50257), of(4096, dtype=torch.int64)),
    ),
    "running": (lambda x: x.cumsum(1), (of(512, 16384),)),
    "running halves": (lambda x: x.cumsum(1), (of(512, 16384, dtype=BRAIN),)),
    "pointwise": (
        lambda x, y: F.gelu(x) * torch.sigmoid(y) + torch.erf(x) * torch.pow(x, 3.7),
        (of(4096, 4096), of(4096, 4096)),
    ),
    "embedding": (lambda i, w: F.embedding(i, w) * 2.0, (of(8, 2048, dtype=torch.int64), of(50257, 4096, dtype=BRAIN))),
    "rows added": (
        lambda g, i: g.new_zeros(50257, 1024).index_put((i,), g, accumulate=True),
        (of(4096, 1024), of(4096, dtype=torch.int64)),
    ),
    "cat": (lambda x, y: torch.cat((x, y.neg()), -1), (of(4096, 2048), of(4096, 2048))),
}
REAL: Mapping[str, Case] = {
    **{f"product: {name}": case for name, case in PRODUCTS.items()},
    **{f"attention: {name}": case for name, case in ATTENTION.items()},
    **{f"rows: {name}": case for name, case in ROWS.items()},
}
QUICK = (
    "product: bfloat16",
    "product: float32",
    "attention: causal 64 torch.bfloat16",
    "rows: layer norm 16384 torch.float32",
    "rows: softmax 16384 torch.bfloat16",
)
"""Those that every run of the tests compiles."""
