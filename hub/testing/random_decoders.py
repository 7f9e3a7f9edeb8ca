"""Random decoders whose caches are grown, cropped, reordered and sliced between calls, each call compared with eager.

Decoder number N is always the same: its sizes, dtype, cache layout, masks and heads follow from the number, and so do the
calls, with growing and shrinking lengths. The caches passed to a call are those that eager returned from the previous call,
with the same strides: views if the caller sliced them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

EAGER_FACTOR = 4.0
"""Allowed error as a multiple of eager's own."""
ULPS = 32.0
"""Allowed roundings of the largest value: of the widest dtype's sums, and of bfloat16's and float16's results."""
VOCABULARY = 24

Cache = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer."""


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a decoder."""

    layers: int
    heads: int
    shared_by: int
    """Number of query heads that share one head of keys and values."""
    width: int
    """Width of one head."""
    dtype: torch.dtype
    norm: str
    rotary: str
    mask: str
    attention: str
    is_heads_first: bool
    """True if caches are [B, heads, S, width], otherwise [B, S, heads, width]."""
    starts: str
    """Form of an empty cache: "none", "empty" without dims, or "zero" rows."""
    window: int
    """Number of cache entries that the program keeps; 0 keeps all."""
    keeps: str
    """Rows for which the program returns logits: "all", "last", or "n", a number passed by the caller."""
    is_dynamic: bool | None


@dataclass(frozen=True, slots=True)
class Step:
    """A change that a caller makes to the caches, and the call that follows."""

    change: str
    amount: int
    tokens: int
    kept: int


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder and its calls."""

    number: int
    batch: int
    config: Config
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in asdict(self.config).items())
        steps = "; ".join(f"{step.change} {step.amount}, {step.tokens} tokens, {step.kept} kept" for step in self.steps)
        return f"decoder {self.number}: batch {self.batch}, {facts}; {steps}"


CHANGES = ("keep", "keep", "crop", "crop", "front", "reorder", "repeat", "part", "step", "copy", "fresh")


def decoder(number: int) -> Decoder:
    """Return the decoder with a number."""
    draw = random.Random(number)
    config = Config(
        layers=draw.choice((1, 1, 2)),
        heads=draw.choice((1, 2, 3, 4)),
        shared_by=draw.choice((1, 1, 2, 3)),
        width=draw.choice((2, 4, 6, 8, 12, 16)),
        dtype=draw.choice((torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)),
        norm=draw.choice(("rms", "layer", "none")),
        rotary=draw.choice(("halves", "pairs", "none")),
        mask=draw.choice(("none", "bool", "float", "row", "window")),
        attention=draw.choice(("fused", "fused", "written")),
        is_heads_first=draw.random() < 0.7,
        starts=draw.choice(("none", "empty", "zero")),
        window=draw.choice((0, 0, 0, 5, 9)),
        keeps=draw.choice(("all", "last", "n", "n")),
        is_dynamic=draw.choice((None, None, True)),
    )
    tokens = [draw.choice((1, 1, 2, 3, 5, 7, 8, 13, 17)) for _ in range(draw.randint(5, 8))]
    steps = [Step(draw.choice(CHANGES), draw.randint(1, 4), count, draw.randint(0, count)) for count in tokens]
    return Decoder(number, draw.choice((1, 1, 2, 3)), config, tuple(steps))


# --- The model --------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention over a cache, and a gated product."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        query, shared = config.heads * config.shared_by * config.width, config.heads * config.width
        self.query, self.key, self.value = (
            nn.Linear(query, query),
            nn.Linear(query, shared),
            nn.Linear(query, shared, bias=False),
        )
        self.out, self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((query, query), (query, 20), (query, 20), (20, query))
        )
        self.weight = nn.Parameter(torch.ones(query))

    def forward(
        self, x: torch.Tensor, cache: Cache | None, places: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Cache]:
        config = self.config
        normed = self._normed(x)
        query = self._split(self.query(normed), config.heads * config.shared_by)
        key, value = self._split(self.key(normed), config.heads), self._split(self.value(normed), config.heads)
        query, key = self._turned(query, places), self._turned(key, places)
        dim = 2
        if not config.is_heads_first:
            key, value, dim = key.transpose(1, 2), value.transpose(1, 2), 1
        if cache is not None:
            key, value = (torch.cat(pair, dim) for pair in zip(cache, (key, value), strict=True))
        if config.window:
            rows = slice(-config.window, None)
            kept = (key[:, :, rows], value[:, :, rows]) if dim == 2 else (key[:, rows], value[:, rows])
        else:
            kept = (key, value)
        if dim == 1:
            key, value = key.transpose(1, 2), value.transpose(1, 2)
        found = self._attended(query, key, value, mask).transpose(1, 2).flatten(2)
        x = x + self.out(found)
        normed = self._normed(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed)), kept

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.norm == "rms":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return functional.layer_norm(x, x.shape[-1:], self.weight) if self.config.norm == "layer" else x * self.weight

    def _turned(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if self.config.rotary == "none":
            return x
        half = x.shape[-1] // 2
        angles = places[:, None, :, None].to(x.dtype) / torch.arange(1, half + 1, dtype=x.dtype)
        cosine, sine = angles.cos(), angles.sin()
        if self.config.rotary == "halves":
            left, right = x[..., :half], x[..., half:]
            return torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)
        left, right = x[..., ::2], x[..., 1::2]
        return torch.stack((left * cosine - right * sine, right * cosine + left * sine), -1).flatten(-2)

    def _attended(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        config = self.config
        if config.attention == "fused":
            is_causal = mask is None and query.shape[2] > 1 and query.shape[2] == key.shape[2]
            is_shared = config.shared_by > 1
            return functional.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, enable_gqa=is_shared)
        batch, heads, rows, width = key.shape
        if config.shared_by > 1:
            shape = (batch, heads, config.shared_by, rows, width)
            key, value = (each[:, :, None].expand(shape).reshape(batch, -1, rows, width) for each in (key, value))
        scores = query @ key.transpose(-1, -2) / width**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
        return scores.softmax(-1) @ value


class Model(nn.Module):
    """Embedding, layers and logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.heads * config.shared_by * config.width
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, caches: Sequence[Cache | None], kept: int) -> tuple[torch.Tensor, list[Cache]]:
        config = self.config
        x = self.embedding(ids)
        first = caches[0]
        past = 0 if first is None else first[0].shape[2 if config.is_heads_first else 1] if first[0].dim() == 4 else 0
        places = (torch.arange(ids.shape[1]) + past)[None].expand(ids.shape)
        mask = self._mask(ids.shape[1], past, x.dtype)
        found: list[Cache] = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, made = layer(x, cache, places, mask)
            found.append(made)
        if config.keeps == "last":
            x = x[:, -1:]
        elif config.keeps == "n":
            x = x[:, slice(-kept, None)]
        return self.head(x), found

    def _mask(self, tokens: int, past: int, dtype: torch.dtype) -> torch.Tensor | None:
        if self.config.mask == "none":
            return None
        row, column = torch.arange(tokens)[:, None] + past, torch.arange(tokens + past)[None]
        seen = column <= row
        if self.config.mask == "window":
            seen = seen & (column > row - 4)
        if self.config.mask == "row" and tokens == 1:
            return torch.ones(1, 1, 1, tokens + past, dtype=torch.bool)
        if self.config.mask == "float":
            return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]
        return seen[None, None]


def build(config: Config, seed: int = 0) -> Model:
    """Return the model of a configuration, always with the same weights."""
    random_state: Any = torch.random
    with random_state.fork_rng(devices=[]):
        random_state.manual_seed(seed)
        return Model(config).eval().to(config.dtype)


# --- Calls ------------------------------------------------------------------------------------------------------------


def changed(caches: list[Cache], step: Step, dim: int, draw: torch.Generator) -> list[Cache]:
    """Return the caches as callers pass them: sliced, reordered, repeated, or unchanged."""

    def one(value: torch.Tensor) -> torch.Tensor:
        rows, batch = value.shape[dim], value.shape[0]
        match step.change:
            case "crop":  # as in speculative decoding, after tokens are rejected
                return value.narrow(dim, 0, max(rows - step.amount, 1))
            case "front":
                return value.narrow(dim, min(step.amount, rows - 1), rows - min(step.amount, rows - 1))
            case "step":
                return value[(slice(None),) * dim + (slice(None, None, 2),)]
            case "reorder":  # as in beam search
                return value.index_select(0, order % batch)
            case "repeat":
                return value.repeat_interleave(2, 0) if batch < 4 else value
            case "part":
                return value[:1]
            case "copy":
                return value.transpose(1, 2).contiguous().transpose(1, 2)
            case _:
                return value

    order = torch.randint(0, 8, (caches[0][0].shape[0],), generator=draw)
    return [(one(key), one(value)) for key, value in caches]


def twin(value: Any) -> Any:
    """Return an argument in its own memory, with the same layout."""
    if isinstance(value, torch.Tensor):
        memory = value.untyped_storage().clone()
        return torch.empty(0, dtype=value.dtype).set_(memory, value.storage_offset(), value.shape, value.stride())
    return _each(twin, value)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a list or tuple with a function applied to its elements; anything else unchanged."""
    if not isinstance(value, (list, tuple)):
        return value
    kind: Any = type(cast("object", value))
    return kind(map(function, cast("Sequence[Any]", value)))


def check(found: Decoder, compile_: Callable[[nn.Module, bool | None], Callable[..., Any]]) -> None:
    """Raise AssertionError if a compiled decoder's results differ from eager's in one of its calls.

    `compile_` receives the model and Dynamo's `dynamic` setting.
    """
    config = found.config
    model, exact = build(config), build(config).double()
    compiled = compile_(model, config.is_dynamic)
    draw = torch.Generator().manual_seed(found.number)
    dim = 2 if config.is_heads_first else 1
    caches: list[Cache] | None = None
    for place, step in enumerate(found.steps):
        given: Any = (
            _start(config, found.batch) if caches is None or step.change == "fresh" else changed(caches, step, dim, draw)
        )
        batch = given[0][0].shape[0] if given[0] is not None and given[0][0].dim() == 4 else found.batch
        ids = torch.randint(0, VOCABULARY, (batch, step.tokens), generator=draw)
        with torch.no_grad():
            wanted = model(ids, given, step.kept)
            got = compiled(twin(ids), twin(given), step.kept)
            best = exact(ids, _wide(given), step.kept)
        for name, mine, eager, other in _named(got, wanted, best):
            _check_one(f"call {place} of {found}: {name}", mine, eager, other)
        caches = list(wanted[1])


def _start(config: Config, batch: int) -> list[Cache | None]:
    if config.starts == "none":
        return [None] * config.layers
    if config.starts == "empty":
        return [(torch.tensor([], dtype=config.dtype), torch.tensor([], dtype=config.dtype))] * config.layers
    shape = (batch, config.heads, 0, config.width) if config.is_heads_first else (batch, 0, config.heads, config.width)
    return [(torch.zeros(shape, dtype=config.dtype), torch.zeros(shape, dtype=config.dtype))] * config.layers


def _wide(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return given.double()
    return _each(_wide, given)


def _named(*results: Any) -> list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    logits = ("logits", *(result[0] for result in results))
    layers = zip(*(result[1] for result in results), strict=True)
    caches = [
        (f"{name} of layer {place}", *values)
        for place, layer in enumerate(layers)
        for name, values in zip(("keys", "values"), zip(*layer, strict=True), strict=True)
    ]
    return [logits, *caches]


def _check_one(what: str, got: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor) -> None:
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), (
        f"{what}: {got.dtype}{list(got.shape)}, {wanted.dtype}{list(wanted.shape)} expected"
    )
    if torch.equal(got, wanted) or not wanted.numel():
        return
    assert torch.equal(got.isnan(), wanted.isnan()), f"{what}: NaN in other places"
    own = float((wanted.double() - exact).abs().nan_to_num().max())
    free = EAGER_FACTOR * own + ULPS * torch.finfo(wanted.dtype).eps * max(float(exact.abs().nan_to_num().max()), 1.0)
    worst = float((got.double() - exact).abs().nan_to_num().max())
    assert worst <= free, f"{what}: off by {worst:.3g}, {free:.3g} allowed"
