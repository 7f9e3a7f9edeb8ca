"""Values that a first example rarely has: whatever the backend does with them, the answer is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hub
from hub.discovery.registry import registry

pytestmark = pytest.mark.filterwarnings("ignore:.*::torch", "ignore:`torch.jit.:DeprecationWarning")

every_backend = pytest.mark.parametrize("backend", registry().available())
INF = float("inf")


def served(function: Callable[..., Any], backend: str, *example: torch.Tensor) -> Any:
    """Return the function compiled for the backend, after a call with an example."""
    given = {"backends": [backend], "tune": "off", "start": "wait"}
    run = torch.compile(function, backend="hub", options=given)
    with torch.no_grad():
        torch.testing.assert_close(run(*example), function(*example), rtol=1e-5, atol=1e-5)
    return run


@every_backend
@pytest.mark.filterwarnings("ignore:.*which runs in eager for such calls")
@pytest.mark.parametrize("name", ["amax", "amin", "max_pool1d", "distance to the largest"])
def test_rows_of_infinities(backend: str, name: str) -> None:
    """Pruned beams, masked scores: reductions begin with infinity, and not with the largest finite number."""
    function: Callable[[torch.Tensor], torch.Tensor] = {
        "amax": lambda x: x.amax(-1) / 2,
        "amin": lambda x: x.amin(-1) / 2,
        "max_pool1d": lambda x: F.max_pool1d(x, 4) / 2,
        "distance to the largest": lambda x: (x - x.amax(-1, keepdim=True)).exp(),
    }[name]
    run = served(function, backend, torch.randn(8, 64))
    with torch.no_grad():
        for number in (-INF, INF):
            x = torch.randn(8, 64)
            x[0], x[1, 8:] = number, number
            torch.testing.assert_close(run(x), function(x), equal_nan=True)


@every_backend
def test_added_rows_lose_no_update(backend: str) -> None:
    """Threads that add to one row must wait for each other; in eager, the order of the sums is open."""
    torch.manual_seed(0)
    rows, values = torch.randint(50, (8192,)), torch.randint(-9, 9, (8192, 512)).float()
    example = torch.randint(50, (64,)), torch.ones(64, 512)

    def add(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(50, 512).index_put((rows,), values, accumulate=True)

    run = served(add, backend, *example)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(run(rows, values), add(rows, values))


@pytest.mark.parametrize("backend", ["onnxruntime", "disc", "inductor"])
def test_gradients_of_an_embedding_scaled_by_frequency(backend: str) -> None:
    """Rows that repeat, which a first batch from a large table rarely has."""
    torch.manual_seed(0)
    model, twin = (nn.Embedding(500, 8, scale_grad_by_freq=True) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    run = torch.compile(model, backend="hub", options={"backends": [backend], "tune": "off", "start": "wait"})
    for ids in (torch.tensor([1, 2, 3]), torch.tensor([7, 7, 9])):
        for network, call in ((model, run), (twin, twin)):
            network.zero_grad()
            (call(ids) ** 2).sum().backward()
        torch.testing.assert_close(model.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "disc", "inductor"])
def test_an_index_of_several_dims_out_of_range_is_an_error(backend: str) -> None:
    """As in eager, and not what lies elsewhere in memory. The other compilers' programs take the last element."""

    def pick(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(x.shape[0]), n] * 2

    x = torch.randn(4, 16)
    run = served(pick, backend, x, torch.tensor([3, 5, 15, 0]))
    with torch.no_grad(), pytest.raises(IndexError):
        run(x, torch.tensor([3, 5, 15, 1_000_000]))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "disc", "inductor", "xla"])
def test_a_weight_norm_over_everything(backend: str) -> None:
    """Dim -1 stands for none."""
    v, g = torch.randn(3, 4, 5), torch.randn(1)
    function = lambda v, g: torch._weight_norm(v, g, -1) + 1  # noqa: E731
    served(function, backend, v, g)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "disc", "inductor", "xla"])
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_all_dims_reversed(backend: str) -> None:
    """`x.T` of three dims, which PyTorch still allows."""
    served(lambda x: x.T.exp(), backend, torch.randn(2, 3, 4))


def test_minus_zero_after_zero() -> None:
    """A number that is an argument keeps its sign."""
    run = torch.compile(
        lambda x, s: x / s, backend="hub", dynamic=True, options={"backends": ["onnxruntime"], "tune": "off"}
    )
    x = torch.ones(4)
    with torch.no_grad():
        for number in (1.5, 0.0, -0.0, 0.0):
            assert torch.equal(run(x, number), x / number)
    assert hub.plans(run)


@every_backend
@pytest.mark.parametrize("dim", [0, -1])
def test_places_of_extremes(backend: str, dim: int) -> None:
    """The first of equal elements, and NaN before everything else; a row of infinities has a place, too."""

    def places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        largest, where = x.max(dim)
        return largest * 2, where + 1, x.argmin(dim) + 1, x.argmax(dim, keepdim=True) + 1

    run = served(places, backend, torch.randn(6, 8))
    with torch.no_grad():
        for number in (0.0, INF, -INF, float("nan")):
            x = torch.randn(6, 8)
            x[0], x[1, 3:], x[:, 2] = number, number, number
            torch.testing.assert_close(run(x), places(x), equal_nan=True)
        ids = torch.randint(0, 4, (6, 8))
    whole = served(lambda x: x.argmax() + 1, backend, torch.randn(6, 8))
    with torch.no_grad():
        x = torch.zeros(6, 8)
        x[2, 3] = x[4, 4] = 1.0
        assert int(whole(x)) == 20
    integers = served(lambda x: x.argmax(dim) + 1, backend, ids)
    with torch.no_grad():
        assert torch.equal(integers(ids * 0), ids.mul(0).argmax(dim) + 1)
