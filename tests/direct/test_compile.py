"""`hub.compile`: what it returns is the user's own model or function, and calls of it go without Dynamo once they can."""

from __future__ import annotations

import abc
import collections
import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import hub
from hub.cli.app import app
from hub.errors import HubWarning, OptionError
from hub.frontend.direct.compile import program_of
from tests.toys import toy

OPTIONS: dict[str, Any] = {"tune": "off", "backends": (), "background": False}
X = torch.linspace(-1, 1, 24).reshape(4, 6)
Y = torch.linspace(2, -3, 24).reshape(4, 6)


class Net(nn.Module):
    """Weights, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)) + self.shift).softmax(-1)


class Outer(nn.Module):
    """A module that contains a compiled model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = compiled(Net())
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x))


@hub.compile(options=OPTIONS)
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return twice the values, rectified."""
    return torch.relu(x) * 2


class Method(nn.Module):
    """A module with a compiled method."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    @hub.compile(options=OPTIONS)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.no_grad():
        yield


def compiled(model: Any) -> Any:
    return hub.compile(model.eval(), options=OPTIONS)


def is_direct(call: Any, *args: Any, owner: Any = None, **kwargs: Any) -> bool:
    """Make a call, and return whether it bypassed Dynamo. `owner` is the compiled object, if that is not `call`."""
    program = program_of(call if owner is None else owner)
    through, seen = program.compiled, []

    def noted(*inputs: Any) -> Any:
        seen.append(inputs)
        return through(*inputs)

    program.compiled = noted
    try:
        call(*args, **kwargs)
    finally:
        program.compiled = through
    return not seen


def settles(call: Any, *args: Any, owner: Any = None, **kwargs: Any) -> bool:
    """Return whether calls of this form bypass Dynamo after a few."""
    for _ in range(4):
        call(*args, **kwargs)
    return is_direct(call, *args, owner=owner, **kwargs)


def agree(call: Callable[..., Any], model: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Raise AssertionError unless two models give the same, on values that neither has seen before."""
    for x in inputs or (X, Y):
        torch.testing.assert_close(call(x), model(x))


# --- The user's own module --------------------------------------------------------------------------------------------


def test_a_compiled_model_is_one_of_its_class() -> None:
    """It has the class, text, state, parts and weights of the model that it was made of, and gives eager's answers."""
    model = Net().eval()
    call = compiled(model)
    assert isinstance(call, Net)
    assert type(call).__name__ == "Net"
    assert repr(call) == repr(model)
    assert list(call.state_dict()) == list(model.state_dict())
    assert [name for name, _ in call.named_modules()] == ["", "first", "second"]
    assert all(mine is its for mine, its in zip(call.parameters(), model.parameters(), strict=True))
    assert weakref.ref(call)() is call
    assert settles(call, X)
    agree(call, model)


def test_states_go_in_and_out() -> None:
    """What `load_state_dict` loads counts in the next call."""
    call, other = compiled(Net()), Net().eval()
    assert settles(call, X)
    call.load_state_dict(other.state_dict())
    agree(call, other)
    other.load_state_dict(compiled(Net()).state_dict())


def test_modes_of_the_model_are_shared() -> None:
    """`train` and `eval` of either are those of both, and the next call has them."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(1.0)).eval()
    call = compiled(model)
    assert settles(call, X)
    assert call.train() is call
    assert model.training
    assert not call(X).any()
    model.eval()
    agree(call, model)


@pytest.mark.parametrize("change", ["double", "half", "to"])
def test_a_change_of_dtype_counts(change: str) -> None:
    """`.double()`, `.half()` and `.to(dtype)` return the compiled model, and its next call computes so."""
    call = compiled(Net())
    assert settles(call, X)
    dtype = torch.float16 if change == "half" else torch.float64
    assert (call.to(dtype) if change == "to" else getattr(call, change)()) is call
    assert call(X.to(dtype)).dtype is dtype
    assert settles(call, X.to(dtype))


@pytest.mark.parametrize("on", ["the compiled model", "the original", "a part"])
def test_hooks_count(on: str) -> None:
    """A hook that is added later runs from the next call on, until it is removed."""
    model = Net().eval()
    call = compiled(model)
    plain = call(X)
    assert settles(call, X)
    at = {"the compiled model": call, "the original": model, "a part": model.second}[on]
    hook = at.register_forward_hook(lambda module, inputs, output: output * 3)
    agree(call, model)
    assert not torch.allclose(call(X), plain)
    hook.remove()
    torch.testing.assert_close(call(X), plain)
    assert settles(call, X)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": lambda value: _loaded(value),
}


def _loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_compiled_and_has_weights_of_its_own(way: str) -> None:
    """Copies and files give compiled models, planned anew, that share nothing with the first one."""
    model = Net().eval()
    call = compiled(model)
    assert settles(call, X)
    twin = WAYS[way](call)
    assert isinstance(twin, Net)
    agree(twin, model)
    assert settles(twin, X)
    twin.first.weight.mul_(-2)
    assert not torch.allclose(twin(X), call(X))
    agree(call, model)


def test_a_shallow_copy_shares_weights() -> None:
    """`copy.copy` gives a compiled model of the same weights, whose attributes are its own."""
    call = compiled(Net())
    twin = copy.copy(call)
    twin.name = "twin"
    assert settles(twin, X)
    assert not hasattr(call, "name")
    assert twin.first.weight is call.first.weight


def _product(weight: torch.Tensor) -> Callable[..., Any]:
    return lambda x: torch.relu(x @ weight)


@pytest.mark.parametrize("what", ["model", "function"])
def test_all_is_freed_with_the_model(what: str) -> None:
    """Once the user lets go, weights, program, graph and plan are freed, without any reset of PyTorch."""
    call = compiled(Net()) if what == "model" else hub.compile(_product(nn.Parameter(torch.randn(6, 6))), options=OPTIONS)
    assert settles(call, X)
    program = program_of(call)
    (plan,) = hub.plans(call)
    (graph,) = hub.frontend.ownership.graphs_of(call)
    weight = next(call.parameters()) if what == "model" else program.function.__closure__[0].cell_contents
    held = {"weight": weight, "graph": graph, "program": program}
    found = {name: weakref.ref(value) for name, value in ({"call": call, "plan": plan} | held).items()}
    del call, program, plan, graph, held, weight
    gc.collect()
    assert [name for name, reference in found.items() if reference() is not None] == []


def test_models_do_not_disturb_each_other() -> None:
    """Each of several models that live at once goes without Dynamo, and with sizes of its own."""
    calls = [compiled(Net()) for _ in range(3)]
    assert [settles(call, X[: number + 1]) for number, call in enumerate(calls)] == [True] * 3
    assert [settles(call, X[: number + 1]) for number, call in enumerate(calls)] == [True] * 3
    assert not any(isinstance(size, torch.SymInt) for call in calls for graph in hub.frontend.ownership.graphs_of(call)
                   for node in graph.graph.placeholders for size in node.meta["val"].shape)  # fmt: skip


# --- Beside the rest of PyTorch ---------------------------------------------------------------------------------------


def test_a_compiled_model_is_a_part_of_another() -> None:
    """A model calls it without Dynamo, and has its names in the state and its weights among the parameters."""
    outer = Outer().eval()
    assert next(iter(outer.state_dict())) == "inner.shift"
    assert settles(outer, X, owner=outer.inner)
    twin = copy.deepcopy(outer)
    agree(twin, outer)
    assert twin.inner.first.weight is not outer.inner.first.weight


def test_a_model_around_a_compiled_one_can_be_compiled() -> None:
    """By PyTorch or by the hub: the inner model is captured as a part of the outer one."""
    outer = Outer().eval()
    assert settles(outer, X, owner=outer.inner)
    agree(torch.compile(outer, backend="eager", fullgraph=True), outer)
    call = compiled(outer)
    assert settles(call, X)
    agree(call, outer)
    assert len(hub.plans(call)) == 1


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_compiled_model_can_be_exported(is_strict: bool) -> None:
    """`torch.export` sees the model itself, also once its calls go without Dynamo."""
    call = compiled(Net())
    assert settles(call, X)
    program = torch.export.export(call, (X,), strict=is_strict)
    agree(program.module(), call)
    assert set(program.state_dict) == set(call.state_dict())


def test_a_compiled_model_can_be_traced() -> None:
    """`torch.fx` and `torch.jit.trace` see its operators, not a plan."""
    call = compiled(Net())
    assert settles(call, X)
    traced = torch.fx.symbolic_trace(call)
    agree(traced, call)
    assert "first" in [node.target for node in traced.graph.nodes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.trace(call, (X,))
    agree(scripted, call)
    assert "aten::tanh" in str(scripted.graph)
    assert settles(call, X)


def test_other_compilers_can_take_it() -> None:
    """`torch.compile` of a compiled model has its program, and the hub's calls go on."""
    call = compiled(Net())
    assert settles(call, X)
    agree(torch.compile(call, backend="eager", fullgraph=True), call)
    assert settles(call, X)


def test_transforms_of_functions_work() -> None:
    """`vmap`, `grad` and `functional_call` give what they give for the model itself; its own weights stay in use."""
    model = Net().eval()
    call = compiled(model)
    assert settles(call, X)
    many = torch.stack((X, Y))
    torch.testing.assert_close(torch.func.vmap(call)(many), torch.func.vmap(model)(many))
    with torch.enable_grad():
        found, expected = (torch.func.grad(lambda x, one=one: one(x)[0, 0])(X) for one in (call, model))
    torch.testing.assert_close(found, expected)
    others = {name: value * 2 for name, value in model.named_parameters()}
    torch.testing.assert_close(
        torch.func.functional_call(call, others, (X,)), torch.func.functional_call(model, others, (X,))
    )
    agree(call, model)
    assert settles(call, X)


def test_modes_of_others_see_each_operator() -> None:
    """A mode that counts operators has them all, and calls go without Dynamo again afterwards."""
    call = compiled(Net())
    assert settles(call, X)
    with FlopCounterMode(display=False) as counter:
        call(X)
    assert counter.get_total_flops() == 2 * 4 * (6 * 8 + 8 * 3)
    assert settles(call, X)


def test_autocast_is_a_form_of_its_own() -> None:
    """Under autocast calls compute as eager does there, and come to go without Dynamo too."""
    model = Net().eval()
    call = compiled(model)
    assert settles(call, X)
    with torch.autocast("cpu", torch.bfloat16):
        assert settles(call, X)
        agree(call, model)
        assert call(X).dtype is model(X).dtype
        with torch.autocast("cpu", enabled=False):
            agree(call, model)
    agree(call, model)


def test_training_gives_gradients() -> None:
    """With gradients calls go through Dynamo; they are eager's. Serving afterwards goes without, with the new weights."""
    model, reference = Net(), Net()
    reference.load_state_dict(model.state_dict())
    call = hub.compile(model, options=OPTIONS)
    with torch.enable_grad():
        for one in (call, reference):
            optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
            for _ in range(4):
                optimizer.zero_grad()
                one(X).square().sum().backward()
                optimizer.step()
        assert not is_direct(call, X)
        assert "gradients" in program_of(call).why_dynamo
    for mine, its in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)
    model.eval(), reference.eval()
    assert settles(call, X)
    agree(call, reference)
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        call(x).sum().backward()
        assert x.grad is not None


def test_inference_mode_works() -> None:
    """Results are inference tensors there, and none elsewhere."""
    call = compiled(Net())
    with torch.inference_mode():
        assert settles(call, X)
        assert call(X).is_inference()
    assert not call(X).is_inference()
    assert settles(call, X)


class Flagged(nn.Module):
    """A model that reads an attribute of an OrderedDict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.settings: Any = collections.OrderedDict(a=1)
        self.settings.is_positive = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() if self.settings.is_positive else self.linear(x)


def test_an_attribute_of_an_ordered_dict_is_watched() -> None:
    """Hooks lie in many OrderedDicts, whose attributes are not read; if a model reads one, it counts.

    From PyTorch 2.15 on Dynamo cannot read it: it runs such a model in parts, and keeps its calls.
    """
    model = Flagged().eval()
    is_one_graph = torch._dynamo.explain(model)(X).graph_break_count == 0
    torch.compiler.reset()
    call = compiled(model)
    with torch.no_grad():
        for is_positive in (True, False, True):
            model.settings.is_positive = is_positive
            agree(call, model)
            assert settles(call, X) == is_one_graph
    assert is_one_graph or "Python runs between its graphs" in program_of(call).why_dynamo


def test_weights_made_in_inference_mode_are_right_when_written_to() -> None:
    """PyTorch counts no writes to them, and ends a process that asks for the count from C++."""
    with torch.inference_mode():
        model = Net().eval()
        assert next(model.parameters()).is_inference()
        call = compiled(model)
        for _ in range(4):
            agree(call, model)
        next(model.parameters()).mul_(-2)
        agree(call, model)


def test_a_weight_may_take_the_memory_of_an_inference_tensor() -> None:
    """It goes on counting writes."""
    model = Net().eval()
    call = compiled(model)
    weight = next(model.parameters())
    with torch.inference_mode():
        other = torch.randn(weight.shape)
    with torch.no_grad():
        assert settles(call, X)
        weight.data = other
        agree(call, model)
        assert settles(call, X)
        weight.data.mul_(-2)
        agree(call, model)


# --- The hub's own functions ------------------------------------------------------------------------------------------


def test_the_hub_knows_what_it_compiled() -> None:
    """`plans`, `wait`, `refresh`, `explain` and `freeze` take what `hub.compile` returned, also while it is in use."""
    model = Net().eval()
    call = compiled(model)
    frozen = hub.freeze(call, X)
    agree(frozen, model)
    assert settles(call, X)
    assert [plan.backends for plan in hub.plans(call)] == [("eager",)]
    assert hub.wait(call)
    assert [plan.backends for plan in hub.explain(call, X, options=OPTIONS)] == [("eager",)]
    assert settles(call, X)
    agree(hub.freeze(call, X), model)
    assert settles(call, X)
    model.first.weight.data.mul_(2)
    hub.refresh(call)
    agree(call, model)


class Keeper(nn.Module):
    """A module that keeps what it computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x + 1
        return self.last


def test_explanations_say_how_calls_go() -> None:
    """`hub.explain` names what keeps a model's calls with Dynamo, and says so where nothing does."""
    direct, keeper = compiled(Net()), compiled(Keeper())
    (before,) = hub.explain(direct, X, options=OPTIONS)
    assert "go through Dynamo: it has not been called often enough" in str(before)
    assert settles(direct, X)
    assert not settles(keeper, X)
    assert "skip Dynamo" in str(hub.explain(direct, X, options=OPTIONS)[0])
    assert "go through Dynamo: every call writes to L['model']" in str(hub.explain(keeper, X, options=OPTIONS)[0])


@pytest.mark.parametrize("name", ["Net", "Keeper"])
def test_the_command_says_how_calls_go(name: str, tmp_path: Path) -> None:
    """`hub explain FILE:factory` tries a few calls in eager, and says whether they would go without Dynamo."""
    file = tmp_path / "models.py"
    file.write_text(
        f"import sys\ndef factory():\n    mine = sys.modules[{__name__!r}]\n    return mine.{name}(), (mine.X,)\n"
    )
    done = CliRunner().invoke(app, ["explain", f"{file}:factory", "--backends", "eager", "--tune", "off"])
    assert done.exit_code == 0, done.output
    assert ("skip Dynamo" if name == "Net" else "every call writes to") in done.output


def test_waiting_for_what_was_not_called_warns() -> None:
    """`hub.wait` cannot wait for a plan before the second call, and says what to do."""
    with pytest.warns(HubWarning, match="nothing is captured yet"):
        assert hub.wait(compiled(Net()))


def test_other_models_are_none_of_ours() -> None:
    """The model that was compiled is not the compiled one."""
    model = Net()
    compiled(model)
    with pytest.raises(OptionError, match=r"not made by hub\.compile"):
        hub.plans(model)


# --- The first calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["eager", "wait"])
def test_the_first_calls_of_a_form(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answers in eager, the second is captured, the third arms, the fourth goes without Dynamo.

    With `start="wait"`, from the environment as here or an option, the first one is captured.
    """
    monkeypatch.setenv("HUB_START", start)
    call = hub.compile(Net().eval(), options=OPTIONS)
    found = [(is_direct(call, X), len(hub.frontend.ownership.graphs_of(call))) for _ in range(4)]
    expected = [(True, 0), (False, 1), (False, 1), (True, 1)]
    assert found == (expected if start == "eager" else [*expected[1:], (True, 1)])


def test_example_inputs_capture_ahead() -> None:
    """Each of the example inputs is captured at once, by position or by name, without gradients in eval mode."""
    with torch.enable_grad():
        call = hub.compile(Net().eval(), options=OPTIONS, example_inputs=[(X,), {"x": X[:2]}])
    assert [plan.mode for plan in hub.plans(call)] == ["inference"] * 2
    call(X)
    assert is_direct(call, X)


def test_eight_threads_call_while_it_is_planned(install_plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is right, in whatever state the plan is; one thread has the model captured, once."""
    monkeypatch.setenv("HUB_START", "eager")
    install_plugin("toy", toy())
    model = Net().eval()
    call = hub.compile(model, options={"tune": "off", "backends": ("toy",), "background": False})
    inputs = [torch.randn(4, 6) for _ in range(8)]
    expected = [model(x) for x in inputs]
    wrong: list[Any] = []
    program, end_s = program_of(call), time.monotonic() + 2

    def serve(number: int) -> None:
        with torch.no_grad():
            while time.monotonic() < end_s or not program._is_captured:  # on a busy machine, capturing takes long
                time.sleep(0.005)
                found = call(inputs[number])
                if not torch.allclose(found, expected[number], atol=1e-6):
                    wrong.append(found)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert hub.wait(call)
    assert [plan.backends for plan in hub.plans(call)] == [("toy",)]
    assert settles(call, inputs[0])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning", "ignore::hub.errors.HubWarning")
def test_forks_answer() -> None:
    """A process that is forked from one in which the model goes without Dynamo has eager's answers."""
    model = Net().eval()
    call = compiled(model)
    assert settles(call, X)
    expected = model(Y)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if all(torch.allclose(call(Y), expected, atol=1e-6) for _ in range(4)) else 1)
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            traceback.print_exc()
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- Functions and methods --------------------------------------------------------------------------------------------


def test_functions_are_compiled() -> None:
    """A decorated function keeps its name and text, and is copied and pickled by its name, as every function is."""
    assert doubled.__name__ == "doubled"
    assert doubled.__doc__ == "Return twice the values, rectified."
    assert settles(doubled, X)
    agree(doubled, lambda x: torch.relu(x) * 2)
    assert copy.deepcopy(doubled) is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_a_plain_decorator_takes_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """`@hub.compile` without brackets."""

    @hub.compile
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert program_of(shifted).options == {}
    monkeypatch.setenv("HUB_TUNE", "off")
    monkeypatch.setenv("HUB_BACKENDS", "eager")
    torch.testing.assert_close(shifted(X), X + 1)


def test_methods_are_compiled_for_each_object() -> None:
    """A decorated method reads the attributes of its own object, whose changes count."""
    first, second = Method().eval(), Method().eval()
    for one in (first, second):
        assert settles(one, X, owner=one.forward)
        agree(one, lambda x, one=one: torch.tanh(one.linear(x)))
    first.linear.weight.mul_(2)
    first.linear = nn.Linear(6, 3)
    agree(first, lambda x: torch.tanh(first.linear(x)))
    for way in WAYS.values():
        twin = way(first)
        twin.linear.weight.mul_(-1)
        agree(twin, lambda x, twin=twin: torch.tanh(twin.linear(x)))
        assert settles(twin, X, owner=twin.forward)


def test_methods_of_other_objects_are_compiled() -> None:
    """A class need not be a module."""

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @hub.compile(options=OPTIONS)
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

        @hub.compile(options=OPTIONS)
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    scale = Scale(3.0)
    assert settles(scale.scaled, X)
    torch.testing.assert_close(scale.scaled(X), X * 3)
    scale.by = 4.0
    torch.testing.assert_close(scale.scaled(X), X * 4)
    torch.testing.assert_close(Scale(5.0).scaled(X), X * 5)
    torch.testing.assert_close(scale(X), X * 4)


def test_a_forward_is_compiled_in_its_place() -> None:
    """`model.forward = hub.compile(model.forward)`, which is copied and pickled with its model."""
    model = Net().eval()
    model.forward = hub.compile(model.forward, options=OPTIONS)
    assert settles(model, X, owner=model.forward)
    agree(model, lambda x: Net.forward(model, x))
    for way in WAYS.values():
        twin = way(model)
        twin.first.weight.mul_(-1)
        agree(twin, lambda x, twin=twin: Net.forward(twin, x))
        assert not torch.allclose(twin(X), model(X))


# --- What is refused --------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a compiled model": (lambda: hub.compile(hub.compile(Net())), "compiled already"),
    "a compiled function": (lambda: hub.compile(doubled), "compiled already"),
    "what torch.compile returned": (lambda: hub.compile(torch.compile(Net(), backend="eager")), "compiled already"),
    "a function of torch.compile": (lambda: hub.compile(torch.compile(torch.relu, backend="eager")), "compiled already"),
    "a frozen model": (lambda: hub.compile(hub.freeze(compiled(Net()), X)), "compiled already"),
    "a class": (lambda: hub.compile(Net), "the class Net is neither"),
    "a number": (lambda: hub.compile(3), "an int is neither"),  # type: ignore[type-var]
    "an option that is misspelt": (lambda: hub.compile(Net(), options={"tun": "off"}), "did you mean 'tune'"),
    "a wrong option of a decorator": (lambda: hub.compile(options={"tune": "of"}), "tune"),
    "a backend that is misspelt": (lambda: hub.compile(Net(), options={"backends": ("inducto",)})(X), "inductor"),
    "example inputs that are no tuple": (lambda: hub.compile(Net(), example_inputs=(X,)), r"example_inputs=\[\(x,\)\]"),
    "example inputs that are a tensor": (lambda: hub.compile(Net(), example_inputs=X), "a Tensor, not a list of calls"),
    "explaining nothing": (lambda: hub.explain(None), "a NoneType cannot be called"),  # type: ignore[arg-type]
    "freezing nothing": (lambda: hub.freeze(None), r"NoneType was not made by hub\.compile"),  # type: ignore[arg-type]
    "freezing before compiling": (lambda: hub.freeze(Net(), X), r"Net was not made by hub\.compile"),
    "plans of nothing": (lambda: hub.plans(None), r"NoneType was not made by hub\.compile"),
    "refreshing nothing": (lambda: hub.refresh(None), r"NoneType was not made by hub\.compile"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    """Wrong arguments are refused with the reason, by the function itself; names of backends by the first call."""
    attempt, message = REFUSED[what]
    with pytest.raises(OptionError, match=message):
        attempt()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_of_torch_script_are_refused() -> None:
    """A ScriptModule is no Python object whose class could be another one."""
    for model in (torch.jit.script(nn.Linear(6, 3)), torch.jit.trace(nn.Linear(6, 3), (X,))):
        with pytest.raises(OptionError, match="cannot be given another class"):
            hub.compile(model)


def test_a_model_compiled_in_place_is_refused() -> None:
    """`model.compile()` and `hub.compile(model)` are two ways of the same."""
    model = Net()
    model.compile(backend="eager")
    with pytest.raises(OptionError, match="compiled in place"):
        hub.compile(model)


# --- Classes of all kinds ---------------------------------------------------------------------------------------------


def test_what_a_class_does_with_its_subclasses_is_left_alone() -> None:
    """A metaclass, and `__init_subclass__`, see the classes of their author only."""
    seen: list[str] = []

    class Meta(type):
        def __new__(cls, name: str, bases: Any, members: Any, *, tag: int) -> Any:
            seen.append(f"{name} {tag}")
            return super().__new__(cls, name, bases, members)

        def __init__(cls, name: str, bases: Any, members: Any, *, tag: int) -> None:
            super().__init__(name, bases, members)

    class Base(nn.Module):
        def __init_subclass__(cls, **_: Any) -> None:
            seen.append("subclass")

    class Odd(Base, metaclass=Meta, tag=1):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    before = list(seen)
    call = compiled(Odd())
    assert seen == before
    assert type(type(call)) is Meta
    assert settles(call, X)
    torch.testing.assert_close(call(Y), Y + 1)


def test_abstract_classes_keep_their_answers() -> None:
    """The class of a compiled model is its own to `isinstance`, which reads no other object's memory."""

    class Base(nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x: torch.Tensor) -> torch.Tensor: ...

    class Own(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    call = compiled(Own())
    assert isinstance(call, Own)
    assert not isinstance(Own(), type(call))
    assert isinstance(Own(), Own)
    assert settles(call, X)


def test_a_class_may_have_its_own_ways() -> None:
    """`__call__`, `__getattr__`, `__setattr__`, `__deepcopy__` and slots of the class are those of the compiled model."""

    class Own(nn.Module):
        __slots__ = ("__hidden", "scale")

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.scale, self.__hidden = 2.0, 1

        def __call__(self, x: torch.Tensor, *, plus: float = 1.0) -> torch.Tensor:
            return super().__call__(x) + plus

        def __getattr__(self, name: str) -> Any:
            return 42 if name == "answer" else super().__getattr__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "forbidden":
                raise ValueError(name)
            super().__setattr__(name, value)

        def __deepcopy__(self, memo: Any) -> Own:
            twin = Own().eval()
            twin.load_state_dict(self.state_dict())
            twin.is_copied = True
            return twin

        def hidden(self) -> int:
            return self.__hidden

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale

    model = Own().eval()
    call: Any = compiled(model)
    for _ in range(4):
        torch.testing.assert_close(call(X, plus=2.0), model(X, plus=2.0))
    assert (call.answer, call.scale, call.hidden()) == (42, 2.0, 1)
    call.scale = 3.0
    assert model.scale == 3.0
    agree(call, model)
    with pytest.raises(ValueError, match="forbidden"):
        call.forbidden = 1
    twin = copy.deepcopy(call)
    assert twin.is_copied
    agree(twin, type(twin).__mro__[2].__call__.__get__(twin))


def test_another_process_loads_a_compiled_model(tmp_path: Path) -> None:
    """A process that has not imported the hub loads the file, and has the answers."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh()).eval()
    torch.save((compiled(model), X, model(X)), tmp_path / "model.pt")
    program = f"""
import torch
call, x, expected = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
with torch.no_grad():
    for _ in range(4):
        torch.testing.assert_close(call(x), expected)
import hub
assert len(hub.plans(call)) == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
