"""Memory is shared where eager shares it: views of inputs, returned views, written inputs and buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hub.discovery.registry import registry

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

Function = Callable[..., Any]

every_backend = pytest.mark.parametrize("backend", registry().available())


def compiled(function: Any, backend: str, *, dynamic: bool | None = None) -> Any:
    """Compile a function or module for one backend, without measuring."""
    return torch.compile(function, backend="hub", options={"backends": (backend,), "tune": "off"}, dynamic=dynamic)


def _view(x: torch.Tensor) -> Any:
    return x.t(), x.exp()


def _slice(x: torch.Tensor) -> Any:
    return x[1:, 2:]


def _itself(x: torch.Tensor) -> Any:
    return x, x + 1


def _view_written_through(x: torch.Tensor) -> Any:
    y = x.unsqueeze(0)
    y.relu_()
    return y, x.exp()


def _transposed_and_written(x: torch.Tensor) -> Any:
    y = x.t()
    y.add_(1)
    return y, y[1:]


def _two_views(x: torch.Tensor) -> Any:
    y = x * 2
    return y.view(-1), y[0], y.sigmoid()


def _write(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x.exp()


def _write_slice(x: torch.Tensor) -> Any:
    x[0] = x[1].relu()
    return x.sum()


def _write_and_return(x: torch.Tensor) -> Any:
    return x.add_(1)


def _write_view(x: torch.Tensor) -> Any:
    x.t()[0].fill_(7)
    return x * 3


RETURNING: dict[str, Function] = {
    "view": _view,
    "slice": _slice,
    "itself": _itself,
    "two views": _two_views,
    "view written through": _view_written_through,
    "transposed and written": _transposed_and_written,
}
WRITING: dict[str, Function] = {
    "in place": _write,
    "a slice": _write_slice,
    "and returned": _write_and_return,
    "through a view": _write_view,
}


def leaves(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, in order."""
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", RETURNING)
@every_backend
def test_returned_views_share_memory_as_in_eager(backend: str, name: str) -> None:
    """A caller that writes to a returned tensor changes exactly what it changes in eager."""
    call = compiled(RETURNING[name], backend)
    results: list[list[torch.Tensor]] = []
    for function in (RETURNING[name], call, call):
        x = torch.arange(12.0).reshape(3, 4)
        outputs = leaves(function(x))
        outputs[0].fill_(-5)
        results.append([x, *outputs])
    for other in results[1:]:
        for mine, eager in zip(other, results[0], strict=True):
            torch.testing.assert_close(mine, eager)


def _rows(x: torch.Tensor) -> Any:
    return *x.unbind(), x.exp()


def _halves(x: torch.Tensor) -> Any:
    y = x * 2
    return *y.split(2, dim=1), y.exp().sum()


@pytest.mark.parametrize("function", [_rows, _halves])
@every_backend
def test_views_made_together_share_memory_in_training(backend: str, function: Function) -> None:
    """Views of which one operator makes several share memory when gradients are required too, and gradients are eager's."""
    shared: list[list[bool]] = []
    gradients: list[torch.Tensor] = []
    call = compiled(function, backend)
    for run in (function, call, call):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        views = leaves(run(x))[:-1]
        memory = [view.untyped_storage().data_ptr() for view in (x, *views)]
        shared.append([address in memory[:at] for at, address in enumerate(memory)])
        gradients.append(torch.autograd.grad(torch.stack(views).sin().sum(), x)[0])
    assert shared[1:] == [shared[0], shared[0]]
    assert sum(shared[0]) >= 1
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


def _unpooled(x: torch.Tensor, indices: torch.Tensor) -> Any:
    return nn.functional.max_unpool2d(x, indices, 2).relu()


@every_backend
def test_strides_are_eagers_where_fake_tensors_are_wrong(backend: str) -> None:
    """PyTorch announces contiguous results of `max_unpool2d`; its kernel gives channels-last ones for such inputs."""
    given = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    x, indices = nn.functional.max_pool2d(given, 2, return_indices=True)
    wanted = _unpooled(x, indices)
    assert wanted.is_contiguous(memory_format=torch.channels_last)
    call = compiled(_unpooled, backend)
    for _ in range(2):
        result = call(x, indices)
        assert result.stride() == wanted.stride()
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("name", WRITING)
@every_backend
def test_written_inputs_are_written(backend: str, name: str) -> None:
    """What the program writes into an input is visible to the caller."""
    call = compiled(WRITING[name], backend)
    mine, eager = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    for _ in range(2):
        torch.testing.assert_close(call(mine), WRITING[name](eager))
        torch.testing.assert_close(mine, eager)


@every_backend
def test_aliased_inputs_are_written_once(backend: str) -> None:
    """Two inputs that share memory see each other's writes, as in eager. With symbolic sizes they would run in eager."""

    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    call = compiled(both, backend, dynamic=False)
    for make in (lambda base: (base, base), lambda base: (base[:2], base[1:])):
        mine, eager = torch.ones(3), torch.ones(3)
        torch.testing.assert_close(call(*make(mine)), both(*make(eager)))
        torch.testing.assert_close(mine, eager)


@every_backend
def test_outputs_of_two_calls_are_apart(backend: str) -> None:
    """A later call leaves the results of an earlier one unchanged."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    call = compiled(model, backend)
    with torch.no_grad():
        first = call(torch.ones(2, 4))
        kept = first.clone()
        second = call(-torch.ones(2, 4))
    assert torch.equal(first, kept)
    assert first.data_ptr() != second.data_ptr()


@every_backend
def test_inputs_are_left_alone(backend: str) -> None:
    """A program that writes nothing changes no input."""
    call = compiled(lambda x: (x.relu() + 1).softmax(-1), backend)
    x = torch.randn(3, 4)
    kept = x.clone()
    call(x)
    call(x)
    assert torch.equal(x, kept)


@every_backend
def test_batch_norm_updates_its_statistics(backend: str) -> None:
    """Batch norm in train mode, without gradients, normalises by the batch and moves its buffers as in eager."""
    torch.manual_seed(0)
    model, twin = nn.BatchNorm2d(3).train(), nn.BatchNorm2d(3).train()
    call = compiled(model, backend)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 4, 4)
            torch.testing.assert_close(call(x), twin(x))
    for mine, eager in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, eager)


@every_backend
def test_a_counter_counts(backend: str) -> None:
    """A buffer that the model writes holds the new value at the next call."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    model = Counter()
    call = compiled(model, backend)
    assert [float(call(torch.ones(()))) for _ in range(4)] == [1, 2, 3, 4]
    assert float(model.count) == 4  # pyright: ignore
