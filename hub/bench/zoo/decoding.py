"""One step of a decoder with its cache of keys and values: tensors in, tensors out, in plain torch.nn."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Norm(nn.Module):
    """Root-mean-square normalisation (Zhang and Sennrich, NeurIPS 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + 1e-6) * self.weight


def _rotated(values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of features by the angle of their position (Su et al., 2021)."""
    first, second = values.chunk(2, dim=-1)
    return values * cosine + torch.cat((-second, first), dim=-1) * sine


class _Layer(nn.Module):
    """One Llama layer: grouped queries over past and new keys, then a gated feed-forward."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        kept = hidden // 2
        self.before_attention, self.before_gate = _Norm(hidden), _Norm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, kept, bias=False)
        self.value = nn.Linear(hidden, kept, bias=False)
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, hidden * 11 // 4, bias=False)
        self.up = nn.Linear(hidden, hidden * 11 // 4, bias=False)
        self.down = nn.Linear(hidden * 11 // 4, hidden, bias=False)

    def forward(
        self, token: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], past: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        normed = self.before_attention(token)
        query = _rotated(self._split(self.query(normed)), *angles)
        key = torch.cat((past[0], _rotated(self._split(self.key(normed)), *angles)), dim=2)
        value = torch.cat((past[1], self._split(self.value(normed))), dim=2)
        mixed = scaled_dot_product_attention(query, key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1))
        token = token + self.mix(mixed.transpose(1, 2).flatten(2))
        normed = self.before_gate(token)
        return token + self.down(silu(self.gate(normed)) * self.up(normed)), key, value

    def _split(self, values: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = values.shape
        return values.view(batch, tokens, width // self.size, self.size).transpose(1, 2)


class _Step(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(_Layer(hidden, heads) for _ in range(layers))
        self.norm = _Norm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        half = hidden // heads // 2
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(half) / half))
        self.frequencies: torch.Tensor

    def forward(self, ids: torch.Tensor, position: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Take ids [batch, 1], the position [1], and keys and values of each layer [batch, heads, past, size]."""
        turn = (position.unsqueeze(-1) * self.frequencies).repeat(1, 2)
        angles = (turn.cos(), turn.sin())
        token: torch.Tensor = self.embedding(ids)
        kept: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            token, key, value = layer(token, angles, (past[2 * number], past[2 * number + 1]))
            kept += (key, value)
        return (self.head(self.norm(token)), *kept)


def decode(batch: int, *, layers: int = 4, hidden: int = 512, past: int = 255, vocabulary: int = 8000) -> Built:
    """Return one Llama step after `past` tokens; the outputs are logits [batch, 1, vocabulary] and the grown cache."""
    heads = max(2, hidden // 64)
    ids, position = torch.randint(0, vocabulary, (batch, 1)), torch.tensor([past])
    cache = (torch.randn(batch, heads // 2, past, hidden // heads) for _ in range(2 * layers))
    return _Step(layers, hidden, heads, vocabulary), (ids, position, *cache)
