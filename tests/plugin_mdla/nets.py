"""Small nets of the well-known shapes, with random weights and batch norms whose statistics fit them."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """A ResNet block: two convolutions and a shortcut, projected where the size changes."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.BatchNorm2d(outs), nn.ReLU(),
            nn.Conv2d(outs, outs, 3, 1, 1, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.short = nn.Identity()
        if stride != 1 or ins != outs:
            self.short = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x))


class Bottleneck(nn.Module):
    """A ResNet-50 block."""

    def __init__(self, ins: int, middle: int, stride: int) -> None:
        super().__init__()
        outs = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(ins, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, outs, 1, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x))


class Fire(nn.Module):
    """A SqueezeNet block: squeeze, then two expansions side by side."""

    def __init__(self, ins: int, squeezed: int, outs: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(ins, squeezed, 1)
        self.one, self.three = nn.Conv2d(squeezed, outs, 1), nn.Conv2d(squeezed, outs, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.squeeze(x))
        return torch.cat([functional.relu(self.one(x)), functional.relu(self.three(x))], 1)


class Inverted(nn.Module):
    """A MobileNetV2 block: depthwise between two projections, relu6."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * ins
        self.body = nn.Sequential(
            nn.Conv2d(ins, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outs, 1, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.is_residual = stride == 1 and ins == outs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


class Inception(nn.Module):
    """Four branches, joined."""

    def __init__(self, ins: int, each: int) -> None:
        super().__init__()
        self.one, self.pooled = nn.Conv2d(ins, each, 1), nn.Conv2d(ins, each, 1)
        self.three = nn.Sequential(nn.Conv2d(ins, each, 1), nn.ReLU(), nn.Conv2d(each, each, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(ins, each, 1), nn.ReLU(), nn.Conv2d(each, each, 5, padding=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.pooled(functional.avg_pool2d(x, 3, 1, 1))
        return functional.relu(torch.cat([self.one(x), self.three(x), self.five(x), pooled], 1))


class UNet(nn.Module):
    """Down and up again with skips; its head classifies, so that nets compare alike."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.bottom = nn.Conv2d(32, 32, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1 = nn.Conv2d(48, 16, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
        self.head = nn.Sequential(nn.BatchNorm2d(16), nn.LeakyReLU(0.1), nn.AdaptiveMaxPool2d(4), *head(16 * 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = functional.relu(self.down1(x))
        two = functional.relu(self.down2(functional.max_pool2d(one, 2)))
        bottom = functional.relu(self.bottom(functional.max_pool2d(two, 2)))
        two = functional.relu(self.join2(torch.cat([self.up2(bottom), two], 1)))
        return self.head(self.join1(torch.cat([functional.interpolate(two, scale_factor=2), one], 1)))


def stem(outs: int) -> list[nn.Module]:
    return [nn.Conv2d(3, outs, 7, 2, 3, bias=False), nn.BatchNorm2d(outs), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]


def head(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, 10), nn.Softmax(-1)]


def pooled(features: int) -> list[nn.Module]:
    """Return means over quarters of the image: random nets see little in whole means."""
    return [nn.AdaptiveAvgPool2d(2), *head(4 * features)]


def _vgg() -> nn.Module:
    sizes = [(3, 16), (16, 32), (32, 32)]
    blocks = [(nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU(), nn.MaxPool2d(2)) for ins, outs in sizes]
    return nn.Sequential(
        *(layer for block in blocks for layer in block), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), *head(64)
    )


NETS = {
    "resnet18": lambda: nn.Sequential(*stem(16), Residual(16, 16, 1), Residual(16, 32, 2), *pooled(32)),
    "resnet50": lambda: nn.Sequential(*stem(16), Bottleneck(16, 8, 1), Bottleneck(32, 16, 2), *pooled(64)),
    "squeezenet": lambda: nn.Sequential(*stem(16), Fire(16, 8, 16), Fire(32, 8, 32), *pooled(64)),
    "vgg": _vgg,
    "mobilenetv2": lambda: nn.Sequential(*stem(8), Inverted(8, 8, 1), Inverted(8, 16, 2), *pooled(16)),
    "inception": lambda: nn.Sequential(*stem(16), Inception(16, 8), Inception(32, 16), *pooled(64)),
    "unet": UNet,
}


def images(count: int, seed: int, size: int = 32) -> torch.Tensor:
    """Return random images whose spectrum falls as natural ones do (amplitude as 1 / frequency), in three channels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.fft.rfft2(torch.randn(count, 3, size, size, generator=generator))
    down, across = torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None, :]
    found = torch.fft.irfft2(noise / (down.square() + across.square()).sqrt().clamp(min=1 / size), s=(size, size))
    mixed = 0.6 * found.mean(1, keepdim=True) + 0.4 * found
    return (mixed - mixed.mean((1, 2, 3), keepdim=True)) / mixed.std((1, 2, 3), keepdim=True)


def build(name: str) -> nn.Module:
    """Return a net with random weights, batch norms that have seen images, and a last layer whose classes are even."""
    torch.manual_seed(len(name))
    net = NETS[name]()
    with torch.no_grad():
        net.train()
        for seed in range(20):
            net(images(16, seed))
        net.eval()
        last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
        seen: list[torch.Tensor] = []
        hook = last.register_forward_hook(lambda _, __, output: seen.append(output))
        net(images(64, 99))
        hook.remove()
        last.bias -= seen[0].mean(0)
        last.weight /= seen[0].std(0)[:, None]
        last.bias /= seen[0].std(0)
    return net


def resnet18_at_224() -> nn.Sequential:
    """Return a ResNet-18 of the usual widths, for images of 224 pixels, with seeded random weights."""
    torch.manual_seed(0)
    pairs = itertools.pairwise((64, 64, 128, 256, 512))
    blocks = [block for ins, outs in pairs for block in (Residual(ins, outs, 1 + (ins != outs)), Residual(outs, outs, 1))]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return nn.Sequential(*stem(64), *blocks, *head).eval()
