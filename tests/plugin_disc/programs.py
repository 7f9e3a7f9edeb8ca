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


def _n(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def inputs_of(name: str, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Gives inputs of a program: [rows, columns], columns divisible by 8."""
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
    )
}
