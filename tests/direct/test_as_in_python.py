"""Compiled models and functions behave as Python objects do: methods, classes, copies, attributes, generators, errors."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import json
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

import hub
from hub.errors import HubWarning, OptionError

OPTIONS = {"tune": "off", "start": "wait", "backends": ["inductor"]}
X = torch.linspace(-1, 1, 12).reshape(3, 4)
N_CALLS = 5
"""Calls that take every way: in eager, captured, recorded, without Dynamo."""


def compiled(model: Any) -> Any:
    return hub.compile(model, options=OPTIONS)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


# --- Values that are objects --------------------------------------------------------------------------------------------


def detached(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def detached_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().detach()


def detached_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    return y, y.detach()


def test_what_detach_returns_is_another_tensor() -> None:
    """Resizing it, or asking it for gradients, changes neither the input nor another output."""
    one, same, two = compiled(detached), compiled(detached_in_place), compiled(detached_twice)
    for _ in range(N_CALLS):
        for call in (one, same):
            x = torch.ones(2, requires_grad=True)
            y = call(x)
            assert not y.requires_grad
            assert y.data_ptr() == x.data_ptr()
            y.unsqueeze_(0)
            assert x.shape == (2,)
        first, second = two(x)
        assert first is not second
        assert first.data_ptr() == second.data_ptr()


def test_detach_before_a_graph_break_leaves_the_input_alone() -> None:
    """The rest of the function may change what `detach` returned."""

    def function(x: torch.Tensor) -> torch.Tensor:
        z = x.detach()
        torch._dynamo.graph_break()
        z.requires_grad_()
        return z * 2

    call = compiled(function)
    for _ in range(N_CALLS):
        x = torch.ones(2)
        call(x)
        assert not x.requires_grad


class Tagged:
    """A container with an attribute that PyTorch's tree functions do not carry over."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.extra = 0


pytree.register_pytree_node(Tagged, lambda one: ([one.x], None), lambda leaves, _: Tagged(next(iter(leaves))))


def tagged_tensor(x: torch.Tensor) -> Any:
    y: Any = x + 1
    y.extra = 7
    return y


def tagged_container(x: torch.Tensor) -> Any:
    found = Tagged(x + 1)
    found.extra = 7
    return found


def tagged_output(x: torch.Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    found: Any = BaseModelOutput(last_hidden_state=x + 1)
    found.extra = 7
    return found


@pytest.mark.parametrize("function", [tagged_tensor, tagged_container, tagged_output])
def test_attributes_of_results_come_with_every_call(function: Callable[..., Any]) -> None:
    """What PyTorch's tree functions drop is there in the fifth call, too."""
    call = compiled(function)
    assert [call(X).extra for _ in range(N_CALLS)] == [7] * N_CALLS


def test_inputs_and_results_that_contain_themselves() -> None:
    """Python allows them; they cannot be flattened."""
    parent: dict[str, Any] = {"value": X, "children": []}
    parent["children"].append({"value": X + 1, "parent": parent})

    def around(x: torch.Tensor) -> list[Any]:
        found: list[Any] = [x + 1]
        found.append(found)
        return found

    into, out = compiled(lambda one: one["value"] + one["children"][0]["value"]), compiled(around)
    for _ in range(N_CALLS):
        torch.testing.assert_close(into(parent), 2 * X + 1)
        found = out(X)
        assert found[1] is found


# --- Gradient modes -----------------------------------------------------------------------------------------------------

WEIGHT = torch.linspace(1, 2, 4).requires_grad_()


def recording(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return (x * WEIGHT) ** 2


def force(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad((x**3).sum(), x)
    return found


def test_gradients_that_the_model_records_itself() -> None:
    """`enable_grad` inside a call under `no_grad` has its effect: forces, guidance, attribution."""
    call, other = compiled(recording), compiled(force)
    for _ in range(N_CALLS):
        found = call(X)
        assert found.requires_grad
        torch.testing.assert_close(found, recording(X))
        torch.testing.assert_close(other(X), force(X))


# --- Methods ------------------------------------------------------------------------------------------------------------


class Base:
    """A class with a compiled method."""

    def __init__(self) -> None:
        self.k = 1

    @hub.compile(options=OPTIONS)
    def f(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.k


class Plain(Base):
    """A subclass that overrides it with a plain method."""

    def f(self, x: torch.Tensor) -> torch.Tensor:
        return super().f(x) * 2


class Both(Base):
    """A subclass that overrides it with a compiled one."""

    @hub.compile(options=OPTIONS)
    def f(self, x: torch.Tensor) -> torch.Tensor:
        return super().f(x) * 2


@pytest.mark.parametrize("kind", [Plain, Both])
def test_a_subclass_may_override_a_compiled_method(kind: type[Base]) -> None:
    """Each call is the subclass's, and `super()` is the base class's."""
    one = kind()
    for _ in range(N_CALLS):
        torch.testing.assert_close(one.f(X), (X + 1) * 2)
    torch.testing.assert_close(torch.vmap(one.f)(X), (X + 1) * 2)


def test_copies_have_methods_of_their_own() -> None:
    """Shallow or deep, of the object or of its method."""
    first = Base()
    for _ in range(N_CALLS):
        first.f(X)
    shallow, deep, method = copy.copy(first), copy.deepcopy(first), copy.deepcopy(first.f)
    shallow.k, deep.k = 5, 6
    for _ in range(N_CALLS):
        torch.testing.assert_close(shallow.f(X), X + 5)
        torch.testing.assert_close(deep.f(X), X + 6)
        torch.testing.assert_close(method(X), X + 1)
        torch.testing.assert_close(first.f(X), X + 1)
    assert method is not first.f


def test_a_copied_super_method_stays_one() -> None:
    """It is looked up in the class that had it, not in the object's."""
    one = Plain()
    method = copy.deepcopy(super(Plain, one).f)
    torch.testing.assert_close(method(X), X + 1)


def test_a_method_that_is_replaced_in_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that called it before call the new one."""
    one = Base()
    one.f(X)
    monkeypatch.setattr(Base, "f", lambda _, x: x * 0)
    assert not one.f(X).any()


def test_compiled_methods_do_not_keep_their_object() -> None:
    """It is freed as without them."""
    one = Base()
    for _ in range(N_CALLS):
        one.f(X)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_an_argument_may_be_called_self() -> None:
    """As in any function."""

    def function(self: int, x: torch.Tensor) -> torch.Tensor:
        return self * x

    call = compiled(function)
    for _ in range(N_CALLS):
        torch.testing.assert_close(call(self=2, x=X), 2 * X)


# --- Generators and coroutines ------------------------------------------------------------------------------------------


def test_generators_run_when_they_are_asked() -> None:
    """Not before, not more than asked for, and they take what is sent."""
    steps: list[int] = []

    def function(x: torch.Tensor) -> Iterator[torch.Tensor]:
        while True:
            steps.append(len(steps))
            x = x + (yield x)  # pyright: ignore[reportUnknownVariableType]

    call = compiled(function)
    for _ in range(N_CALLS):
        steps.clear()
        found = call(X)
        assert not steps
        torch.testing.assert_close(next(found), X)
        torch.testing.assert_close(found.send(X), 2 * X)
        assert steps == [0, 1]


def test_coroutines_are_awaited() -> None:
    """Functions, methods of modules, and generators among them."""

    async def plain(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x + 1

    async def many(x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
        yield x + 1

    class Net(nn.Module):
        async def forward(self, x: torch.Tensor) -> torch.Tensor:
            return await plain(x)

    async def first(found: AsyncIterator[torch.Tensor]) -> torch.Tensor:
        return await anext(found)

    for _ in range(N_CALLS):
        torch.testing.assert_close(asyncio.run(compiled(plain)(X)), X + 1)
        torch.testing.assert_close(asyncio.run(compiled(Net())(X)), X + 1)
        torch.testing.assert_close(asyncio.run(first(compiled(many)(X))), X + 1)


# --- Classes of compiled modules ----------------------------------------------------------------------------------------


class Maker(nn.Module):
    """A module that makes others of its class."""

    ended = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def another(self) -> nn.Module:
        return self.__class__()

    def one_more(self) -> nn.Module:
        return type(self)()

    def __del__(self) -> None:
        Maker.ended += 1


def test_modules_that_a_compiled_one_makes() -> None:
    """They are plain modules, or act as such."""
    module = Maker()
    call = compiled(module)
    for made in (call.another(), call.one_more()):
        assert made(X).shape == X.shape
    assert type(call.another()) is Maker
    sliced = compiled(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))[:1]
    assert type(sliced) is nn.Sequential
    assert sliced(X).shape == X.shape


def test_a_module_ends_once() -> None:
    """Its compiled form is not the module."""
    module = Maker()
    call = compiled(module)
    ended = Maker.ended
    del call
    gc.collect()
    assert Maker.ended == ended


@pytest.mark.parametrize("is_compiled", [True, False])
def test_parametrizations_may_be_added_later(is_compiled: bool) -> None:
    """They change the class of the module, whichever of the two is given."""
    module = nn.Linear(4, 4)
    call = compiled(module)
    for _ in range(N_CALLS):
        call(X)
    nn.utils.parametrizations.weight_norm(call if is_compiled else module)
    with torch.no_grad():
        module.parametrizations.weight.original0.mul_(3)  # pyright: ignore
    for _ in range(N_CALLS):
        torch.testing.assert_close(call(X), module(X))
    torch.testing.assert_close(call.weight, module.weight)


def test_a_function_that_wraps_a_compiled_one() -> None:
    """`functools.wraps` copies attributes, but not the plan."""
    inner = compiled(lambda x: x * 2)

    @functools.wraps(inner)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    call = compiled(outer)
    for _ in range(N_CALLS):
        torch.testing.assert_close(call(X), 2 * X + 1)


def test_graph_modules_may_be_recompiled() -> None:
    """The next call runs the edited graph."""
    module = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    call = compiled(module)
    for _ in range(N_CALLS):
        assert call(X).min() >= 0
    relu = next(node for node in call.graph.nodes if node.target == "1")
    relu.replace_all_uses_with(relu.args[0])
    call.graph.erase_node(relu)
    call.recompile()
    for _ in range(N_CALLS):
        assert call(X).min() < 0
        torch.testing.assert_close(call(X), module(X))


class Wrapper(nn.Module):
    """A module that looks unknown names up in another one, as adapters do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) * 2


def test_a_wrapper_is_not_the_compiled_model_inside_it() -> None:
    """Its copy is a wrapper, and the hub does not take it for what it wraps."""
    module = nn.Linear(4, 4)
    wrapper = Wrapper(compiled(module))
    wrapper(X)
    torch.testing.assert_close(copy.deepcopy(wrapper)(X), 2 * module(X))
    with pytest.raises(OptionError, match="Wrapper was not made by"):
        hub.plans(wrapper)
    with pytest.raises(OptionError, match="Wrapper was not made by"):
        hub.freeze(wrapper, X)


class Strange(nn.Module):
    """A module whose attributes that do not exist raise KeyError."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_names_that_raise_something_else() -> None:
    """The hub does not ask a model for names that it need not have."""
    call = compiled(Strange())
    for _ in range(N_CALLS):
        torch.testing.assert_close(call(X), X + 1)


# --- Failures of capture ------------------------------------------------------------------------------------------------


class Checked(nn.Module):
    """A module that checks its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 4:
            raise ValueError("4 features expected")
        return self.linear(x).relu()


def served(entry: Callable[..., Any], *, before: bool) -> Any:
    """Return a compiled model that got four wrong requests among right ones."""
    torch._dynamo.reset()
    module = Checked().eval()
    call = entry(module)
    for _ in range(N_CALLS if before else 0):
        call(X)
    for _ in range(4):
        with pytest.raises(ValueError, match="4 features expected"):
            call(torch.ones(3, 5))
    for size in (3, 2, 3, 5, 3, 2, 3, 5, 3):
        x = torch.randn(size, 4)
        torch.testing.assert_close(call(x), module(x))
    return call


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("entry", [compiled, lambda module: torch.compile(module, backend="hub", options=OPTIONS)])
def test_wrong_requests_do_not_leave_the_model_in_eager(entry: Callable[..., Any], before: bool) -> None:
    """PyTorch would never capture the code again after the first one."""
    call = served(entry, before=before)
    plans = hub.plans(call)
    assert plans
    assert all(plan.backends == ("inductor",) for plan in plans)


def test_errors_are_eagers(capfd: pytest.CaptureFixture[str]) -> None:
    """Their types and texts, without PyTorch's log of how capture failed."""
    module = nn.Linear(4, 4)
    call = compiled(module)
    for _ in range(N_CALLS):
        call(X)
    for wrong in (torch.ones(2, 5), "text", None):
        with pytest.raises((RuntimeError, TypeError)) as expected:
            module(wrong)
        with pytest.raises(expected.type) as found:
            call(wrong)
        assert found.type is expected.type
        assert str(found.value) == str(expected.value)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        hub.explain(module, torch.ones(2, 5))
    assert "Traceback" not in capfd.readouterr().err
    torch.testing.assert_close(call(X), module(X))


def test_the_log_is_pytorchs_own_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    """For other backends nothing is held back."""
    with pytest.raises(RuntimeError):
        torch.compile(nn.Linear(4, 4), backend="eager", fullgraph=True)(torch.ones(2, 5))
    assert any("failed while attempting to run meta" in record.message for record in caplog.records)


class Half(nn.Module):
    """A module with an attribute that Dynamo cannot read."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = Decimal("0.5")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(self.factor)


def test_a_strict_model_raises_what_capture_raises() -> None:
    """An unasked fallback to eager is an error then."""
    call = torch.compile(Half(), backend="hub", options={**OPTIONS, "strict": True})
    with pytest.raises(RuntimeError, match="from user code"):
        call(X)


def test_what_pytorch_cannot_capture_runs_in_eager() -> None:
    """Its internal errors do not reach the user, and `hub.explain` tells them."""
    call = compiled(Half())
    for _ in range(N_CALLS):
        torch.testing.assert_close(call(X), X / 2)
    power = compiled(lambda x, n: x + n**2)
    for n in (3.2, 7.0, -7.5, 3.2):
        torch.testing.assert_close(power(X, n), X + n**2)


def test_an_object_with_compiled_methods_shows_them() -> None:
    """Its `__dict__` has one more entry for each, under a name that no code of its own uses."""
    one = Base()
    one.f(X)
    assert [name for name in vars(one) if not name.startswith("_hub_compiled_f_")] == ["k"]
    assert json.dumps({name: value for name, value in vars(one).items() if not name.startswith("_hub_")}) == '{"k": 1}'


@pytest.mark.parametrize("entry", [compiled, lambda module: torch.compile(module, backend="hub", options=OPTIONS)])
def test_a_wrong_request_is_no_failure_of_a_backend(entry: Callable[..., Any]) -> None:
    """Where eager raises too, nobody is warned, and nothing is remembered."""
    torch._dynamo.reset()
    module = nn.Linear(4, 4)
    call = entry(module)
    for _ in range(N_CALLS):
        call(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HubWarning)
        for _ in range(N_CALLS):
            with pytest.raises(RuntimeError, match="must have the same dtype"):
                call(torch.ones(3, 4, dtype=torch.int64))  # tensors without data do not show this
    (event,) = (event for plan in hub.plans(call) for event in plan.events if event.kind != "note")
    assert event.kind == "refused"
    assert "eager raises on these inputs, too" in event.message
    torch.testing.assert_close(call(X), module(X))
    assert hub.plans(call)[0].backends == ("inductor",)
