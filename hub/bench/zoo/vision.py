"""Vision models from `transformers` configs, on images [batch, 3, pixels, pixels]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn

from hub.bench.zoo.call import Call

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]

hf: Any = transformers
"""`transformers`, whose annotations omit arguments that its configs take."""

_LABELS = 1000


def vit(batch: int, *, layers: int = 12, hidden: int = 192, pixels: int = 224) -> Built:
    """Return a ViT (tiny: 12 layers of 192, patches of 16); the output is logits [batch, 1000]."""
    config = hf.ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        intermediate_size=4 * hidden,
        image_size=pixels,
        num_labels=_LABELS,
    )
    return _classifier(hf.ViTForImageClassification(config), batch, pixels)


def swin(batch: int, *, hidden: int = 96, depths: Sequence[int] = (2, 2, 6, 2), pixels: int = 224) -> Built:
    """Return a Swin transformer (tiny), which shifts windows; the output is logits [batch, 1000]."""
    config = hf.SwinConfig(
        embed_dim=hidden,
        depths=list(depths),
        num_heads=[max(1, hidden * 2**stage // 32) for stage in range(len(depths))],
        image_size=pixels,
        num_labels=_LABELS,
    )
    return _classifier(hf.SwinForImageClassification(config), batch, pixels)


def convnext(
    batch: int,
    *,
    widths: Sequence[int] = (96, 192, 384, 768),
    depths: Sequence[int] = (3, 3, 9, 3),
    pixels: int = 224,
) -> Built:
    """Return a ConvNeXt (tiny); the output is logits [batch, 1000]."""
    config = hf.ConvNextConfig(num_stages=len(widths), hidden_sizes=list(widths), depths=list(depths), num_labels=_LABELS)
    return _classifier(hf.ConvNextForImageClassification(config), batch, pixels)


def resnet18(
    batch: int,
    *,
    widths: Sequence[int] = (64, 128, 256, 512),
    depths: Sequence[int] = (2, 2, 2, 2),
    pixels: int = 224,
) -> Built:
    """Return a ResNet of basic blocks; the output is logits [batch, 1000]."""
    return _resnet(batch, "basic", widths, depths, pixels)


def resnet50(
    batch: int,
    *,
    widths: Sequence[int] = (256, 512, 1024, 2048),
    depths: Sequence[int] = (3, 4, 6, 3),
    pixels: int = 224,
) -> Built:
    """Return a ResNet of bottleneck blocks; the output is logits [batch, 1000]."""
    return _resnet(batch, "bottleneck", widths, depths, pixels)


def _resnet(batch: int, layer: str, widths: Sequence[int], depths: Sequence[int], pixels: int) -> Built:
    config = hf.ResNetConfig(
        embedding_size=min(64, widths[0]),
        hidden_sizes=list(widths),
        depths=list(depths),
        layer_type=layer,
        num_labels=_LABELS,
    )
    return _classifier(hf.ResNetForImageClassification(config), batch, pixels)


def mobilenetv2(batch: int, *, multiplier: float = 1.0, pixels: int = 224) -> Built:
    """Return a MobileNetV2; the output is logits [batch, 1000]."""
    config = hf.MobileNetV2Config(depth_multiplier=multiplier, image_size=pixels, num_labels=_LABELS)
    return _classifier(hf.MobileNetV2ForImageClassification(config), batch, pixels)


def segformer(
    batch: int,
    *,
    widths: Sequence[int] = (32, 64, 160, 256),
    depths: Sequence[int] = (2, 2, 2, 2),
    pixels: int = 256,
) -> Built:
    """Return a SegFormer (b0) with its decoder; the output is logits [batch, labels, pixels / 4, pixels / 4]."""
    config = hf.SegformerConfig(
        hidden_sizes=list(widths),
        depths=list(depths),
        num_attention_heads=[max(1, width // 32) for width in widths],
        decoder_hidden_size=widths[-1],
        num_labels=19,
    )
    return _classifier(hf.SegformerForSemanticSegmentation(config), batch, pixels)


def _classifier(model: nn.Module, batch: int, pixels: int) -> Built:
    return Call(model, ("pixel_values",), "logits"), (torch.randn(batch, 3, pixels, pixels),)
