"""What operators do to memory without declaring it happens as in eager, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.capture.hidden import write_through_lossy_view, written_hidden_view
from hub.discovery.registry import registry

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

every_backend = pytest.mark.parametrize("backend", registry().available())


def compiled(function: Any, backend: str) -> Any:
    """Compile a function or module for one backend, without measuring."""
    return torch.compile(function, backend="hub", options={"backends": (backend,), "tune": "off"})


def _writing_one(x: torch.Tensor, y: torch.Tensor) -> Any:
    left, right = torch.broadcast_tensors(x, y)
    left[0] = 2
    return right + 1


def _writing_the_source(x: torch.Tensor, y: torch.Tensor) -> Any:
    same = y.type_as(x)
    y.mul_(3)
    return same + x


def _writing_a_grid(x: torch.Tensor, y: torch.Tensor) -> Any:
    grid, _ = torch.meshgrid(x[0], y[0, :1], indexing="ij")
    grid.add_(1)
    return grid * 2


@pytest.mark.parametrize("function", [_writing_one, _writing_the_source, _writing_a_grid])
@every_backend
def test_writes_reach_what_is_viewed(backend: str, function: Callable[..., Any]) -> None:
    """A write to what an operator gives as a view, or to what it views, is seen through the other."""
    call = compiled(function, backend)
    mine, eager = [torch.arange(12.0).reshape(3, 4) for _ in range(2)], [torch.arange(12.0).reshape(3, 4) for _ in range(2)]
    for _ in range(2):
        torch.testing.assert_close(call(*mine), function(*eager))
        torch.testing.assert_close(mine, eager)


def test_writes_elsewhere_are_no_obstacle() -> None:
    """A cast that copies, and one whose memory is never written, leave the program to pre-dispatch capture."""

    def cast(x: torch.Tensor, y: torch.Tensor) -> Any:
        y.mul_(3)
        return (x * 2).type_as(x), y.type_as(x)

    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        found.append(written_hidden_view(module))
        return module.forward

    torch.compile(cast, backend=backend)(torch.ones(3), torch.ones(3, dtype=torch.float64))
    assert found == [None]


RETURNING: dict[str, Callable[[torch.Tensor], Any]] = {
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x[:1], x),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2),
    "type_as": lambda x: (x.type_as(x), x.exp()),
    "einsum": lambda x: (torch.einsum("ij->ji", x), x.exp()),
}


@pytest.mark.parametrize("name", RETURNING)
@every_backend
def test_undeclared_views_share_memory(backend: str, name: str) -> None:
    """A caller that writes to the argument sees it in the results, as in eager, and strides are eager's."""
    call = compiled(RETURNING[name], backend)
    mine, eager = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    got, wanted = call(mine), RETURNING[name](eager)
    mine.add_(100)
    eager.add_(100)
    for left, right in zip(got, wanted, strict=True):
        assert left.stride() == right.stride()
        torch.testing.assert_close(left, right)


@every_backend
def test_checks_of_values_are_made(backend: str) -> None:
    """An operator that checks its arguments' values gives its result, and its error where they are wrong."""
    call = compiled(lambda a, b: torch.linalg.solve(a, b).exp(), backend)
    a, b = torch.eye(3) * 2, torch.ones(3)
    torch.testing.assert_close(call(a, b), torch.linalg.solve(a, b).exp())
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        call(torch.zeros(3, 3), b)


@every_backend
def test_instance_norm_moves_its_statistics_once_a_call(backend: str) -> None:
    """Instance norm in train mode moves its buffers as in eager, from the first call on."""
    model, twin = (
        nn.Sequential(nn.ReLU(), nn.InstanceNorm2d(3, track_running_stats=True), nn.ReLU()).train() for _ in "ab"
    )
    call = compiled(model, backend)
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(x), twin(x))
    for mine, eager in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.filterwarnings("ignore:capture. PyTorch.s capture puts:hub.HubWarning")
@pytest.mark.parametrize("transform", [torch.compile, hub.compile])
def test_a_function_that_capture_replaces_wrongly_is_eagers(transform: Callable[..., Any]) -> None:
    """In the place of this loss PyTorch's own capture puts a program that counts the labels behind the first -1."""
    backend = {"backend": "hub"} if transform is torch.compile else {}
    call = transform(nn.MultiLabelMarginLoss(), options={"tune": "off"}, **backend)
    labels = torch.tensor([[3, 0, -1, 1], [0, 2, 1, -1]])
    x = torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        loss, expected = call(x, labels), nn.functional.multilabel_margin_loss(x, labels)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))


def _filling(view: torch.Tensor) -> None:
    view.zero_()


def _assigning_a_row(view: torch.Tensor) -> None:
    view[0] = 0.5


def _masking(view: torch.Tensor) -> None:
    view.masked_fill_(view > 4, 0.25)


def _through_another_view(view: torch.Tensor) -> None:
    view.select(0, 1).sigmoid_()


def _in_windows(view: torch.Tensor) -> None:
    view[0].unfold(1, 3, 3).mul_(2)  # the last of four columns is in none


def _adding(view: torch.Tensor) -> None:
    view.add_(1)


@pytest.mark.filterwarnings("ignore:capture. .*through a view:hub.HubWarning", "ignore:Use of masked_fill_ on expanded")
@pytest.mark.parametrize("write", [_filling, _assigning_a_row, _masking, _through_another_view, _in_windows, _adding])
@pytest.mark.parametrize("records", [False, True])
def test_writes_through_lossy_views_are_eagers(write: Callable[[torch.Tensor], None], records: bool) -> None:
    """What an expanded view repeats, and what no window holds, is as in eager, which may raise."""

    def function(x: torch.Tensor) -> Any:
        base = x * 2
        view = base.expand(1 if write is _in_windows else 2, *base.shape)
        write(view)
        return base, view

    def outcome(call: Callable[..., Any]) -> Any:
        with torch.set_grad_enabled(records):
            x = torch.arange(12.0).reshape(3, 4).requires_grad_(records)
            try:
                return call(x)
            except RuntimeError as error:
                return str(error)

    call = compiled(function, "disc")
    for _ in range(2):
        torch.testing.assert_close(outcome(call), outcome(function)) if write is not _adding else None
        assert isinstance(outcome(call), str) == isinstance(outcome(function), str)


def test_a_write_beside_repeated_memory_is_no_obstacle() -> None:
    """What is computed from an expanded view, and the base of one, may be written to."""

    def function(x: torch.Tensor) -> Any:
        view = x.expand(2, *x.shape)
        computed = view + 1
        computed[0] = 2
        x.add_(1)
        return computed, view

    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        found.append(write_through_lossy_view(module))
        return module.forward

    torch.compile(function, backend=backend)(torch.ones(3))
    assert found == [None]


class Counting(nn.Module):
    """Writes to its buffer in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return x * 2


@pytest.mark.filterwarnings("ignore:capture. add_ writes to memory of two inputs")
@pytest.mark.parametrize("way", ["torch.compile", "hub.compile"])
@pytest.mark.parametrize(
    "order", ["input part input", "input part shorter input", "input shorter part shorter", "part input"]
)
def test_an_input_that_is_a_part_of_a_written_buffer(way: str, order: str) -> None:
    """Of any size: a later call whose input is no such part has its own answer."""
    model = Counting()
    options = {"start": "wait", "tune": "off", "backends": ["disc"]}
    compile_it = hub.compile if way == "hub.compile" else partial(torch.compile, backend="hub")
    run: Any = compile_it(model, options=options)
    made: dict[str, Callable[[], torch.Tensor]] = {
        "input": lambda: torch.ones(8), "shorter": lambda: torch.ones(4), "part": lambda: model.steps[:3]
    }  # fmt: skip
    with torch.no_grad():
        for name in order.split() * 2:
            for _ in range(3):
                x = made[name]()
                found = run(x)
                assert torch.equal(found, x * 2), name


def test_parts_of_one_memory_that_do_not_overlap_are_captured() -> None:
    """Caches of several layers are often views of one tensor."""

    def function(keys: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        keys[: x.shape[0]] = x
        return (keys.sum() + values.sum()) * x

    run: Any = torch.compile(
        function, backend="hub", options={"start": "wait", "tune": "off", "backends": ["disc"]}, dynamic=True
    )
    memory = torch.zeros(2, 16)
    for size in (3, 5):
        x, wanted = torch.randn(size), memory.clone()
        torch.testing.assert_close(run(*memory, x), function(*wanted, x))
        assert torch.equal(memory, wanted)
    assert "disc" in hub.plans(run)[-1].backends
