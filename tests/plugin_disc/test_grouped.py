"""Attention where several heads of the queries share one of the keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import hub
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

hf: Any = transformers
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
WRONG = ("failed", "fallback")
"""Kinds of events that tell of a backend that could not do what it took."""


def shared(rows: int, heads: int) -> tuple[torch.Tensor, ...]:
    """Return queries of 4 heads with some heads of keys and values, batch and rows symbolic."""
    found = (torch.randn(3, 4, rows, 8), torch.randn(3, heads, rows, 8), torch.randn(3, heads, rows, 8))
    for tensor in found:
        torch._dynamo.mark_dynamic(tensor, 0)
        torch._dynamo.mark_dynamic(tensor, 2)
    return found


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernel_of_cpus_groups_heads_by_their_numbers(heads: int, *, is_causal: bool) -> None:
    """Nothing but the sizes tells of groups there; at sizes other than those compiled for, too."""
    program = Wrapped(lambda q, k, v: KERNEL(q, k, v, 0.0, is_causal)[0])
    cluster, values = whole_cluster(program, shared(6, heads), dynamic=None)
    executable = create().compile(cluster, CompileSettings(threads=1))
    for given in (values, shared(11, heads)):
        (result,) = executable(*given)
        each = [torch.repeat_interleave(part, 4 // heads, 1) for part in given[1:]]
        wanted = F.scaled_dot_product_attention(given[0], *each, is_causal=is_causal)
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (((2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 6, 8)), "5 keys with 6 values"),
        (((2, 4, 3, 8), (2, 4, 5, 8), (2, 2, 5, 8)), "4 heads of keys with 2 of values"),
        (((2, 4, 3, 8), (2, 3, 5, 8), (2, 3, 5, 8)), "4 heads of queries over 3"),
        (((2, 2, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8)), "2 heads of queries over 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[tuple[int, ...], ...], reason: str) -> None:
    """PyTorch's kernel does not look at them, and reads beyond its inputs."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("q", "k", "v")]
    for node, size in zip(nodes, sizes, strict=True):
        node.meta["val"] = torch.empty(size, device="meta")
    attention = graph.call_function(KERNEL, tuple(nodes))
    attention.meta["val"] = (torch.empty(sizes[0], device="meta"), torch.empty(sizes[0][:3], device="meta"))
    assert reason in create().supports(attention).reason


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_a_hybrid_model_of_which_attention_shares_heads() -> None:
    """Bamba's first pass, which is captured after dispatch because of its states, is taken whole and right."""
    torch.manual_seed(0)
    config = hf.BambaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
        initializer_range=0.2,
    )
    model = hf.BambaForCausalLM(config).eval()
    ids = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(3))
    compiled: Any = torch.compile(model, backend="hub", options={"backends": ("disc",), "tune": "off", "start": "wait"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    plans = hub.plans(compiled)
    assert any(cluster.backend == "disc" for plan in plans for cluster in plan.clusters)
    assert [event for plan in plans for event in plan.events if event.kind in WRONG] == []


class Attending(nn.Module):
    """Attention of 4 heads over keys and values of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.others, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.queries(x).unflatten(2, (4, 8)).transpose(1, 2)
        key, value = self.others(x).unflatten(2, (4, 8)).transpose(1, 2).chunk(2, 1)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(found.transpose(1, 2).flatten(2))


def test_gradients_of_shared_heads_are_added_up() -> None:
    """Forward and backward, which see the kernel instead of the composite operator, are taken and right."""
    torch.manual_seed(0)
    model, x = Attending(), torch.randn(2, 7, 32)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled: Any = torch.compile(model, backend="hub", options={"backends": ("disc",), "tune": "off", "start": "wait"})
    found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    plans = hub.plans(compiled)
    assert any(cluster.backend == "disc" for plan in plans for cluster in plan.clusters)
    assert [event for plan in plans for event in plan.events if event.kind in WRONG] == []
