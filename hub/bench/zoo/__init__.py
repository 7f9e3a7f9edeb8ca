"""Benchmark models by name. Random weights from a fixed seed, except `minilm`, which is trained. Nothing is downloaded.

This module imports neither torch nor transformers, so that the command line can list names at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hub.config.suggest import did_you_mean
from hub.discovery.registry import load_attribute
from hub.errors import ModelError, OptionError, text_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Recipe:
    """Instructions for building one model."""

    builder: str
    """ "module:function" under `hub.bench.zoo`; takes the batch and sizes, returns (module, inputs)."""
    batches: tuple[int, int] = (1, 4)
    """First dim of the inputs: the model's own, and another that `hub bench --zoo` also runs."""
    small: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sizes that keep the whole structure but let it run in milliseconds, for tests."""
    is_trained: bool = False


_TINY_TEXT = {"layers": 2, "hidden": 32, "tokens": 16, "vocabulary": 100}

_TINY_SPEECH = {"layers": 2, "hidden": 32, "positions": 50}
_TINY_STAGES = {"depths": (1, 1), "pixels": 32}

MODELS: Mapping[str, Recipe] = {
    "minilm": Recipe("text:minilm", batches=(8, 1), is_trained=True),
    "bert": Recipe("text:bert", small=_TINY_TEXT),
    "gpt2": Recipe("text:gpt2", small=_TINY_TEXT),
    "llama": Recipe("text:llama", small=_TINY_TEXT),
    "decode": Recipe("decoding:decode", batches=(1, 8), small={"layers": 2, "hidden": 32, "past": 7, "vocabulary": 100}),
    "t5": Recipe("text:t5", small=_TINY_TEXT),
    "mamba": Recipe("text:mamba", small=_TINY_TEXT),
    "moe": Recipe("text:moe", small=_TINY_TEXT),
    "vit": Recipe("vision:vit", small={"layers": 2, "hidden": 32, "pixels": 32}),
    "swin": Recipe("vision:swin", small={"hidden": 16, "depths": (1, 1), "pixels": 64}),
    "convnext": Recipe("vision:convnext", small={"widths": (8, 16), **_TINY_STAGES}),
    "resnet18": Recipe("vision:resnet18", small={"widths": (8, 16), **_TINY_STAGES}),
    "resnet50": Recipe("vision:resnet50", small={"widths": (16, 32), **_TINY_STAGES}),
    "mobilenetv2": Recipe("vision:mobilenetv2", small={"multiplier": 0.35, "pixels": 32}),
    "segformer": Recipe("vision:segformer", small={"widths": (8, 16, 16, 32), "depths": (1, 1, 1, 1), "pixels": 64}),
    "whisper-encoder": Recipe("audio:whisper_encoder", batches=(1, 2), small=_TINY_SPEECH),
    "whisper": Recipe("audio:whisper", batches=(1, 2), small={**_TINY_SPEECH, "tokens": 4, "vocabulary": 100}),
    "wav2vec2": Recipe("audio:wav2vec2", small={"layers": 2, "hidden": 32, "samples": 4000}),
    "mlp": Recipe("plain:mlp", batches=(64, 1), small={"width": 32}),
    "dlrm": Recipe("plain:dlrm", batches=(128, 1), small={"tables": 4, "rows": 50, "width": 8}),
    "lstm": Recipe("plain:lstm", small={"layers": 1, "width": 16, "steps": 8}),
    "unet": Recipe("plain:unet", small={"width": 8, "pixels": 32}),
    "diffusion": Recipe(
        "diffusion:diffusion", batches=(1, 2), small={"channels": 32, "pixels": 8, "time": 16, "context": 24, "words": 5}
    ),
}
"""Every built-in model."""

SEED = 0


def build(name: str, *, batch: int | None = None, small: bool = False) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a built-in model in eval mode, and the inputs of one call.

    `module(*inputs)` returns one tensor, or several, the first of which is the actual result (`decode`). `batch` is the
    first dim of the inputs; None means the model's own. Equal arguments give equal weights and inputs. Raise
    OptionError for an unknown name, and ModelError if a package that the model needs is missing.
    """
    import torch  # only building needs it

    recipe = recipe_of(name)
    with torch.random.fork_rng(devices=[]), _needed_packages(name):  # pyright: ignore[reportUnknownMemberType]
        torch.manual_seed(SEED)  # pyright: ignore[reportUnknownMemberType]
        builder = load_attribute(f"{__name__}.{recipe.builder}")
        module, inputs = builder(batch or recipe.batches[0], **(recipe.small if small else {}))
        if not recipe.is_trained:
            _unsettle(module)
    return module.eval(), inputs


@contextlib.contextmanager
def _needed_packages(name: str) -> Generator[None]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read by transformers when it is imported
    try:
        yield
    except ModuleNotFoundError as error:
        hint = "pip install 'compiler-hub[bench]'"
        raise ModelError(f"model {name!r} needs the package {error.name}", hint=hint) from error
    except RuntimeError as error:  # PyTorch's, for tensors that do not fit into memory
        raise ModelError(f"model {name!r} could not be made: {text_of(error)}", hint="choose a smaller --batch") from error


def _unsettle(module: torch.nn.Module) -> None:
    """Add noise to every bias, scale and statistic that is still all zeros or all ones (or 1e-6, like ConvNeXt's scales).

    Otherwise a compiler could drop them, and whole layers with them, and its results would still be correct.
    """
    import torch  # as above

    statistics = [value for name, value in module.named_buffers() if name.endswith(("running_mean", "running_var"))]
    with torch.no_grad():
        for value in (*module.parameters(), *statistics):
            if value.numel() and bool((value == value.flatten()[0]).all()):
                value.add_(torch.rand_like(value), alpha=0.1)


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a built-in model. Raise OptionError, with the nearest name, for an unknown one."""
    if name not in MODELS:
        raise OptionError(
            f"no built-in model is named {name!r}{did_you_mean(name, MODELS)}",
            hint=f"choose from {', '.join(MODELS)}, or give package.module:factory or file.py:factory",
        )
    return MODELS[name]
