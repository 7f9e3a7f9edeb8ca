"""Attention in one kernel, if two products stand around a softmax, and not if another node reads what lies between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

from hub.partition.extract import extract
from hub.partition.group import group_alone
from hub.plugin.backend import CompileSettings
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import capture, whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from plugin_triton.source import file_of
from plugin_triton.support import INTERPRETED
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
BACKEND = create(Settings(interpret=True))


def heads(rows: int = 9, width: int = 8, count: int = 2) -> torch.Tensor:
    """Return normally distributed numbers [1, heads, rows, width]."""
    return torch.randn(1, count, rows, width)


def kernels_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Sequence[str]:
    """Return the first lines of the kernels of a function whose results are eager's."""
    cluster, given = whole_cluster(Wrapped(function), inputs)
    executable = BACKEND.compile(cluster, ONE)
    assert value_problem(executable(*given), eager(cluster, given), exact(cluster, given)) == ""
    return [line for line in executable.text.splitlines() if line.startswith("def k")]


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention as many models write it."""
    return F.softmax(query @ key.transpose(-1, -2) * 0.3 + mask, -1) @ value


def test_a_layer_with_its_projections_takes_few_kernels() -> None:
    """What follows element by element is computed on the way out, into the order of memory that the next product reads."""

    def layer(x: torch.Tensor, mask: torch.Tensor, inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
        query, key, value = ((x @ inner[place]).view(2, 9, 4, 8).transpose(1, 2) for place in range(3))
        return x + by_hand(query, key, value, mask).transpose(1, 2).reshape(2, 9, 32) @ outer

    inputs = (torch.randn(2, 9, 32), torch.randn(2, 1, 1, 9), torch.randn(3, 32, 32), torch.randn(32, 32))
    assert len(kernels_of(layer, *inputs)) == 5


def test_layers_after_each_other() -> None:
    """Each has its kernel."""

    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return x

    assert len(kernels_of(layers, heads())) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scores_that_eager_rounds_are_rounded(dtype: torch.dtype) -> None:
    """By hand in half precision, each step is."""
    inputs = (heads(), heads(), heads(), torch.randn(9, 9))
    assert len(kernels_of(by_hand, *(each.to(dtype) for each in inputs))) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_that_are_turned_stay_halves(dtype: torch.dtype) -> None:
    """Rotary embeddings put queries and keys together from two parts: the tensor cores get both."""

    def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(turned(q, angle), turned(k, angle), v)

    inputs = (heads(), heads(), heads(), torch.randn(9, 4))
    cluster, given = whole_cluster(Wrapped(attention), tuple(each.to(dtype) for each in inputs))
    executable = BACKEND.compile(cluster, ONE)
    assert value_problem(executable(*given), eager(cluster, given), exact(cluster, given)) == ""
    assert "input_precision" not in executable.text


def test_symbolic_sizes() -> None:
    """Rows and keys are parameters; the width is not."""
    weight = torch.nn.Parameter(torch.randn(8, 3))

    def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(F.linear(x, weight), F.linear(y, weight), F.linear(y, weight))

    cluster, inputs = whole_cluster(Wrapped(attention), (torch.randn(9, 3), torch.randn(7, 3)), dynamic=True)
    executable = BACKEND.compile(cluster, ONE)
    assert "BD: tl.constexpr" in executable.text
    for sizes in ((9, 7), (300, 1), (2, 517)):
        values = with_sizes(cluster, inputs, dict(zip(symbols_of(cluster), sizes, strict=True)))
        assert value_problem(executable(*values), eager(cluster, values), exact(cluster, values)) == ""


def test_a_row_that_sees_nothing() -> None:
    """It is 0 where PyTorch's attention is called, and NaN where the softmax stands alone, as in eager."""
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[3] = False
    attention = (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), heads(), heads(), heads(), mask)
    assert len(kernels_of(*attention)) == 1
    hidden = torch.zeros(9, 9).masked_fill(~mask, float("-inf"))
    assert len(kernels_of(by_hand, heads(), heads(), heads(), hidden)) == 1


def test_nan_and_infinity_come_through() -> None:
    """A row with them is eager's; others are untouched."""
    query = heads()
    query[0, 0, 2, 3], query[0, 1, 4, 0] = float("nan"), float("inf")
    assert len(kernels_of(by_hand, query, heads(), heads(), torch.randn(9, 9))) == 1


def test_scores_with_two_products() -> None:
    """One is the attention's, the other a bias in memory."""

    def positions(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) + query @ place.transpose(-1, -2)
        return torch.softmax(scores.tanh() * 30.0, -1) @ value

    assert len(kernels_of(positions, heads(), heads(), heads(), heads())) == 2


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500}
MODELS = {
    "BERT": lambda: transformers.BertModel(transformers.BertConfig(**SMALL)),
    "Llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**SMALL, num_key_value_heads=2)),
    "T5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(num_layers=2, d_model=64, num_heads=4, d_kv=16, d_ff=128, vocab_size=500)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_one_attention_a_layer(name: str) -> None:
    """Padding masks, grouped queries, rotary embeddings and a bias of positions are included; nothing runs in eager."""
    captured = capture(MODELS[name]().eval(), (torch.randint(0, 500, (2, 32)),))
    (group,), _ = group_alone(captured.graph, "triton", INTERPRETED.supports)
    cluster = extract(captured.graph, group.nodes, "c0", captured.weights)
    kernels = file_of(cluster, lower(cluster), is_interpreted=False).kernels
    assert sum("top = tl.full" in kernel.text for kernel in kernels) == 2


def test_few_queries_and_many_keys_are_cut_into_parts() -> None:
    """One walk for each head would leave most of a GPU idle."""
    attention = (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), heads(1), heads(4096), heads(4096))
    kernels = kernels_of(*attention)
    assert len(kernels) > 2
    assert not any("BD: tl.constexpr" in line for line in kernels)


def test_shares_that_become_integers_are_no_attention() -> None:
    """Most are cut off to 0, which no correction on the way could tell."""
    inputs = (heads(), heads(), heads())
    kernels = kernels_of(lambda q, k, v: torch.softmax(30.0 * q @ k.transpose(-1, -2), -1).long().float() @ v, *inputs)
    assert len(kernels) > 1


@pytest.mark.parametrize("what", ["shares", "scores", "wide"])
def test_what_is_no_attention_for_one_kernel(what: str) -> None:
    """Where shares or scores are wanted, too, or rows are wider than a program holds, products stand alone."""

    def both(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = query @ key.transpose(-1, -2)
        shares = torch.softmax(scores, -1)
        return (shares @ value, *((shares,) if what == "shares" else (scores,) if what == "scores" else ()))

    assert len(kernels_of(both, *(heads(width=300 if what == "wide" else 8) for _ in range(3)))) == 3
