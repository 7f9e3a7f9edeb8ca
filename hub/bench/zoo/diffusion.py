"""A block of a diffusion model's U-Net, in plain torch.nn."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Residual(nn.Module):
    """Two convolutions with group norms, and the time embedding added in between (Ho et al., NeurIPS 2020)."""

    def __init__(self, channels: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, channels)
        self.conv_in = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv_out = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(time, channels)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.conv_in(silu(self.norm_in(image))) + self.time(silu(time))[:, :, None, None]
        return image + self.conv_out(silu(self.norm_out(hidden)))


class _Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context, width, bias=False)
        self.value = nn.Linear(context, width, bias=False)
        self.mix = nn.Linear(width, width)

    def forward(self, values: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(values), self.key(context), self.value(context))
        )
        return self.mix(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class _Spatial(nn.Module):
    """A transformer in which pixels attend to each other, then to the text (Rombach et al., CVPR 2022)."""

    def __init__(self, channels: int, context: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.enter, self.leave = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own = _Attention(channels, channels, heads)
        self.cross = _Attention(channels, context, heads)
        self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, image: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        pixels = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        normed = self.norms[0](pixels)
        pixels = pixels + self.own(normed, normed)
        pixels = pixels + self.cross(self.norms[1](pixels), context)
        value, gate = self.up(self.norms[2](pixels)).chunk(2, dim=-1)
        pixels = pixels + self.down(value * gelu(gate))
        return image + self.leave(pixels.transpose(1, 2).unflatten(2, image.shape[2:]))


class _Block(nn.Module):
    def __init__(self, channels: int, time: int, context: int, heads: int, groups: int) -> None:
        super().__init__()
        self.residual = _Residual(channels, time, groups)
        self.spatial = _Spatial(channels, context, heads, groups)
        self.shrink = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, image: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.shrink(self.spatial(self.residual(image, time), context))


def diffusion(
    batch: int, *, channels: int = 320, pixels: int = 32, time: int = 1280, context: int = 768, words: int = 77
) -> Built:
    """Return a down block of Stable Diffusion's U-Net (its first, at half its pixels); the output is the halved image.

    The inputs are the image [batch, channels, pixels, pixels], the time embedding [batch, time] and the text embedding
    [batch, words, context].
    """
    inputs = (
        torch.randn(batch, channels, pixels, pixels),
        torch.randn(batch, time),
        torch.randn(batch, words, context),
    )
    return _Block(channels, time, context, heads=8, groups=min(32, channels // 4)), inputs
