"""A compiled model accepts and returns whatever the model does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from hub.discovery.registry import registry

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

BACKENDS = registry().available()


class Pair(NamedTuple):
    """A named tuple."""

    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Output:
    """A dataclass output, with a part that is missing."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


def _plain(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).log().sum(-1, keepdim=True) * x


def _nested(batch: dict[str, Any]) -> dict[str, Any]:
    left, (right, scale) = batch["left"], batch["rest"]
    return {"sum": left + right, "all": [left * scale, (right, None)], "text": "done", "number": 3}


def _pair(x: torch.Tensor) -> Pair:
    return Pair(x + 1, x.tanh())


def _numbers(x: torch.Tensor, power: int, name: str, factor: float, flag: bool) -> tuple[torch.Tensor, int, str]:
    return (x**power * factor if flag else x), power + 1, name.upper()


def _optional(x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> torch.Tensor:
    return (x if mask is None else x.masked_fill(mask, 0)) * scale


def _mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + y, x > 0, y.argmax(-1), (y * 2).to(torch.float64)


def _nothing(x: torch.Tensor) -> None:
    return None


def _constants(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(4) * 2, x + torch.ones(3)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 2).relu(), x.amax(-1), x > 0


def _same_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.sigmoid()
    return y, y


X = torch.linspace(-2, 2, 12).reshape(4, 3)

CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "contiguous": (_plain, (X,), {}),
    "transposed": (_plain, (X.t(),), {}),
    "every second": (_plain, (torch.randn(4, 6)[:, ::2],), {}),
    "offset": (_plain, (torch.randn(6, 3)[2:],), {}),
    "expanded": (_plain, (torch.randn(1, 3).expand(4, 3),), {}),
    "channels last": (_plain, (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),), {}),
    "0-d": (_plain, (torch.randn(1)[0].reshape(1),), {}),
    "empty": (_plain, (torch.randn(0, 3),), {}),
    "float64": (_plain, (X.double(),), {}),
    "bfloat16": (_plain, (X.bfloat16(),), {}),
    "float16": (_halves, (X.half(),), {}),
    "a size beyond int32": (_plain, (torch.empty(0, 2**33),), {}),
    "nested": (_nested, ({"left": X, "rest": [X + 1, 2.5]},), {}),
    "named tuple": (_pair, (X,), {}),
    "numbers": (_numbers, (X, 2, "name", 0.5, True), {}),
    "left out": (_optional, (X,), {}),
    "None": (_optional, (X, None), {}),
    "by keyword": (_optional, (X,), {"mask": X > 0, "scale": 2.0}),
    "dtypes": (_mixed, (X, torch.arange(12).reshape(4, 3)), {}),
    "nothing": (_nothing, (X,), {}),
    "constants": (_constants, (X,), {}),
    "one result twice": (_same_twice, (X,), {}),
    "a Python number tensor": (_optional, (X,), {"scale": 3}),
}


def compiled(function: Any, backend: str) -> Any:
    """Compile a function or module for one backend, without measuring."""
    return torch.compile(function, backend="hub", options={"backends": (backend,), "tune": "off"})


def check_same(mine: Any, eager: Any) -> None:
    """Raise AssertionError unless two results have equal structure, types and values."""
    left, structure = pytree.tree_flatten(mine)
    right, wanted = pytree.tree_flatten(eager)
    assert structure == wanted
    for one, other in zip(left, right, strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(one, other) if isinstance(other, torch.Tensor) else None
        assert isinstance(other, torch.Tensor) or one == other


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_give_what_eager_gives(backend: str, name: str) -> None:
    """Strides, dtypes, containers, numbers, text, None and keywords pass through as in eager, call after call."""
    function, args, kwargs = CALLS[name]
    call = compiled(function, backend)
    for _ in range(2):
        check_same(call(*args, **kwargs), function(*args, **kwargs))


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_may_change_between_calls(backend: str) -> None:
    """Inputs of equal shape and other strides give right results on one compiled function."""
    call = compiled(_plain, backend)
    for x in (X, X.t().contiguous().t(), torch.randn(8, 3)[::2], torch.randn(1, 3).expand(4, 3), X):
        check_same(call(x), _plain(x))


def test_dataclass_outputs() -> None:
    """A model that returns a dataclass returns it when compiled, missing parts missing."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> Output:
            return Output(self.layer(x))

    model = Model()
    with torch.no_grad():
        got = torch.compile(model, backend="hub", options={"tune": "off"})(X)
        assert isinstance(got, Output)
        assert got.loss is None
        torch.testing.assert_close(got.logits, model(X).logits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_draws_as_eager_draws(backend: str) -> None:
    """Under one seed, dropout in train mode drops the same elements as eager."""
    model = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.4)).train()
    call = compiled(model, backend)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            mine = call(X)
            torch.manual_seed(seed)
            torch.testing.assert_close(mine, model(X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_tensors_are_eagers(backend: str) -> None:
    """Under one seed, random numbers are eager's, and differ from call to call."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (x + torch.randn_like(x)).relu() + torch.rand(3)

    call = compiled(noisy, backend)
    call(X)
    torch.manual_seed(1)
    mine = call(X), call(X)
    torch.manual_seed(1)
    check_same(mine, (noisy(X), noisy(X)))
    assert not torch.equal(*mine)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_counts(backend: str) -> None:
    """Under autocast results have eager's dtype and are as accurate as bfloat16 is."""
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    call = compiled(model, backend)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mine, eager = call(X), model(X)
    assert mine.dtype == eager.dtype
    torch.testing.assert_close(mine, eager, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_may_be_off_inside(backend: str) -> None:
    """A part of a model that turns autocast off computes in float32, as in eager: bfloat16 there would err by 4e-3."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inner = self.first(x)
            with torch.autocast("cpu", enabled=False):
                return inner, self.second(inner.float().tanh())

    model = Model()
    call = compiled(model, backend)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        (inner, mine), (eager_inner, eager) = call(X), model(X)
    assert inner.dtype == eager_inner.dtype == torch.bfloat16
    assert mine.dtype == eager.dtype == torch.float32
    torch.testing.assert_close(inner, eager_inner, rtol=1e-2, atol=1e-2)
    with torch.no_grad():  # from the first part's results, whose last bit is each backend's own
        torch.testing.assert_close(mine, model.second(inner.float().tanh()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_counts(backend: str) -> None:
    """In inference mode, in no_grad and again in inference mode, one compiled model is right."""
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    call = compiled(model, backend)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(call(X), model(X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_made_in_inference_mode(backend: str) -> None:
    """A model whose parameters are inference tensors, which count no changes, is right."""
    with torch.inference_mode():
        model = nn.Linear(3, 2)
        call = compiled(model, backend)
        for _ in range(2):
            torch.testing.assert_close(call(X), model(X))
            model.weight.mul_(2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_of_no_tensor(backend: str) -> None:
    """A function that makes its tensors itself returns what eager returns."""

    def table(n: int) -> torch.Tensor:
        return torch.arange(n).unsqueeze(1) * torch.arange(n) + torch.eye(n)

    check_same(compiled(table, backend)(5), table(5))
