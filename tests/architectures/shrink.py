"""Rules that make a configuration's fields small and keep the relations between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

Fields = dict[str, Any]

WIDTH, INNER, HEADS, HEAD_DIM, VOCABULARY, POSITIONS, EXPERTS = 64, 128, 4, 16, 128, 128, 4
PARTS = ("encoder", "decoder", "question_encoder", "generator")
"""Configurations of parts whose names do not say so."""
LIST_FACTOR = 4
"""What widths in lists are divided by where others are set: their ratios stay."""
FIRST_TOKEN = 100
"""Special tokens beyond the vocabulary get numbers from here on, in the order in which they are met."""

_TOKEN = re.compile(r"(token_id|token_index|_token|token_ids|_id)$")
_LAYERS = re.compile(
    r"^(num_hidden_layers|num_layers|n_layers?|depth|layers|num_blocks|num_hidden_blocks|num_encoder_blocks|"
    r"(\w+_)?(encoder|decoder|hidden|residual|conv|lstm|adapter|transformer|qformer|text|vision|attention|fuser|memory)_"
    r"(num_)?layers|\w+_num_layers|num_\w+_layers|\w+_depth)$"
)
_NOT_LAYERS = re.compile(r"shared|nextn|window_layers|feature|feat_|upsampl|downsampl|dense|adapter")
_VOCABULARY = re.compile(r"vocab_size|^codebook_size$|^num_embeddings$|^entity_emb|^n_tokens$")
_POSITIONS = re.compile(r"position_embeddings$|^n_positions$|^max_\w*positions$|^max_seq_len|^max_sequence_length$|^n_ctx$")
_EXPERTS = re.compile(r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_routed_experts|n_experts)$")
_CHOSEN = re.compile(r"(experts_per_tok|moe_topk|top_k_experts|moe_k|num_selected_experts|moe_top_k|experts_per_token)$")
_HEADS = re.compile(r"(attention_heads|num_heads|n_heads?|_num_heads|attn_heads)$")
_FEW_HEADS = re.compile(r"(key_value_heads|kv_heads|kv_head)$")
_HEAD_DIM = re.compile(r"^(global_|swa_|attention_)?head_dim$|^v_head_dim$|^qk_head_dim$|^dim_head$|^d_kv$|^kv_channels$")
_INNER = re.compile(
    r"(intermediate_size|ffn_dim|d_ff|mlp_dim|n_inner|intermediate_dim|inner_dim|feedforward\w*|ffn_hidden_size)$"
)
_WIDTH = re.compile(
    r"(hidden_size\w*|hidden_dim|d_model|n_embd|embed_dim|projection_dim|embedding_size|dim|emb_dim|embedding_dim|"
    r"hidden_channels|pooler_output_size|output_hidden_size|width|projector_hidden_size|lru_width|proj_size|upsample_groups)$"
)
_NOT_WIDTH = re.compile(r"head_dim|rope|conv_kernel|kernel|codebook_dim|latent_dim|mel_dim|pos_dim|time_dim|_position")
_LORA = re.compile(r"^(q|kv|o|k|v)_lora_rank$")
_INDICES = re.compile(r"(indices|indexes|_layers|feature_layer|layer_idx|_idx|_blocks|layer_ids)$")


@dataclass(frozen=True, slots=True)
class Way:
    """How to make a configuration small: each keeps more of it as it is than the one before."""

    widths: str = "set"
    """ "set" to common values, "scaled" by one factor, or "kept"."""
    has_small_images: bool = True


WAYS = (Way(), Way("scaled"), Way("kept"), Way("scaled", has_small_images=False), Way("kept", has_small_images=False))


def shrunk(fields: Mapping[str, Any], way: Way = WAYS[0]) -> Fields:
    """Return a configuration's fields, including those of its parts, made small."""
    tokens: dict[int, int] = {}
    widest = max((value for name, value in _integers(fields) if _is_width(name)), default=WIDTH)
    factor = 1
    while widest // (2 * factor) >= WIDTH:
        factor *= 2
    return _part(fields, way, factor, tokens)


def _integers(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _integers(cast("Mapping[str, Any]", value))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def _part(fields: Mapping[str, Any], way: Way, factor: int, tokens: dict[int, int]) -> Fields:
    found = {name: _field(name, value, way, factor, tokens) for name, value in fields.items()}
    _cut_layers(fields, found)
    _fit_states(found, way)
    _fit_heads(fields, found, way)
    if way.has_small_images:
        _fit_images(fields, found)
    return found


def _field(name: str, value: Any, way: Way, factor: int, tokens: dict[int, int]) -> Any:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        return _part(inner, way, factor, tokens) if name.endswith("config") or name in PARTS else dict(inner)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (list, tuple)) and _TOKEN.search(name):
        return [_token(each, tokens) if isinstance(each, int) else each for each in cast("list[Any]", value)]
    if isinstance(value, (list, tuple)):
        return _list(name, list(cast("list[Any]", value)), way, factor)
    return _integer(name, value, way, factor, tokens) if isinstance(value, int) else value


def _token(value: int, tokens: dict[int, int]) -> int:
    return (
        value if value < FIRST_TOKEN else tokens.setdefault(value, FIRST_TOKEN + len(tokens) % (VOCABULARY - FIRST_TOKEN))
    )


def _integer(name: str, value: int, way: Way, factor: int, tokens: dict[int, int]) -> int:
    if _TOKEN.search(name):
        return _token(value, tokens)
    for pattern, most in (
        (_VOCABULARY, VOCABULARY), (_POSITIONS, POSITIONS), (_EXPERTS, EXPERTS), (_CHOSEN, 2),
        (re.compile(r"^(n_group|topk_group|first_k_dense_replace|num_expert_groups?)$"), 1),
        (re.compile(r"^(sliding_window|attention_window)$"), 8),
        (re.compile(r"^index_topk$"), 16), (re.compile(r"num_queries$|num_proposals$|num_object_queries$"), 10),
    ):  # fmt: skip
        if pattern.search(name):
            return min(value, most)
    return _width(name, value, way, factor)


def _is_width(name: str) -> bool:
    return bool(_WIDTH.search(name)) and not _NOT_WIDTH.search(name)


def _width(name: str, value: int, way: Way, factor: int) -> int:
    if way.widths == "kept":
        return value
    if way.widths == "scaled":
        is_scaled = _is_width(name) or _INNER.search(name) or _LORA.search(name) or _HEAD_DIM.search(name)
        return max(value // factor, min(value, 8)) if is_scaled else value
    for pattern, most in ((_HEAD_DIM, HEAD_DIM), (_INNER, INNER), (_LORA, HEAD_DIM)):
        if pattern.search(name):
            return min(value, most)
    if name.startswith("linear_") and (match := re.search(r"(key_heads|value_heads|num_heads|head_dim)$", name)):
        return min(value, {"head_dim": HEAD_DIM, "key_heads": HEADS // 2}.get(match[1], HEADS))
    if name in ("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "index_head_dim"):
        return min(value, HEAD_DIM)
    return min(value, WIDTH) if _is_width(name) else value


def _list(name: str, value: list[Any], way: Way, factor: int) -> list[Any]:
    if not value or not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return value
    if re.search(r"depths|num_blocks|blocks_per_stage|layers_per_stage|^layers$|num_layers$", name):
        return [min(each, 2) for each in value]
    if way.widths != "kept" and re.search(r"hidden_sizes|embed_dims?$|conv_dim$|tdnn_dim|channels$|dims$", name):
        part = LIST_FACTOR if way.widths == "set" else factor
        return [max(each // part, 8) if each >= 16 else each for each in value]
    return value


def _depth_of(fields: Mapping[str, Any]) -> int:
    """Return the number of layers of a part, from the most common field for it; 0 if that field is missing."""
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth", "encoder_layers", "layers"):
        if isinstance(value := fields.get(name), int):
            return value
    return 0


def _cut_layers(fields: Mapping[str, Any], found: Fields) -> None:
    """Keep two layers, or one of each kind, and cut everything that is listed by layer to match."""
    depth = _depth_of(fields)
    lists = {
        name: list(value) for name, value in fields.items() if isinstance(value, (list, tuple)) and len(value) == depth
    }
    lists = {name: value for name, value in lists.items() if depth > 1 and not _is_index_list(name, value)}
    kinds = [str([value[place] for value in lists.values()]) for place in range(depth)] if lists else []
    places = [place for place in range(depth) if kinds and kinds.index(kinds[place]) == place][:4]
    chosen = [value for name, value in fields.items() if _is_index_list(name, value) and "out_" in name]
    least = max([2, len(places), *map(len, chosen)])
    places += [place for place in range(depth) if place not in places][: max(0, least - len(places))]
    places = sorted(places)
    for name, value in lists.items():
        found[name] = [value[place] for place in places]
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool) and _LAYERS.search(name) and not _NOT_LAYERS.search(name):
            found[name] = min(value, least)
        elif _is_index_list(name, value) and depth > least:
            found[name] = _indices(name, value, least)
        elif name in ("out_features", "stage_names") and depth > least:
            found.pop(name, None)
    if isinstance(changes := fields.get("per_layer_config"), Mapping) and changes and depth > least:
        found["per_layer_config"] = {1: next(iter(cast("Mapping[Any, Any]", changes).values()))}
    if depth > least and isinstance(fields.get("num_kv_shared_layers"), int):
        found["num_kv_shared_layers"] = 0


def _is_index_list(name: str, value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value or not _INDICES.search(name):
        return False
    return all(isinstance(each, int) and not isinstance(each, bool) for each in cast("list[Any]", value))


def _indices(name: str, value: list[int], depth: int) -> list[int]:
    """Return layer indices for fewer layers: as many as before for a backbone's outputs, else those that remain."""
    if "out_" in name:
        last = depth if max(value) > 0 and name == "out_indices" else depth - 1
        return [each if each < 0 else last - (len(value) - 1 - place) for place, each in enumerate(value)]
    return [each for each in value if -depth <= each < depth] or [depth - 1]


def _fit_states(found: Fields, way: Way) -> None:
    """Give state space layers heads that make up their inner width."""
    prefix = "mamba_" if "mamba_expand" in found else ""
    heads = next((name for name in ("mamba_n_heads", "mamba_num_heads", "num_heads") if name in found), None)
    size = next((name for name in ("mamba_d_head", "mamba_head_dim", "head_dim") if name in found), None)
    if way.widths == "kept" or f"{prefix}expand" not in found or heads is None or size is None:
        return
    inner = found[f"{prefix}expand"] * found.get("hidden_size", WIDTH)
    found[heads], found[size] = HEADS, inner // HEADS
    for name in ("mamba_n_groups", "n_groups"):
        if name in found:
            found[name] = 1


def _fit_heads(fields: Mapping[str, Any], found: Fields, way: Way) -> None:
    """Give attention as many heads as divide its width, and as many key and value heads as divide the heads."""
    if way.widths == "kept":
        return
    widths = [value for name, value in found.items() if isinstance(value, int) and _is_width(name) and value > 1]
    for name, value in fields.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if _FEW_HEADS.search(name):
            found[name] = 1 if value == 1 else 2
        elif _HEADS.search(name) and not name.startswith(("linear_", "mamba_")) and "expand" not in fields:
            found[name] = _divisor(value, widths)
    heads = next((value for name, value in fields.items() if name == "num_attention_heads"), None)
    few = fields.get("num_key_value_heads")
    if isinstance(heads, int) and heads == few:
        found["num_key_value_heads"] = found["num_attention_heads"]


def rotary_sections(head_dim: int, share: float) -> list[int]:
    """Return sections of rotary positions, for time, height and width, that add up to half of a head's rotated part."""
    half = int(head_dim * share) // 2
    part = max(1, half // 3)
    return [half - 2 * part, part, part]


def _divisor(heads: int, widths: list[int]) -> int:
    for number in (HEADS, 3, 2):
        if number <= heads and all(width % (2 * number) == 0 for width in widths):
            return number
    return 1


def _fit_images(fields: Mapping[str, Any], found: Fields) -> None:
    """Make images four patches wide."""
    patch = fields.get("patch_size")
    side = 4 * patch if isinstance(patch, int) and not isinstance(patch, bool) and 4 <= patch <= 32 else 64
    for name in ("image_size", "img_size", "input_size", "pretrain_image_size"):
        value = fields.get(name)
        if isinstance(value, int) and value > side:
            found[name] = side
        elif isinstance(value, (list, tuple)) and all(isinstance(each, int) for each in cast("list[Any]", value)):
            found[name] = [min(each, side) for each in cast("list[int]", value)]
    if isinstance(fields.get("image_embedding_size"), int) and isinstance(patch, int):
        found["image_embedding_size"] = found.get("image_size", side) // patch
