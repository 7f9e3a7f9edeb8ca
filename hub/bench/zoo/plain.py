"""Models in plain torch.nn."""

from __future__ import annotations

import itertools

import torch
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def mlp(batch: int, *, width: int = 512) -> Built:
    """Return Linear, GELU, LayerNorm, Linear, Softmax on [batch, width]."""
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
    """Return a bidirectional LSTM tagger on [batch, steps, width]."""
    return _Tagger(layers, width), (torch.randn(batch, steps, width),)


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
    )


class _UNet(nn.Module):
    """Three levels down and up, with skip connections by concatenation (Ronneberger et al., MICCAI 2015)."""

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
    """Return a U-Net on [batch, 3, pixels, pixels]."""
    return _UNet(width), (torch.randn(batch, 3, pixels, pixels),)


class _Recommender(nn.Module):
    """Dense features in one MLP, categories in embeddings, their products in another MLP (Naumov et al., 2019)."""

    def __init__(self, dense: int, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(*_tower(dense, 8 * width, 4 * width, width))
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        n_pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(*_tower(width + n_pairs, 8 * width, 4 * width), nn.Linear(4 * width, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1))
        self.pairs: torch.Tensor

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        hidden = self.bottom(dense)
        looked_up = [table(categories[:, column]) for column, table in enumerate(self.tables)]
        features = torch.stack((hidden, *looked_up), dim=1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((hidden, products), dim=1))


def _tower(*widths: int) -> list[nn.Module]:
    return [module for low, high in itertools.pairwise(widths) for module in (nn.Linear(low, high), nn.ReLU())]


def dlrm(batch: int, *, tables: int = 26, rows: int = 10000, width: int = 64) -> Built:
    """Return a DLRM on 13 numbers [batch, 13] and categories [batch, tables]; the output is probabilities [batch, 1]."""
    return _Recommender(13, tables, rows, width), (torch.randn(batch, 13), torch.randint(0, rows, (batch, tables)))
