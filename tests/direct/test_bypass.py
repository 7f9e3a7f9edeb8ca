"""Calls of `torch.compile(model, backend="hub")` that skip Dynamo, seen from outside: they are what they were before."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import multiprocessing
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.capture.call import BYPASSED
from hub.frontend.bindings import CALLED
from hub.frontend.direct import shortcut
from hub.frontend.direct.entry import Entry
from hub.frontend.direct.watches import Watches

X = torch.randn(2, 4)
OPTIONS = {"backends": ["onnxruntime"], "start": "wait"}


class Model(nn.Module):
    """Some layers, an attribute, inputs of several kinds and a result of several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.scale = 1.0

    def forward(self, x: torch.Tensor, times: float = 1.0, *, flag: bool = False) -> dict[str, Any]:
        """Return a dict with a tensor, a tuple and a flag."""
        for layer in self.layers:
            x = torch.relu(layer(x)) + 0.1
        return {"y": x * self.scale * times, "z": (x + 1, flag)}


def of_its_own_class() -> nn.Module:
    """Return a model whose class and `forward` are no other's, to be changed."""

    class Own(Model):
        def forward(self, x: torch.Tensor, times: float = 1.0, *, flag: bool = False) -> dict[str, Any]:
            for layer in self.layers:
                x = torch.relu(layer(x)) + 0.1
            return {"y": x * self.scale * times, "z": (x + 1, flag)}

    return Own()


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return how many calls an entry has served since the last question."""
    served: list[None] = []
    run = Entry.run

    def counted(self: Entry, *args: Any, **kwargs: Any) -> Any:
        served.append(None)
        return run(self, *args, **kwargs)

    def asked() -> int:
        found = len(served)
        served.clear()
        return found

    monkeypatch.setattr(Entry, "run", counted)
    yield asked
    torch._dynamo.reset()


def compiled_with(model: Any, entered: Callable[[], int], *args: Any) -> Any:
    """Return a compiled model whose calls are served by an entry."""
    compiled = torch.compile(model, backend="hub", options=OPTIONS)
    for _ in range(4):
        compiled(*(args or (X,)))
    assert entered() > 0
    return compiled


def assert_eagers(compiled: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Fail unless a call gives eager's answer."""
    torch.testing.assert_close(compiled(*args, **kwargs), model(*args, **kwargs))


def watches_of(compiled: Any) -> Watches:
    return vars(compiled.dynamo_ctx)["hub_watches"]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("make", [Model, lambda: nn.Sequential(nn.Linear(4, 4)), lambda: nn.Linear(4, 4)])
def test_calls_are_served_by_an_entry(make: Callable[[], nn.Module], entered: Callable[[], int]) -> None:
    """From the fourth call on, for models of any size."""
    model = make().eval()
    compiled = compiled_with(model, entered)
    for _ in range(3):
        assert_eagers(compiled, model, X)
    assert entered() == 3


def test_a_module_that_is_compiled_in_place_is_served_by_an_entry(entered: Callable[[], int]) -> None:
    """Its class's call leads to the function that PyTorch made. Hooks are a part of what is captured."""
    model = Model().eval()
    expected = copy.deepcopy(model)
    model.compile(backend="hub", options=OPTIONS)
    for _ in range(4):
        assert_eagers(model, expected, X)
    assert entered() > 0
    (plan,) = hub.plans(model)
    assert plan.backends == ("onnxruntime",)
    for change in (scaled, hooked, hooked_before, replaced):
        undo = [change(one) for one in (model, expected)]
        for _ in range(4):
            assert_eagers(model, expected, X)
        for each in undo:
            each()
        for _ in range(4):
            assert_eagers(model, expected, X)
    other = copy.deepcopy(model)  # which is not compiled
    other.layers[0].weight.zero_()
    expected.layers[0].weight.zero_()
    assert_eagers(other, expected, X)
    model.layers[0].weight.zero_()
    assert_eagers(model, expected, X)
    assert_eagers(hub.freeze(model, X), expected, X)


def test_each_form_gets_an_entry(entered: Callable[[], int]) -> None:
    """Sizes, values and keywords that come again; each has eager's answer."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}), ((X,), {"flag": True}), ((torch.randn(3, 4),), {}), ((torch.randn(5, 4),), {}), ((X,), {"times": 1.0})
    ]  # fmt: skip
    for _ in range(40):
        for args, kwargs in forms:
            assert_eagers(compiled, model, *args, **kwargs)
    entered()
    for args, kwargs in forms:
        assert_eagers(compiled, model, *args, **kwargs)
    assert entered() == len(forms)


def hooked(model: Any) -> Any:
    return model.register_forward_hook(lambda _model, _args, result: {**result, "y": result["y"] + 5}).remove


def hooked_before(model: Any) -> Any:
    return model.register_forward_pre_hook(lambda _model, args: (args[0] + 5,)).remove


def hooked_everywhere(model: Any) -> Any:
    def hook(module: Any, _args: Any, result: Any) -> Any:
        return {**result, "y": result["y"] + 5} if module is model else None

    return torch.nn.modules.module.register_module_forward_hook(hook).remove


def replaced(model: Any) -> Any:
    model.forward = lambda x: {"y": x}
    return lambda: vars(model).pop("forward")


def replaced_in_class(model: Any) -> Any:
    old = type(model).forward
    type(model).forward = lambda _self, x: {"y": x + 1}
    return lambda: setattr(type(model), "forward", old)


def other_code(model: Any) -> Any:
    def other(self: Any, x: torch.Tensor, times: float = 1.0, *, flag: bool = False) -> Any:
        return {"y": x + 1}

    old, type(model).forward.__code__ = type(model).forward.__code__, other.__code__
    return lambda: setattr(type(model).forward, "__code__", old)


def in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return lambda: setattr(model, "_compiled_call_impl", None)


def scaled(model: Any) -> Any:
    model.scale = 3.0
    return lambda: setattr(model, "scale", 1.0)


def in_another_class(model: Any) -> Any:
    kind = type(model)
    model.__class__ = type("Other", (kind,), {"forward": lambda self, x: {"y": kind.forward(self, x)["y"] * 2}})
    return lambda: setattr(model, "__class__", kind)


WAYS = [
    hooked, hooked_before, hooked_everywhere, replaced, replaced_in_class, other_code, in_place, scaled,
    in_another_class,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("change", WAYS)
def test_a_change_of_what_a_call_runs_is_noticed(change: Callable[[Any], Any], entered: Callable[[], int]) -> None:
    """Also one that no guard of Dynamo's is on, since it acts before the captured code is reached."""
    model = of_its_own_class().eval()
    compiled = compiled_with(model, entered)
    undo = change(model)
    try:
        for _ in range(3):
            assert_eagers(compiled, model, X)
    finally:
        undo()
    for _ in range(3):
        assert_eagers(compiled, model, X)


class Alone(nn.Module):
    """A model without parts, whose program reads no hooks."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(8):
            self.register_parameter(f"weight{number}", nn.Parameter(torch.rand(4, 4)))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return products."""
        for weight in self.parameters():
            x = torch.tanh(x @ weight)
        return {"y": x}


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("hook", [hooked, hooked_before, hooked_everywhere])
def test_hooks_that_no_guard_is_on_run(hook: Callable[[Any], Any], entered: Callable[[], int]) -> None:
    """PyTorch runs them outside of the captured code."""
    model = Alone().eval()
    compiled = compiled_with(model, entered)
    remove = hook(model)
    try:
        assert_eagers(compiled, model, X)
    finally:
        remove()


WRITES: dict[str, Callable[[Model], Any]] = {
    "in place": lambda model: model.layers[0].weight.mul_(2),
    "by data": lambda model: setattr(model.layers[1].weight, "data", torch.rand(4, 4)),
    "another weight": lambda model: setattr(model.layers[1], "weight", nn.Parameter(torch.rand(4, 4))),
    "a state": lambda model: model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}),
    "another layer": lambda model: model.layers.__setitem__(0, nn.Linear(4, 4).eval()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_written_weights_are_noticed(write: Callable[[Model], Any], entered: Callable[[], int]) -> None:
    """The call after each kind of write has the new values."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    for _ in range(2):
        write(model)
        for _ in range(3):
            assert_eagers(compiled, model, X)


def test_modes_of_the_thread_are_compared(entered: Callable[[], int]) -> None:
    """Gradients, autocast, inference mode, and the stances of `torch.compiler`."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    with torch.enable_grad():
        answer = compiled(X)["y"]
        assert answer.requires_grad
        answer.sum().backward()
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert compiled(X)["y"].dtype == model(X)["y"].dtype
        with torch.inference_mode():
            assert compiled(X)["y"].is_inference()
    with torch.compiler.set_stance("force_eager"):
        entered()
        assert torch.equal(compiled(X)["y"], model(X)["y"])
        assert entered() == 0
    assert_eagers(compiled, model, X)


def test_a_reset_of_pytorch_ends_the_entries(entered: Callable[[], int]) -> None:
    """What PyTorch has dropped is captured again, and its plans are freed."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    (held,) = watches_of(compiled).held
    graph = weakref.ref(held.graph())
    del held
    torch._dynamo.reset()
    gc.collect()
    assert graph() is None
    assert_eagers(compiled, model, X)
    assert entered() == 0
    for _ in range(3):
        assert_eagers(compiled, model, X)
    assert entered() > 0


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_transforms_and_tracers_see_the_model(entered: Callable[[], int]) -> None:
    """As without entries: they see operators, or raise PyTorch's own errors."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    doubled = {name: value * 2 for name, value in model.named_parameters()}
    given = {f"_orig_mod.{name}": value for name, value in doubled.items()}
    torch.testing.assert_close(
        torch.func.functional_call(compiled, given, (X,)), torch.func.functional_call(model, doubled, (X,))
    )
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace"):
        torch.jit.trace(compiled, (X,), strict=False)
    torch.testing.assert_close(torch.export.export(compiled, (X,)).module()(X), model(X))
    entered()
    for _ in range(40):  # each transform changed PyTorch's class of modules, and after each such loss the pause is longer
        assert_eagers(compiled, model, X)
    assert entered() > 0
    torch.testing.assert_close(torch.vmap(lambda x: compiled(x)["y"])(X[None]), model(X)["y"][None])
    assert_eagers(compiled, model, X)


def test_another_compiler_around_it_sees_the_model_or_leaves_it_alone(entered: Callable[[], int]) -> None:
    """It inlines the model; where it cannot, it captures nothing of the hub's own code."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    captured: list[int] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        captured.append(len(module.graph.nodes))
        return module

    @torch.compiler.disable(recursive=False)
    def apart(x: torch.Tensor) -> torch.Tensor:
        return compiled(x)["y"]

    for function, expected in ((lambda x: compiled(x)["y"] + 1, 1), (lambda x: apart(x) + 1, 1)):
        captured.clear()
        outer = torch.compile(function, backend=backend)
        for _ in range(3):
            torch.testing.assert_close(outer(X), model(X)["y"] + 1)
        assert len(captured) == expected


def test_copies_have_entries_of_their_own(entered: Callable[[], int]) -> None:
    """A copy of a compiled module is called with its own weights and attributes."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        other._orig_mod.scale = 3.0
        for _ in range(5):
            assert_eagers(other, other._orig_mod, X)
        assert entered() > 0
    again = copy.copy(compiled)
    model.scale = 2.0
    for one in (again, compiled):
        for _ in range(3):
            assert_eagers(one, model, X)


def test_the_function_of_a_compiled_module_looks_as_before(entered: Callable[[], int]) -> None:
    """Its signature, names, and what PyTorch keeps there."""
    model = Model().eval()
    before = torch.compile(model, backend="hub", options=OPTIONS).forward
    after = compiled_with(model, entered).forward
    assert after is not before
    assert inspect.signature(after) == inspect.signature(before)
    assert vars(after).keys() - {BYPASSED} == vars(before).keys()
    assert torch._dynamo.eval_frame.innermost_fn(after) == torch._dynamo.eval_frame.innermost_fn(before)


def test_plans_and_frozen_models_are_found(entered: Callable[[], int]) -> None:
    """By the compiled module, as before."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("onnxruntime",)
    assert_eagers(hub.freeze(compiled, X), model, X)
    model.layers[0].weight.data.zero_()
    hub.refresh(compiled)
    assert_eagers(compiled, model, X)


def test_threads_call_and_write_at_once(entered: Callable[[], int]) -> None:
    """Each call has the answer of one state of the model, and none is lost."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    expected = {scale: {**model(X), "y": model(X)["y"] * scale} for scale in (1.0, 2.0)}
    wrong: list[Any] = []

    def call(size: int) -> None:
        with torch.no_grad():
            given = torch.randn(size, 4)
            for _ in range(60):
                assert_eagers(compiled, plain, given)
                found = scaled_by(X)["y"]
                if not any(torch.allclose(found, one["y"], atol=1e-5) for one in expected.values()):
                    wrong.append(found)

    plain = copy.deepcopy(model)
    other = copy.deepcopy(model)
    scaled_by = torch.compile(other, backend="hub", options=OPTIONS)
    threads = [threading.Thread(target=call, args=(2 + number % 3,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        other.scale = 3.0 - other.scale
        threads[0].join(0.002)
        for thread in threads[1:]:
            thread.join(0.002)
    assert wrong == []


def test_a_fork_answers_in_eager(entered: Callable[[], int]) -> None:
    """Executables do not survive a fork."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()

    def answer() -> None:
        with warnings.catch_warnings(action="ignore"):
            answers.put(compiled(X)["y"].tolist())

    process = context.Process(target=answer)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    torch.testing.assert_close(torch.tensor(answers.get()), model(X)["y"])


# --- What a call runs besides the graph -------------------------------------------------------------------------------


def with_mutable_default() -> tuple[nn.Module, Callable[[], None]]:
    """Return a model whose `forward` reads a dict that is a default, and a function that changes it."""
    given = {"scale": 1.0}

    class Default(Model):
        def forward(self, x: torch.Tensor, given: dict[str, float] = given) -> Any:  # pyright: ignore
            return super().forward(x)["y"] * given["scale"]

    return Default(), lambda: given.update(scale=7.0)


def with_closed_over() -> tuple[nn.Module, Callable[[], None]]:
    """Return a model whose `forward` reads a list of its closure."""
    given = [1.0]

    class Closed(Model):
        def forward(self, x: torch.Tensor) -> Any:  # pyright: ignore
            return super().forward(x)["y"] * given[0]

    return Closed(), lambda: given.__setitem__(0, 7.0)


@pytest.mark.parametrize("make", [with_mutable_default, with_closed_over])
def test_what_forward_reads_besides_the_model_is_compared(make: Callable[[], Any], entered: Callable[[], int]) -> None:
    """Dynamo calls such values inputs, but no caller gives them."""
    model, change = make()
    compiled = torch.compile(model.eval(), backend="hub", options=OPTIONS)
    for _ in range(6):
        assert_eagers(compiled, model, X)
    change()
    for _ in range(6):
        assert_eagers(compiled, model, X)


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_function_around_the_compiled_one_runs(is_installed: bool, entered: Callable[[], int]) -> None:
    """It is the user's, whether it was put there before or after the hub's."""
    model = Model().eval()
    compiled = torch.compile(model, backend="hub", options=OPTIONS)
    if is_installed:
        compiled = compiled_with(model, entered)
    inner = compiled.forward

    @functools.wraps(inner)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return inner(x)["y"].mul_(2)

    compiled.forward = doubled
    for _ in range(8):
        torch.testing.assert_close(compiled(X), model(X)["y"] * 2)


class Rate(nn.Module):
    """A model without weights."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rates = [rate] * 8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by all of them."""
        for rate in self.rates:
            x = torch.tanh(x) * rate
        return x


def test_models_that_share_one_wrapper_have_entries_of_their_own(entered: Callable[[], int]) -> None:
    """Their graph is the same, and nothing in it tells them apart."""
    wrap = torch._dynamo.optimize("hub")
    models = [Rate(2.0), Rate(2.0)]
    first, second = map(wrap, models)
    for one, model in ((first, models[0]), (second, models[1]), (first, models[0])):
        for _ in range(6):
            assert_eagers(one, model, X)
    models[0].rates[0] = 9.0
    for _ in range(6):
        assert_eagers(first, models[0], X)
        assert_eagers(second, models[1], X)


def test_python_around_an_inner_call_of_the_model_runs(entered: Callable[[], int]) -> None:
    """The graph of the inner call is that of calls without the Python, and the only one."""

    class Recursive(Model):
        @torch.compiler.disable(recursive=False)
        def doubled(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).mul_(2)

        def forward(self, x: torch.Tensor, twice: bool = False) -> Any:  # pyright: ignore
            return self.doubled(x) if twice else super().forward(x)["y"]

    model = Recursive().eval()
    compiled = torch.compile(model, backend="hub", options=OPTIONS)
    for twice in (False, True):
        for _ in range(16):
            assert_eagers(compiled, model, X, twice)


class Odd:
    """A result whose registered functions raise."""

    def __init__(self, value: Any) -> None:
        self.value = value


def refused(*_: Any) -> Any:
    raise ValueError("it cannot be taken apart")


torch.utils._pytree.register_pytree_node(Odd, refused, refused, serialized_type_name="tests.Odd")


@pytest.mark.parametrize("is_result", [False, True])
def test_registered_functions_that_raise_are_no_error(is_result: bool, entered: Callable[[], int]) -> None:
    """Neither for results nor for inputs."""

    class Odds(Model):
        is_result = False

        def forward(self, x: torch.Tensor, given: Any = None) -> Any:  # pyright: ignore
            y = super().forward(x if given is None else given.value)["y"]
            return Odd(y) if self.is_result else y

    model = Odds().eval()
    model.is_result = is_result
    compiled = torch.compile(model, backend="hub", options=OPTIONS)
    for number in range(24):
        args = (X, Odd(X)) if number > 8 and number % 3 and not is_result else (X,)
        found, expected = compiled(*args), model(*args)
        torch.testing.assert_close(*((one.value if is_result else one) for one in (found, expected)))
    assert (entered() > 0) != is_result


class Out:
    """A result whose registered context is a list."""

    def __init__(self, y: Any, about: list[int]) -> None:
        self.y, self.about = y, about


torch.utils._pytree.register_pytree_node(
    Out,
    lambda out: ([out.y], out.about),
    lambda held, about: Out(next(iter(held)), about),
    serialized_type_name="tests.Out",
)


def test_calls_share_no_object_of_their_results(entered: Callable[[], int]) -> None:
    """A list in what was registered as the context of a result's class is new in each call."""

    class Returns(Model):
        def forward(self, x: torch.Tensor) -> Any:  # pyright: ignore
            return Out(super().forward(x)["y"], [1, 2])

    compiled = torch.compile(Returns().eval(), backend="hub", options=OPTIONS)
    for _ in range(8):
        found = compiled(X)
        assert found.about == [1, 2]
        found.about.append(3)


def test_what_a_captured_program_prints_is_printed(
    entered: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch can capture around such functions, and its code calls them after the graph."""

    class Prints(Model):
        def forward(self, x: torch.Tensor) -> Any:  # pyright: ignore
            print("hello")  # noqa: T201 - it is what is tested
            return super().forward(x)

    with torch._dynamo.config.patch(reorderable_logging_functions={print}):
        compiled = torch.compile(Prints().eval(), backend="hub", options=OPTIONS)
        for _ in range(8):
            compiled(X)
    assert capsys.readouterr().out.count("hello") == 8


def test_a_call_of_the_objects_own_runs(entered: Callable[[], int]) -> None:
    """`_call_impl` that was set on a module."""
    model = Model().eval()
    compiled = compiled_with(model, entered)
    inner, counted = model._call_impl, []

    @torch.compiler.disable(recursive=False)
    def call(*args: Any) -> Any:
        counted.append(None)
        return inner(*args)

    vars(model)["_call_impl"] = call
    for _ in range(12):
        compiled(X)
    assert len(counted) == 12


def test_a_call_that_ended_before_its_graph_leaves_nothing_to_the_next(entered: Callable[[], int]) -> None:
    """A watch that vouched for weights then does not vouch for them later."""
    model = Model().eval()
    compiled = torch.compile(model, backend="hub", options=OPTIONS, dynamic=True)
    for size in (2, 3, 2, 3, 2, 3, 2):
        compiled(torch.ones(size, 4))
    (held, *_) = watches_of(compiled).held
    CALLED.witness = shortcut._Witness(held.guards().graph, held)
    model.layers[-1].bias.add_(5)
    for size in (2, 3):
        assert_eagers(compiled, model, torch.ones(size, 4))
