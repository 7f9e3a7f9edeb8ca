"""Whole plans as CUDA graphs, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.dispatch.recorded import WARM_CALLS, CudaRecorder, Recording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),  # Inductor's own imports
]

DEVICE = "cuda"
OPTIONS: dict[str, Any] = {"tune": "off", "cuda_graphs": True}
BACKENDS = [("triton",), ("inductor",), ("eager",), ()]


class Block(nn.Module):
    """Products, a norm and attention, with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = self.mixed(x).view(x.shape[0], x.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = self.norm(x + self.out(attended.transpose(1, 2).reshape(x.shape)))
        return hidden, hidden.mean(1)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """Return everything that is recorded from here on."""
    found: list[Recording] = []
    record = CudaRecorder.record

    def noted(self: CudaRecorder, *arguments: Any) -> Recording:
        found.append(record(self, *arguments))
        return found[-1]

    monkeypatch.setattr(CudaRecorder, "record", noted)
    return found


def compiled_block(backends: tuple[str, ...]) -> tuple[Block, Any]:
    """Return a block on the GPU, in eager and through the hub."""
    model = Block().eval().to(DEVICE)
    options = {**OPTIONS, **({"backends": backends} if backends else {})}
    return model, torch.compile(model, backend="hub", options=options)


def assert_right(found: Any, wanted: Any) -> None:
    """Assert that results are eager's."""
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def new() -> torch.Tensor:
    """Return an input."""
    return torch.randn(3, 17, 64, device=DEVICE)


@pytest.mark.parametrize("backends", BACKENDS, ids=lambda names: " and ".join(names) or "all")
def test_a_plan_is_recorded_once_and_replayed(backends: tuple[str, ...], recordings: list[Recording]) -> None:
    """Each call's numbers are those of its own input, and no later call writes over them."""
    model, compiled = compiled_block(backends)
    with torch.no_grad():
        inputs = [new() for _ in range(WARM_CALLS + 4)]
        found = [compiled(x) for x in inputs]
        for x, results in zip(inputs, found, strict=True):
            assert_right(results, model(x))
    assert len(recordings) == 1
    (plan,) = hub.plans(compiled)
    assert [event for event in plan.events if event.stage == "record" or event.kind in ("failed", "fallback")] == []


@pytest.mark.parametrize("backends", BACKENDS, ids=lambda names: " and ".join(names) or "all")
def test_a_changed_weight_shows_in_the_next_call(backends: tuple[str, ...]) -> None:
    """Whether it is read where it lies, or was a constant."""
    model, compiled = compiled_block(backends)
    with torch.no_grad():
        for _ in range(2):
            for _ in range(WARM_CALLS + 2):
                x = new()
                assert_right(compiled(x), model(x))
            model.out.weight.mul_(-0.5)
        x = new()
        assert_right(compiled(x), model(x))


def test_a_users_own_graph_holds_a_plan(recordings: list[Recording]) -> None:
    """Recording within a recording is not possible, and not tried."""
    model, compiled = compiled_block(("triton",))
    x = new()
    with torch.no_grad():
        for _ in range(WARM_CALLS + 2):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = compiled(x)
        x.copy_(new())
        graph.replay()
        assert_right(results, model(x))
    assert len(recordings) == 1


def test_another_stream(recordings: list[Recording]) -> None:
    """What was recorded on one stream is replayed on the current one, behind what the user has put there."""
    model, compiled = compiled_block(("triton",))
    with torch.no_grad():
        for _ in range(WARM_CALLS + 1):
            compiled(new())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x = new()
            found, wanted = compiled(x), model(x)
        side.synchronize()
    assert_right(found, wanted)
    assert len(recordings) == 1


def test_calls_on_two_streams_do_not_mix() -> None:
    """The recorded run has one place for its inputs and one for its outputs."""
    model, compiled = compiled_block(("eager",))
    with torch.no_grad():
        for _ in range(WARM_CALLS + 1):
            compiled(new())
        streams, inputs = [torch.cuda.Stream() for _ in range(2)], [new() for _ in range(20)]
        torch.cuda.synchronize()
        found: list[Any] = []
        for number, x in enumerate(inputs):
            with torch.cuda.stream(streams[number % 2]):
                found.append(compiled(x))
        torch.cuda.synchronize()
        for x, results in zip(inputs, found, strict=True):
            assert_right(results, model(x))
