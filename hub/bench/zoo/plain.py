"""Models in plain torch.nn."""

from __future__ import annotations

import itertools

import torch
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def mlp(batch: int, *, width: int = 512) -> Built:
    """Linear, GELU, LayerNorm, Linear, Softmax on [batch, width]."""
    module = nn.Sequential(
        nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width), nn.Softmax(dim=-1)
    )
    return module, (torch.randn(batch, width),)


class _Tagger(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=layers, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 32)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(steps)
        return self.head(hidden)


def lstm(batch: int, *, layers: int = 2, width: int = 256, steps: int = 64) -> Built:
    """A bidirectional LSTM tagger on [batch, steps, width]."""
    return _Tagger(layers, width), (torch.randn(batch, steps, width),)


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
    )


class _UNet(nn.Module):
    """Three levels down and up, with skips by concatenation (Ronneberger et al., MICCAI 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width, 8 * width)
        self.down = nn.ModuleList(_double_conv(low, high) for low, high in itertools.pairwise((3, *widths)))
        pairs = tuple(itertools.pairwise(widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(high, low, 2, stride=2) for low, high in pairs)
        self.merge = nn.ModuleList(_double_conv(high, low) for low, high in pairs)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skips = [self.down[0](image)]
        for block in self.down[1:]:
            skips.append(block(nn.functional.max_pool2d(skips[-1], 2)))
        found = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            found = merge(torch.cat((skips.pop(), up(found)), dim=1))
        return self.head(found)


def unet(batch: int, *, width: int = 32, pixels: int = 128) -> Built:
    """A U-Net on [batch, 3, pixels, pixels]."""
    return _UNet(width), (torch.randn(batch, 3, pixels, pixels),)
