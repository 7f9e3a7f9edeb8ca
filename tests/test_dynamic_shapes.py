"""One compilation serves many sizes, and the results are those of eager for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

DYNAMIC = [name for name in registry().available() if registry().entries[name].info.dynamic_shapes]
SIZES = ((2, 5), (3, 7), (4, 9), (5, 6), (7, 11), (9, 13), (6, 17), (3, 19))
"""Batch and tokens, both different from call to call."""


class Encoder(nn.Module):
    """Embedding, one layer of attention by hand, and a feed-forward part; sizes appear in views and in a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, tokens = ids.shape
        x = self.embed(ids)
        q, k, v = (part.view(batch, tokens, 4, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm(x + self.out(attended.transpose(1, 2).reshape(batch, tokens, 16)))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Pooler(nn.Module):
    """A convolution, pooling to a fixed size, and a head: images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(self.conv(image).relu(), 1).flatten(1))


def compiled(model: nn.Module, **options: Any) -> Any:
    """Compile a model without measuring."""
    return torch.compile(model, backend="hub", options={"tune": "off", **options})


def ids(batch: int, tokens: int) -> torch.Tensor:
    """Return token ids."""
    return torch.randint(0, 50, (batch, tokens))


TAKES_LONGEST = ("inductor", "tvm", "xla")


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[pytest.mark.slow] * (name in TAKES_LONGEST)) for name in DYNAMIC]
)
def test_batch_and_tokens_vary(backend: str) -> None:
    """Over 8 sizes of batch and sequence at most 2 compilations happen, and each result is eager's."""
    model = Encoder().eval()
    call = compiled(model, backends=(backend,))
    with torch.no_grad():
        for size in SIZES:
            x = ids(*size)
            torch.testing.assert_close(call(x), model(x), rtol=2e-5, atol=2e-5)
    assert 1 <= len(hub.plans(call)) <= 2


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[pytest.mark.slow] * (name == "inductor")) for name in DYNAMIC]
)
def test_image_sizes_vary(backend: str) -> None:
    """Images of 8 sizes are served by at most 2 compilations, and each result is eager's."""
    model = Pooler().eval()
    call = compiled(model, backends=(backend,))
    with torch.no_grad():
        for batch, side in SIZES:
            x = torch.randn(batch, 3, side + 3, side + 5)
            torch.testing.assert_close(call(x), model(x), rtol=2e-5, atol=2e-5)
    assert 1 <= len(hub.plans(call)) <= 2


def test_dynamic_from_the_start() -> None:
    """With dynamic=True one compilation serves all sizes of at least 2."""
    model = Encoder().eval()
    call = torch.compile(model, backend="hub", dynamic=True, options={"tune": "off", "backends": DYNAMIC[-1:]})
    with torch.no_grad():
        for size in SIZES:
            x = ids(*size)
            torch.testing.assert_close(call(x), model(x), rtol=2e-5, atol=2e-5)
    assert len(hub.plans(call)) == 1


def test_sizes_of_one_are_right() -> None:
    """A batch of one and a single token, which PyTorch compiles for themselves, give eager's results."""
    model = Encoder().eval()
    call = compiled(model, backends=DYNAMIC[-1:])
    with torch.no_grad():
        for size in ((2, 5), (1, 5), (3, 1), (1, 1), (2, 6)):
            x = ids(*size)
            torch.testing.assert_close(call(x), model(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pair", [DYNAMIC[:2], DYNAMIC[-2:]], ids="-".join)
def test_mixed_plans_take_all_sizes(pair: list[str]) -> None:
    """A plan of two backends serves sizes that it was not planned for."""
    model = Encoder().eval()
    force = {"aten.linear": pair[0], "aten.gelu": pair[1], "aten.layer_norm": pair[1]}
    call = torch.compile(model, backend="hub", dynamic=True, options={"tune": "off", "force": force})
    with torch.no_grad():
        for size in SIZES:
            x = ids(*size)
            torch.testing.assert_close(call(x), model(x), rtol=2e-5, atol=2e-5)
    assert set(pair) <= set(hub.plans(call)[0].backends)


def test_sizes_come_back_as_numbers() -> None:
    """A size that the model returns is a plain int, right for each call."""

    def count(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.relu(), x.shape[0] * x.shape[1]

    call = torch.compile(count, backend="hub", dynamic=True, options={"tune": "off"})
    for size in SIZES:
        _, number = call(torch.randn(size))
        assert number == size[0] * size[1]


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_sizes_that_depend_on_data_are_planned(tune: str) -> None:
    """Behind an operator whose result's size depends on data, backends still get clusters, and results are eager's.

    The selected rows go through many elementwise steps, which take eager a pass over memory each: a backend that fuses
    them is cheaper on every machine, so that prices alone choose it.
    """
    first, second = nn.Linear(32, 512), nn.Linear(512, 32)

    def select(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(first(x))
        chosen = hidden[torch.nonzero(mask).squeeze(-1)]
        for _ in range(12):
            chosen = (chosen * 0.5 + 1) * torch.sigmoid(chosen) - 0.25
        return second(torch.tanh(chosen) * 2), torch.softmax(hidden @ hidden.T, -1)

    options = {"tune": tune, "budget_s": 4.0, "backends": DYNAMIC[:2]}
    call = torch.compile(select, backend="hub", options=options)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(3):
            x, mask = torch.randn(600, 32), torch.rand(600) > 0.5
            torch.testing.assert_close(call(x, mask), select(x, mask))
    (plan,) = hub.plans(call)
    assert {event.kind for event in plan.events} <= {"note"}
    if tune == "off":
        assert set(plan.backends) & set(DYNAMIC)


@pytest.mark.parametrize("backend", DYNAMIC[:2])
def test_strides_that_depend_on_data_are_eagers(backend: str) -> None:
    """The strides of a result may be a size that was unknown at compile time."""

    def turned(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        chosen = x[torch.nonzero(mask).squeeze(-1)]
        return torch.relu(torch.tanh(chosen).t().contiguous() * 2)

    options = {"tune": "off", "backends": [backend]}
    call = torch.compile(turned, backend="hub", options=options)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(3):
            x, mask = torch.randn(50, 32), torch.rand(50) > 0.5
            torch.testing.assert_close(call(x, mask), turned(x, mask), check_stride=True)
    (plan,) = hub.plans(call)
    assert {event.kind for event in plan.events} <= {"note"}
    assert backend in plan.backends


@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: nn.functional.leaky_relu(x, number),
        lambda x, number: nn.functional.layer_norm(x, (3,), eps=number),
        lambda x, number: torch.exp(torch.tensor(number)) * x,
    ],
    ids=["leaky_relu", "layer_norm", "tensor"],
)
def test_a_number_that_cannot_vary_is_captured_as_it_is(function: Callable[..., torch.Tensor]) -> None:
    """If PyTorch finds that a float cannot stay symbolic, it captures again; that is no failure to capture."""
    x = torch.randn(3, requires_grad=True)
    compiled = torch.compile(function, backend="hub", dynamic=True, options={"tune": "off", "strict": True})
    for number in (2.5, 3.5):
        torch.testing.assert_close(compiled(x, number), function(x, number))
    assert all(cluster.nodes for plan in hub.plans(compiled) for cluster in plan.clusters)
