"""A tiny model of any architecture of transformers, with seeded weights, and inputs that it runs on in eager."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils import _pytree as pytree
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from tests.architectures.exceptions import EXCEPTIONS
from tests.architectures.inputs import Arguments, candidates
from tests.architectures.shrink import WAYS, Way, rotary_sections, shrunk

NAMES: tuple[str, ...] = tuple(sorted(CONFIG_MAPPING_NAMES))
MAX_PARAMETERS = 60_000_000
SEED = 7
hf: Any = transformers


class NoTinyConfigurationError(Exception):
    """No configuration that the rules give runs in eager; the message says what came nearest."""


@dataclass(frozen=True, slots=True)
class Tiny:
    """What is needed to build a tiny model again, and the arguments of a call."""

    model_class: type[nn.Module]
    config: Any
    arguments: Arguments

    def build(self) -> nn.Module:
        """Return the model in eval mode, with weights determined by `SEED`."""
        torch.manual_seed(SEED)
        model = self.model_class(copy.deepcopy(self.config))
        return _settled(model).eval()

    def run(self, call: Any) -> Any:
        """Return the answer of a model, or of its compiled form, without gradients."""
        torch.manual_seed(SEED)
        with torch.no_grad():
            return call(**copy.deepcopy(self.arguments))


def _settled(model: nn.Module) -> nn.Module:
    """Replace constant weights, such as those of norms, and values that are not finite: zeros would hide mistakes."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.is_floating_point() or not weight.numel():
                continue
            noise = torch.randn(weight.shape, generator=generator) * 0.05
            if not torch.isfinite(weight).all() or float(weight.abs().max()) > 1e6:
                weight.copy_(noise)
            elif bool((weight == weight.flatten()[0]).all()) and weight.numel() > 1:
                weight.add_(noise)
    return model


def tiny(name: str) -> Tiny:
    """Return the smallest model of an architecture that runs in eager. Raise NoTinyConfigurationError if none does."""
    config_class = CONFIG_MAPPING[name]
    failures: list[str] = []
    for way in WAYS:
        try:
            config = configuration(config_class, name, way)
        except Exception as error:  # noqa: BLE001 - a configuration may raise anything
            failures.append(f"configuration: {_line(error)}")
            continue
        for model_class in classes(config_class):
            try:
                return _running(model_class, config)
            except Exception as error:  # noqa: BLE001 - so may a model
                failures.append(f"{model_class.__name__}: {_line(error)}")
    if os.environ.get("ARCHITECTURES_VERBOSE"):
        sys.stderr.write("\n".join(failures) + "\n")
    raise NoTinyConfigurationError(failures[0] if failures else "no model class has this configuration")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:240]


def configuration(config_class: Any, name: str, way: Way) -> Any:
    """Return a tiny configuration."""
    exception = EXCEPTIONS.get(name, {})
    base = config_class(**exception.get("arguments", {}))
    fields = shrunk(base.to_dict(), way)
    for dropped in ("transformers_version", "model_type", "id2label", "label2id", "dtype", "torch_dtype", "architectures"):
        fields.pop(dropped, None)
    for path, value in exception.get("fields", {}).items():
        *parts, last = path.split(".")
        place = fields
        for part in parts:
            place = place[part]
        place[last] = value
    _fit_rotary(config_class, fields)
    return config_class(**fields)


def _fit_rotary(config_class: Any, fields: dict[str, Any]) -> None:
    """Give a configuration and its parts sections of rotary positions that fit their heads, if they have any."""
    for name, part in getattr(config_class, "sub_configs", {}).items():
        if isinstance(inner := fields.get(name), dict) and part is not None:
            _fit_rotary(
                CONFIG_MAPPING[inner["model_type"]] if part is hf.AutoConfig and "model_type" in inner else part, inner
            )
    heads, rope = fields.get("num_attention_heads"), fields.get("rope_parameters")
    if "mrope_section" not in getattr(config_class, "ignore_keys_at_rope_validation", ()) or not heads or rope is None:
        return
    width = fields.get("head_dim") or fields["hidden_size"] // heads
    sections = rotary_sections(width, rope.get("partial_rotary_factor", 1.0))
    fields["rope_parameters"] = {**rope, "mrope_section": sections}


def classes(config_class: type) -> list[type[nn.Module]]:
    """Return the models of a configuration, the base model first, at most four."""
    found: list[Any] = []
    for mapping in ("MODEL_MAPPING", "MODEL_FOR_PRETRAINING_MAPPING", "MODEL_FOR_BACKBONE_MAPPING"):
        chosen = getattr(modeling_auto, mapping, {}).get(config_class, None) if mapping in dir(modeling_auto) else None
        found += list(chosen) if isinstance(chosen, tuple) else [chosen] if chosen else []
    found += _by_module(config_class)
    return list(dict.fromkeys(found))[:4]


def _by_module(config_class: type) -> Iterator[type[nn.Module]]:
    """Yield the models defined next to a configuration and annotated with it, base models first."""
    try:
        module = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    except ModuleNotFoundError:
        return
    models = [
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, hf.PreTrainedModel) and each.__module__ == module.__name__ and _is_of(each, config_class)
    ]
    models = [each for each in models if not each.__name__.endswith(("PreTrainedModel", "PretrainedModel"))]
    yield from sorted(models, key=lambda each: ("For" in each.__name__, len(each.__name__)))


def _is_of(model: Any, config_class: type) -> bool:
    annotations = [vars(model).get("__annotations__", {}).get("config"), model.__init__.__annotations__.get("config")]
    return model.config_class is config_class or any(
        config_class.__name__ == getattr(each, "__name__", each) for each in annotations
    )


def _running(model_class: Any, config: Any) -> Tiny:
    """Return a model with arguments that it answers. Raise the first arguments' error if there are none."""
    with torch.device("meta"):
        size = sum(each.numel() for each in model_class(copy.deepcopy(config)).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters")
    found = Tiny(model_class, config, {})
    model = found.build()
    first: Exception | None = None
    for arguments in candidates(model, config):
        try:
            return _answering(replace(found, arguments=arguments), model)
        except Exception as error:  # noqa: BLE001 - arguments that do not fit lead to anything
            first = first or error
    raise first or TypeError(f"no arguments for {list(inspect.signature(model.forward).parameters)}")


def _answering(found: Tiny, model: nn.Module) -> Tiny:
    """Return a model with answered arguments, image tokens inserted if the model asks for them. Raise the model's error."""
    try:
        result = found.run(model)
    except ValueError as error:
        count = re.search(r"tokens: (\d+),? (?:image |audio )?features:? (\d+)", str(error))
        if count is None:
            raise
        found = replace(found, arguments=_with_tokens(found, int(count[2])))
        result = found.run(model)
    if not any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(result)):
        raise TypeError("the answer holds no tensor")
    return found


def _with_tokens(found: Tiny, count: int) -> Arguments:
    """Return the arguments with as many image tokens as there are features."""
    config, ids = found.config, found.arguments["input_ids"]
    names = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
    token = next(value for name in names if (value := getattr(config, name, None)) is not None)
    rows = ids.shape[0]
    special = torch.full((rows, -(-count // rows)), token)
    longer = torch.cat((ids[:, :4], special, ids[:, 4:]), dim=1)
    return {**found.arguments, "input_ids": longer, "attention_mask": torch.ones_like(longer)}
