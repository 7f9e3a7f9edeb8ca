"""Inputs for any model of transformers, from its `forward` and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

ROWS, LENGTH, FIRST_ID, LAST_ID = 2, 12, 5, 95
SAMPLES = 4000
"""Audio samples."""
Arguments = dict[str, Any]
CODEBOOKS = {"csm": "num_codebooks", "higgs_audio_v2": "num_codebooks", "dia_decoder": "num_channels"}
"""Models whose tokens have a code of each codebook, and the field that says how many there are."""


class Facts:
    """What a configuration says, looked for in its parts where it does not say it itself."""

    def __init__(self, config: Any, parts: tuple[str, ...] = ()) -> None:
        self._configs = [config]
        named = [*parts, "vision_config", "audio_config", "encoder_config", "text_config", "backbone_config"]
        for name in (*named, *getattr(config, "sub_configs", {})):
            part = getattr(config, name, None)
            if part is not None and part not in self._configs:
                self._configs.append(part)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the value of the first of these fields that is set."""
        for name in names:
            for config in self._configs:
                if (value := getattr(config, name, None)) is not None:
                    return value
        return default

    def number(self, *names: str, default: int) -> int:
        """Return the first integer of these fields."""
        value = self.get(*names, default=default)
        return value if isinstance(value, int) else default

    def sides(self) -> tuple[int, int]:
        """Return the height and width of an image."""
        value = self.get("image_size", "img_size", "input_size", default=64)
        if isinstance(value, dict):
            value = value.get("height", value.get("shortest_edge", 64)), value.get("width", value.get("shortest_edge", 64))
        pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
        return (pair[-2], pair[-1]) if len(pair) > 1 else (pair[0], pair[0])


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.5


def _ids(*shape: int, most: int = LAST_ID) -> torch.Tensor:
    return torch.randint(min(FIRST_ID, most - 1), most, shape, generator=torch.Generator().manual_seed(3))


def _ids_for(facts: Facts) -> torch.Tensor:
    most = min(LAST_ID, facts.number("vocab_size", "src_vocab_size", default=LAST_ID))
    field = CODEBOOKS.get(facts.get("model_type"))
    codebooks = facts.get(field) if field else None
    ids = _ids(ROWS, LENGTH, codebooks, most=most) if codebooks else _ids(ROWS, LENGTH, most=most)
    eos = facts.get("eos_token_id")
    if isinstance(eos, int) and eos < most and ids.dim() == 2:
        ids[:, -1] = eos  # CLIP's text models pool there
    return ids


def _images(facts: Facts) -> torch.Tensor:
    height, width = facts.sides()
    return _random(ROWS, facts.number("num_channels", "in_channels", "in_chans", default=3), height, width)


def _videos(facts: Facts) -> torch.Tensor:
    images = _images(facts)
    frames = facts.number("num_frames", "frames_per_clip", default=4)
    return images[:, None].repeat(1, frames, 1, 1, 1)


def _spectrogram(facts: Facts) -> torch.Tensor:
    mels = facts.number("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "mel_dim", default=80)
    positions = facts.number("max_source_positions", default=64)
    return _random(ROWS, mels, 2 * positions)


def _boxes(facts: Facts) -> torch.Tensor:
    corner = torch.randint(0, 40, (ROWS, LENGTH, 2), generator=torch.Generator().manual_seed(3))
    return torch.cat((corner, corner + 20), dim=-1)


def _mask(facts: Facts) -> torch.Tensor:
    mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask[1, -3:] = 0
    return mask


def _states(facts: Facts) -> torch.Tensor:
    return _random(ROWS, LENGTH, facts.number("hidden_size", "d_model", "n_embd", "embed_dim", default=64))


def _codes_first(facts: Facts) -> torch.Tensor:
    return _states(facts).transpose(1, 2).contiguous()


def _bins_last(facts: Facts) -> torch.Tensor:
    return _spectrogram(facts).transpose(1, 2).contiguous()


def _waves(facts: Facts) -> torch.Tensor:
    return _random(ROWS, SAMPLES)


def _channelled_waves(facts: Facts) -> torch.Tensor:
    return _random(ROWS, facts.number("audio_channels", default=1), SAMPLES)


MAKERS: Mapping[str, tuple[Callable[[Facts], Any], ...]] = {
    "input_ids": (_ids_for,),
    "inputs_embeds": (_states,),
    "hidden_states": (_states, _images, _bins_last),
    "encoder_hidden_states": (_states,),
    "query_embeds": (_states,),
    "context": (_states,),
    "latents": (_states, _codes_first),
    "input": (_images,),
    "mask": (lambda facts: torch.ones(ROWS, LENGTH, dtype=torch.bool),),
    "attention_mask": (_mask,),
    "decoder_input_ids": (_ids_for,),
    "bbox": (_boxes,),
    "pixel_values": (_images, _videos),
    "pixel_values_videos": (_videos,),
    "pixel_mask": (lambda facts: torch.ones(ROWS, *facts.sides(), dtype=torch.long),),
    "input_values": (_waves, _channelled_waves, _bins_last, _spectrogram, _states),
    "input_features": (_spectrogram, _bins_last, _waves),
    "input_features_mask": (lambda facts: torch.ones(ROWS, _spectrogram(facts).shape[-1], dtype=torch.long),),
    "audio_values": (_waves, _channelled_waves),
    "audio_codes": (lambda facts: _ids(ROWS, facts.number("num_codebooks", "num_quantizers", default=4), LENGTH, most=32),),
    "spectrogram": (_bins_last, _spectrogram),
    "position_ids": (lambda facts: torch.arange(LENGTH).repeat(ROWS, 1),),
    "flattened_patches": (lambda facts: _random(ROWS, LENGTH, facts.number("patch_embed_hidden_size", default=768)),),
    "input_points": (lambda facts: 20 * _random(ROWS, 1, 2, 2).abs(),),
}  # fmt: skip
"""What may be given under a name, the likeliest first."""


def candidates(model: nn.Module, config: Any) -> list[Arguments]:
    """Return arguments to try, the fullest first: text and images, then one of them alone."""
    names = inspect.signature(model.forward).parameters
    required = [
        name for name, each in names.items() if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    main = getattr(model, "main_input_name", "input_ids")
    first = [name for name in required if name in MAKERS] or ([main] if main in names and main in MAKERS else [])
    text = ["input_ids", "attention_mask", "bbox", "decoder_input_ids"]
    sets: list[list[str]] = []
    if "input_ids" in names:
        sets += [
            [*first, *text, "pixel_values", "input_features"],
            [*first, *text],
            [*first, "input_ids"],
            [*first, *text[1:]],
        ]
    sets += [
        [*first, "decoder_input_ids"],
        [*first, "pixel_values"],
        first,
        ["pixel_values"],
        ["input_ids"],
        ["inputs_embeds"],
    ]
    facts = Facts(config)
    patches = _patches(names, facts, config)
    return patches + _without_repeats(
        [made for each in sets for made in _made([name for name in each if name in names], facts)]
    )


def _patches(names: Mapping[str, Any], facts: Facts, config: Any) -> list[Arguments]:
    """Return the arguments of models that take images as patches, with the rows and columns of patches in each image."""
    grids = [name for name in ("grid_thw", "image_grid_thw") if name in names]
    if not grids:
        return []
    channels = facts.number("in_channels", "in_chans", "num_channels", default=3)
    side, frames = facts.number("patch_size", default=14), facts.number("temporal_patch_size", default=1)
    images = {"hidden_states" if "hidden_states" in names else "pixel_values": _random(16, channels * frames * side * side)}
    images[grids[0]] = torch.tensor([[1, 4, 4]])
    if "input_ids" not in names:
        return [images]
    merged = facts.number("spatial_merge_size", "merge_size", default=2) ** 2
    ids = torch.full((1, 16 // merged), facts.number("image_token_id", "image_token_index", default=0))
    start, end = facts.get("vision_start_token_id"), facts.get("vision_end_token_id")
    before, after = (torch.tensor([[each]] if isinstance(each, int) else [[]], dtype=torch.long) for each in (start, end))
    text = _ids(1, LENGTH)
    given = torch.cat((text[:, :4], before, ids, after, text[:, 4:]), dim=1)
    found: Arguments = {"input_ids": given, "attention_mask": torch.ones_like(given), **images}
    if "mm_token_type_ids" in names:
        found["mm_token_type_ids"] = (given == ids[0, 0]).to(torch.int32)
    return [found]


def _made(names: list[str], facts: Facts) -> list[Arguments]:
    """Return one set of arguments of these names for each index in the lists of makers."""
    names = list(dict.fromkeys(names))
    if not names:
        return []
    longest = max(len(MAKERS[name]) for name in names)
    return [{name: MAKERS[name][min(place, len(MAKERS[name]) - 1)](facts) for name in names} for place in range(longest)]


def _without_repeats(found: list[Arguments]) -> list[Arguments]:
    kept: dict[str, Arguments] = {}
    for each in found:
        kept.setdefault(str(sorted((name, tuple(value.shape)) for name, value in each.items())), each)
    return list(kept.values())
