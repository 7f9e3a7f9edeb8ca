"""Small programs of the kinds that DISC is for, as they stand in real models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

Program = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


class Wrapped(nn.Module):
    """A function as a module."""

    def __init__(self, function: Program) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self.function(*inputs)


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores.masked_fill(mask, -torch.inf) * 0.125, -1)


def residual_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x + y
    return total, functional.layer_norm(total, (x.shape[-1],), weight, bias)


def rms_rotary(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    half = x.shape[-1] // 2
    turned = torch.cat((-scaled[..., half:], scaled[..., :half]), -1)
    return scaled * cos + turned * sin


def swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value


def gelu_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x + bias) + functional.gelu(x - bias, approximate="tanh")


def cross_entropy_rows(logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(logits, -1).gather(-1, places.unsqueeze(-1)).squeeze(-1)


def embedding_norm(table: torch.Tensor, places: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(functional.embedding(places, table), (table.shape[-1],), weight, None)


def batch_norm_pool(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(functional.batch_norm(x, mean, var).relu(), 2)


def group_norm_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.silu(functional.group_norm(x, 4, weight, bias))


def column_statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean(0), x.var(0), x.amax(0)


def heads(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape[-2:]
    return (x.view(-1, rows, 4, columns // 4).transpose(1, 2) * 2.0).transpose(1, 2).reshape(x.shape) + x


def quantised(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127.0
    return torch.clamp(torch.round(x / scale), -128, 127) * scale


def running(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x.exp(), -1) / (x.exp().sum(-1, keepdim=True) + 1.0)


def causal_softmax(scores: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(scores.shape[-1] // 2)
    return torch.softmax(torch.where(kept, scores, torch.finfo(scores.dtype).min), -1)


def capped_log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(torch.tanh(logits / 30.0) * 30.0, -1)


def gated_linear(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.glu(x + bias, -1)


def split_heads(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    batch, rows, columns = x.shape
    parts = (x + bias).view(batch, rows, 2, 4, columns // 8).permute(2, 0, 3, 1, 4)
    return (parts[0] * 0.125).contiguous(), parts[1].contiguous()


def merged_heads(x: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(residual.shape) + bias + residual


def pixel_shuffled(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.pixel_shuffle(x + bias.view(-1, 1, 1), 2).relu()


def mean_pooled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.unsqueeze(-1).float()
    return functional.normalize((x * kept).sum(1) / kept.sum(1).clamp(min=1e-9), dim=-1)


def dequantised(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return (q - zero).float() * scale


def mamba_step(state: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    step = functional.softplus(delta).unsqueeze(-1)
    state = torch.exp(step * a) * state + step * b
    return state, functional.silu(state.sum(-1))


def dense_block(one: torch.Tensor, other: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.cat((one.relu(), other, one * other), -1) * scale


def token_shift(x: torch.Tensor, mix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    before = functional.pad(x, (0, 0, 1, -1))
    return x * mix + before * (1 - mix), x + (before - x) * mix


def channels_first(x: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return residual + (x * scale).permute(0, 2, 1)


def rotary_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def binary_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.clamp(min=0) - logits * targets + torch.log1p(torch.exp(-logits.abs()))).mean()


def modulated_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (x.shape[-1],)) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def batch_norm_residual(x: torch.Tensor, y: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return (functional.batch_norm(x, mean, var) + y).relu()


def squeezed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def batch_statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    return mean, torch.rsqrt(var + 1e-5)


def channel_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute ConvNeXt's norm over channels, which are the first dim."""
    mean = x.mean(1, keepdim=True)
    spread = (x - mean).pow(2).mean(1, keepdim=True)
    return (x - mean) / torch.sqrt(spread + 1e-6) * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)


def pairs_of_rows(x: torch.Tensor) -> torch.Tensor:
    """Combine the sum of each row with that of each other row, as in distances and overlaps of boxes."""
    sums = x.sum(-1)
    return sums[:, :, None] + sums[:, None]


def _n(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def inputs_of(name: str, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Return inputs of a program: [rows, columns], columns divisible by 8."""
    torch.manual_seed(3)
    n = columns
    made: Mapping[str, Callable[[], Sequence[torch.Tensor]]] = {
        "masked_softmax": lambda: (_n(2, rows, n), (torch.rand(rows, n) < 0.3).index_fill(-1, torch.tensor([0]), False)),
        "residual_norm": lambda: (_n(2, rows, n), _n(2, rows, n), _n(n), _n(n)),
        "rms_rotary": lambda: (_n(2, rows, n), _n(n), _n(rows, n), _n(rows, n)),
        "swiglu": lambda: (_n(rows, 2 * n),),
        "gelu_bias": lambda: (_n(rows, n), _n(n)),
        "cross_entropy_rows": lambda: (_n(rows, n), torch.randint(n, (rows,))),
        "embedding_norm": lambda: (_n(50, n), torch.randint(50, (2, rows)), _n(n)),
        "batch_norm_pool": lambda: (_n(2, rows, 6, n), _n(rows), torch.rand(rows) + 0.5),
        "group_norm_silu": lambda: (_n(2, 8, rows, n), _n(8), _n(8)),
        "column_statistics": lambda: (_n(rows, n),),
        "heads": lambda: (_n(2, rows, n),),
        "quantised": lambda: (_n(rows, n),),
        "running": lambda: (_n(rows, n),),
        "causal_softmax": lambda: (_n(2, rows, n),),
        "capped_log_softmax": lambda: (_n(rows, n) * 20,),
        "gated_linear": lambda: (_n(rows, 2 * n), _n(2 * n)),
        "split_heads": lambda: (_n(2, rows, 2 * n), _n(2 * n)),
        "merged_heads": lambda: (_n(2, 4, rows, n // 4), _n(2, rows, n), _n(n)),
        "pixel_shuffled": lambda: (_n(2, 4 * rows, 2, n), _n(4 * rows)),
        "mean_pooled": lambda: (_n(2, rows, n), (torch.rand(2, rows) < 0.7).int()),
        "dequantised": lambda: (torch.randint(-128, 127, (rows, n), dtype=torch.int32), _n(n), torch.arange(n).int() % 9),
        "mamba_step": lambda: (_n(rows, n // 8, 16), _n(rows, n // 8), -_positive(n // 8, 16), _n(rows, 1, 16)),
        "dense_block": lambda: (_n(2, rows, n), _n(2, rows, n), _n(3 * n)),
        "token_shift": lambda: (_n(2, rows, n), torch.rand(n)),
        "channels_first": lambda: (_n(2, rows, n), _n(n), _n(2, n, rows)),
        "rotary_pairs": lambda: (_n(2, rows, n), _n(rows, n // 2), _n(rows, n // 2)),
        "binary_loss": lambda: (_n(rows, n), torch.rand(rows, n)),
        "modulated_norm": lambda: (_n(2, rows, n), _n(2, n), _n(2, n)),
        "batch_norm_residual": lambda: (_n(2, rows, 6, n), _n(2, rows, 6, n), _n(rows), torch.rand(rows) + 0.5),
        "squeezed": lambda: (_n(2, rows, 6, n),),
        "batch_statistics": lambda: (_n(2, rows, 6, n),),
        "channel_norm": lambda: (_n(2, rows, 6, n), _n(rows), _n(rows)),
        "pairs_of_rows": lambda: (_n(2, rows, n),),
    }
    return tuple(made[name]())


PROGRAMS: Mapping[str, Program] = {
    function.__name__: function
    for function in (
        masked_softmax,
        residual_norm,
        rms_rotary,
        swiglu,
        gelu_bias,
        cross_entropy_rows,
        embedding_norm,
        batch_norm_pool,
        group_norm_silu,
        column_statistics,
        heads,
        quantised,
        running,
        causal_softmax,
        capped_log_softmax,
        gated_linear,
        split_heads,
        merged_heads,
        pixel_shuffled,
        mean_pooled,
        dequantised,
        mamba_step,
        dense_block,
        token_shift,
        channels_first,
        rotary_pairs,
        binary_loss,
        modulated_norm,
        batch_norm_residual,
        squeezed,
        batch_statistics,
        channel_norm,
        pairs_of_rows,
    )
}
IMAGES = (
    "batch_norm_pool",
    "group_norm_silu",
    "pixel_shuffled",
    "batch_norm_residual",
    "squeezed",
    "batch_statistics",
    "channel_norm",
)
"""Programs of images, [2, rows, 6, columns] and the like, which DISC takes at fixed sizes."""
FIXED_SIZES = (*IMAGES, "merged_heads", "rotary_pairs")
"""Programs that are tried at fixed sizes only: of images, or with symbols that are computed between operators."""
