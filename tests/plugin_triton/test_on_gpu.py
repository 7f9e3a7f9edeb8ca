"""Kernels where they belong: on a GPU, against eager there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import hub
from hub.cache.measurements import Measurements
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.backend import create
from plugin_triton.chosen import chosen_by, gpu_of, key_of
from plugin_triton.runtime import TritonExecutable
from plugin_triton.settings import Settings
from plugin_triton.source import file_of
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of
from tests.plugin_triton.cases import CASES, HALF, RAGGED, Case, placed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),  # Inductor's own imports
]

DEVICE = "cuda"
OWN = Settings()
OPTIONS: dict[str, Any] = {"tune": "off"}
ONE = CompileSettings(threads=1)


def assert_right(cluster: Cluster, inputs: Sequence[Any]) -> TritonExecutable:
    """Assert that results are as accurate as plugins' must be; return what computed them."""
    executable: Any = create(OWN).compile(cluster, ONE)
    assert value_problem(executable(*inputs), eager(cluster, inputs), exact(cluster, inputs)) == ""
    return executable


def cluster_of(case: Case, size: int, dtype: torch.dtype | None = None) -> tuple[Cluster, Sequence[Any]]:
    """Return a case on the GPU as one cluster."""
    function, inputs = case
    return whole_cluster(Wrapped(function), placed(inputs(size), dtype, DEVICE))


def assert_no_failure(compiled: Any) -> None:
    """Assert that every cluster ran where its plan says."""
    events = [event for plan in hub.plans(compiled) for event in plan.events]
    assert [event for event in events if event.kind in ("failed", "fallback")] == []


# --- One cluster ------------------------------------------------------------------------------------------------------


def test_probe() -> None:
    """One addition is compiled and runs."""
    assert create(OWN).probe().accepted


@pytest.mark.parametrize("size", RAGGED)
@pytest.mark.parametrize("name", CASES)
def test_every_template_at_ragged_sizes(name: str, size: int) -> None:
    """Masks hold at the edges of blocks."""
    assert_right(*cluster_of(CASES[name], size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Products are made by the tensor cores."""
    assert_right(*cluster_of(HALF[name], 1000, dtype))


@pytest.mark.parametrize("name", PROGRAMS)
def test_clusters_of_real_models(name: str) -> None:
    """What `benchmarks.triton` times is right."""
    inputs = placed(inputs_of(name, 64, 256), device=DEVICE)
    assert_right(*whole_cluster(Wrapped(PROGRAMS[name]), inputs))


# --- Tuning -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "product", "attention"])
def test_block_sizes_are_timed_once_and_found_again(name: str) -> None:
    """By `do_bench`; the next backend writes its kernels with them, and they are right."""
    cluster, given = cluster_of(HALF[name], 1000, torch.bfloat16)
    told: list[str] = []
    summary = create(OWN).tune([cluster], CompileSettings(threads=1, effort="full"), 120.0, told.append)
    assert "timed" in summary
    assert "no time was left" not in summary
    assert told
    assert create(OWN).tune([cluster], CompileSettings(threads=1, effort="full"), 120.0, told.append) == "no kernel was new"
    device = cluster.outputs[0].device
    kept, note = Measurements.open(OWN.cache_folder)
    assert note == ""
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    keys = [key_of(kernel, file.dtypes, gpu_of(device)) for kernel in file.kernels]
    found = kept.find_choices(keys)
    assert set(found) == set(keys)
    assert all(0 < choice.run_s < 1 for choice in found.values())
    wanted = file_of(cluster, lower(cluster), is_interpreted=False, choose=chosen_by(kept, gpu_of(device))).text
    kept.close()
    assert assert_right(cluster, given).text == wanted


# --- Models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", [("triton",), ()], ids=["Triton alone", "every backend"])
def test_a_whole_model(backends: tuple[str, ...]) -> None:
    """BERT on the GPU, alone and in a plan by cost: eager's numbers, and no fallback."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    model = transformers.BertModel(config).eval().to(DEVICE)
    tokens = torch.randint(0, config.vocab_size, (2, 64), device=DEVICE)
    options = {**OPTIONS, **({"backends": backends} if backends else {})}
    compiled: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        found, wanted = compiled(tokens).last_hidden_state, model(tokens).last_hidden_state
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_no_failure(compiled)


class Mixed(nn.Module):
    """A little of everything, an operator each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first(x))
        return torch.tanh(self.second(hidden)).softmax(-1)


FORCED = {"aten.linear": "inductor", "aten.gelu": "triton", "aten.tanh": "eager", "aten.softmax": "triton"}


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_forced_mix(cuda_graphs: bool) -> None:
    """Inductor, Triton and eager hand tensors on to each other, launch by launch and in one CUDA graph."""
    model = Mixed().eval().to(DEVICE)
    options = {**OPTIONS, "backends": ("triton", "inductor"), "force": FORCED, "cuda_graphs": cuda_graphs}
    compiled: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(33, 64, device=DEVICE)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
    (plan,) = hub.plans(compiled)
    backends = [cluster.backend for cluster in plan.clusters]
    assert backends == ["inductor", "triton", "inductor", "eager", "triton"]
    assert_no_failure(compiled)


# --- Training ---------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of BERT with its embedding and a loss; attention as one operator, or as products around a softmax."""

    def __init__(self, *, is_by_hand: bool) -> None:
        super().__init__()
        self.is_by_hand = is_by_hand
        self.embedding, self.classes = nn.Embedding(50, 64), nn.Linear(64, 7)
        self.mixed, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(3)])

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        hidden = self.norms[0](self.embedding(tokens))
        batch, length, size = hidden.shape
        query, key, value = self.mixed(hidden).view(batch, length, 3, 4, size // 4).permute(2, 0, 3, 1, 4)
        if self.is_by_hand:
            attended = torch.softmax(query @ key.transpose(-1, -2) / 4.0, -1) @ value
        else:
            attended = F.scaled_dot_product_attention(query, key, value)
        hidden = self.norms[1](hidden + self.out(attended.transpose(1, 2).reshape(batch, length, size)))
        hidden = self.norms[2](hidden + self.narrow(F.gelu(self.wide(hidden))))
        return F.cross_entropy(self.classes(hidden[:, 0]), places)


@pytest.mark.parametrize("is_by_hand", [False, True], ids=["attention as one operator", "by hand"])
@pytest.mark.parametrize("backends", [("triton",), ("inductor",), ("triton", "inductor")], ids=" and ".join)
def test_gradients_are_eagers(backends: tuple[str, ...], is_by_hand: bool) -> None:
    """Of every parameter; attention as one operator stays eager's in training, with the state of its random numbers."""
    torch.manual_seed(3)
    model = Layer(is_by_hand=is_by_hand).to(DEVICE)
    tokens, places = torch.randint(0, 50, (3, 17), device=DEVICE), torch.randint(0, 7, (3,), device=DEVICE)
    wanted = torch.autograd.grad(model(tokens, places), tuple(model.parameters()))
    compiled: Any = torch.compile(model, backend="hub", options={**OPTIONS, "backends": backends})
    found = torch.autograd.grad(compiled(tokens, places), tuple(model.parameters()))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    plans = hub.plans(compiled)
    assert [plan.mode for plan in plans] == ["forward", "backward"]
    assert all({*backends} & {cluster.backend for cluster in plan.clusters} for plan in plans)
    assert_no_failure(compiled)
