"""`hub.freeze`: a compiled model that calls its plan directly, and what it still checks."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.errors import FreezeError
from hub.frontend.compiled import CompiledGraph
from hub.frontend.freezing import MAX_KNOWN, Frozen

OPTIONS = {"tune": "off", "backends": ["onnxruntime"]}


class Classifier(nn.Module):
    """A model that returns a dict, and takes a keyword and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = torch.relu(self.first(x))
        return {"hidden": hidden, "scores": [self.second(hidden) * scale], "name": "scores"}


class Plain(nn.Module):
    """A model that returns a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


def compiled(module: nn.Module) -> Any:
    """Return the module compiled by the hub."""
    torch.compiler.reset()
    return torch.compile(module.eval(), backend="hub", options=OPTIONS)


@pytest.fixture
def plain() -> tuple[Plain, Any, Frozen]:
    """Return a module, compiled, and frozen for a batch of 3."""
    module = Plain()
    model = compiled(module)
    return module, model, hub.freeze(model, torch.randn(3, 16))


def test_frozen_gives_what_the_model_gives(plain: tuple[Plain, Any, Frozen]) -> None:
    """A frozen model computes on the inputs of each call, not on those it was frozen with."""
    module, _, frozen = plain
    for _ in range(2):
        x = torch.randn(3, 16)
        with torch.no_grad():
            torch.testing.assert_close(frozen(x), module(x))


def test_results_keep_their_structure() -> None:
    """Dicts, lists and plain values of a result are returned as the model returns them; keywords are passed on."""
    module = Classifier()
    frozen = hub.freeze(compiled(module), torch.randn(2, 16), scale=2.0)
    x = torch.randn(2, 16)
    with torch.no_grad():
        found, expected = frozen(x, scale=2.0), module(x, scale=2.0)
    assert list(found) == list(expected)
    assert found["name"] == "scores"
    torch.testing.assert_close(found["scores"][0], expected["scores"][0])
    torch.testing.assert_close(found["hidden"], expected["hidden"])


def test_what_other_threads_call_meanwhile_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of another thread, in the middle of the one that freezing watches, is neither counted nor frozen."""
    module = Plain()
    model = compiled(module)
    slowly, others, home = CompiledGraph._call_slowly, [], threading.get_ident()

    def call_in_another_thread() -> None:
        with torch.no_grad():
            others.append(model(torch.zeros(3, 16)))

    def beside_another(graph: CompiledGraph, args: Any) -> Any:
        if graph.observer is not None and threading.get_ident() == home:
            thread = threading.Thread(target=call_in_another_thread)
            thread.start()
            thread.join()
        return slowly(graph, args)

    monkeypatch.setattr(CompiledGraph, "_call_slowly", beside_another)
    frozen = hub.freeze(model, torch.randn(3, 16))
    x = torch.randn(3, 16)
    with torch.no_grad():
        assert [value.shape for value in others] == [x.shape]
        torch.testing.assert_close(frozen(x), module(x))


def test_another_number_takes_the_compiled_way() -> None:
    """A plain value that differs from the one at freezing is still computed with."""
    module = Classifier()
    frozen = hub.freeze(compiled(module), torch.randn(2, 16), scale=2.0)
    x = torch.randn(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x, scale=3.0)["scores"][0], module(x, scale=3.0)["scores"][0])


def test_minus_zero_is_another_number() -> None:
    """It equals zero, and what is divided by it does not."""

    def divided(x: torch.Tensor, *, scale: float) -> torch.Tensor:
        return x / scale

    fast = hub.freeze(hub.compile(divided, options={"tune": "off"}), torch.ones(3), scale=0.0)
    assert fast(torch.ones(3), scale=0.0)[0] == float("inf")
    assert fast(torch.ones(3), scale=-0.0)[0] == -float("inf")


@pytest.mark.parametrize("x", [torch.randn(5, 16), torch.randn(16, 3).T, torch.randn(3, 16, dtype=torch.float64).float()])
def test_other_forms_take_the_compiled_way(plain: tuple[Plain, Any, Frozen], x: torch.Tensor) -> None:
    """Inputs of other sizes or strides give right results too."""
    module, _, frozen = plain
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), module(x))


def test_frozen_does_not_ask_the_model(plain: tuple[Plain, Any, Frozen], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the frozen form does not go through `torch.compile`'s wrapper; one of another form does."""
    _, _, frozen = plain
    asked: list[int] = []
    monkeypatch.setattr(frozen, "_compiled", lambda *_: asked.append(1))
    with torch.no_grad():
        frozen(torch.randn(3, 16))
        assert not asked
        frozen(torch.randn(4, 16))
    assert asked


def test_a_model_of_any_size_can_be_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a graph with symbolic sizes, the size at freezing runs the plan directly, and others call the compiled model."""
    module = Plain().eval()
    torch.compiler.reset()
    model = torch.compile(module, backend="hub", dynamic=True, options=OPTIONS)
    frozen, asked = hub.freeze(model, torch.randn(5, 16)), []
    monkeypatch.setattr(frozen, "_compiled", lambda x: (asked.append(len(x)), model(x))[1])
    with torch.no_grad():
        for rows in (5, 7, 5, 3):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(frozen(x), module(x))
    assert asked == [7, 3]
    assert [plan.backends for plan in hub.plans(model)] == [("onnxruntime",)]


def test_gradients_take_the_compiled_way(plain: tuple[Plain, Any, Frozen]) -> None:
    """An input that needs gradients gets them."""
    _, _, frozen = plain
    x = torch.randn(3, 16, requires_grad=True)
    frozen(x)[:, 0].sum().backward()
    assert x.grad is not None
    assert bool(x.grad.abs().sum() > 0)


def test_weights_are_as_they_were(plain: tuple[Plain, Any, Frozen]) -> None:
    """Weights are those at freezing, until `refresh` reads them again."""
    module, _, frozen = plain
    x = torch.randn(3, 16)
    with torch.no_grad():
        before = frozen(x)
        module.linear.weight.mul_(3.0)
        torch.testing.assert_close(frozen(x), before)
        frozen.refresh()
        torch.testing.assert_close(frozen(x), module(x))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copied: Any, plain: tuple[Plain, Any, Frozen]) -> None:
    """The error says what can be copied instead; the frozen model continues to work."""
    model, _, frozen = plain
    with pytest.raises(FreezeError, match=r"cannot be copied or pickled[\s\S]*copy or save the model itself"):
        copied(frozen)
    x = torch.randn(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x))


def test_graph_breaks_are_refused() -> None:
    """A model of several graphs cannot be frozen, and the error says how many and where to look."""

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x @ x.T)
            torch._dynamo.graph_break()
            return torch.softmax(y @ y, -1)

    with pytest.raises(FreezeError, match="runs 2 captured graphs") as caught:
        hub.freeze(compiled(Broken()), torch.randn(3, 16))
    assert "graph_breaks" in str(caught.value)


def test_outside_values_are_refused() -> None:
    """A result that is not made by the graph cannot be frozen."""

    class Echo(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, torch.relu(x @ x.T)

    with pytest.raises(FreezeError, match="not made by the captured graph"):
        hub.freeze(compiled(Echo()), torch.randn(3, 16))


def test_one_tensor_given_twice_is_refused() -> None:
    """A graph captured for two inputs that are one tensor would compute with only one of them."""

    class Product(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return torch.relu(left @ right)

    x = torch.randn(3, 3)
    with pytest.raises(FreezeError, match="given twice"):
        hub.freeze(compiled(Product()), x, x)


def test_inputs_that_cannot_be_compared_are_refused() -> None:
    """An input of a type of its own may have changed inside and still be the same object."""

    class Setting:
        factor = 2.0

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, setting: Setting) -> torch.Tensor:
            return torch.relu(x @ x.T) * setting.factor

    with pytest.raises(FreezeError, match="type Setting cannot be compared"):
        hub.freeze(compiled(Scaled()), torch.randn(3, 3), Setting())


def test_numbers_that_the_graph_computes_are_refused() -> None:
    """A number of the result that depends on the inputs' values would stay as it was at freezing."""

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return torch.relu(x @ x.T), int((x > 0).sum().item())

    scalars = torch._dynamo.config.patch(capture_scalar_outputs=True)
    with scalars, pytest.raises(FreezeError, match="may depend on the inputs' values"):
        hub.freeze(compiled(Counted()), torch.randn(3, 16))


def test_only_the_hubs_models_can_be_frozen() -> None:
    """An object that the hub did not compile is refused by name."""
    with pytest.raises(hub.HubError, match=r"torch\.compile"):
        hub.freeze(nn.Linear(2, 2), torch.randn(1, 2))


def test_autocast_takes_the_compiled_way() -> None:
    """Under autocast, which the model was not frozen with, a call has eager's dtype and values; without it, as before."""
    module, x = nn.Linear(16, 16), torch.randn(3, 16)
    frozen = hub.freeze(compiled(module), x)
    with torch.no_grad():
        before = frozen(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = frozen(x), module(x)
        assert found.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
        assert torch.equal(frozen(x), before)
        assert before.dtype == torch.float32


class Counting(nn.Module):
    """A model that writes to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


TABLE = torch.linspace(0, 1, 16)


class Outside(nn.Module):
    """A model that reads a tensor that is neither its own nor an input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + TABLE)


class Scores:
    """A result of a type that PyTorch does not know."""

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores


class Wrapping(nn.Module):
    """Return an object."""

    def forward(self, x: torch.Tensor) -> Scores:
        return Scores(torch.relu(x))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Counting(), "the graph trains or writes to its inputs"),
        (Outside(), "which is neither an input of the model nor a weight"),
        (Wrapping(), "the result holds values that cannot be rebuilt: Scores"),
    ],
    ids=["buffers written", "tensors from outside", "results that cannot be rebuilt"],
)
def test_what_cannot_be_frozen_is_refused(module: nn.Module, said: str) -> None:
    """The error names the reason, and the compiled model still runs."""
    model, x = compiled(module), torch.randn(3, 16)
    with pytest.raises(FreezeError, match=said):
        hub.freeze(model, x)
    model(x)


def test_calls_in_ever_new_modes_are_right_and_keep_little() -> None:
    """Only some modes are compared at once; calls in the others are checked step by step, each time."""
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    compiled = hub.compile(model, options={"tune": "off", "start": "wait", "backends": ("inductor",)})
    with torch.no_grad():
        frozen = hub.freeze(compiled, x)
    expected = model(x).detach()
    for gradients, inference, dtype in itertools.product((True, False), (True, False), (torch.float32, torch.float64)):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.set_grad_enabled(gradients), torch.inference_mode(inference):
                for _ in range(3):
                    torch.testing.assert_close(frozen(x), expected)
        finally:
            torch.set_default_dtype(before)
    assert len(frozen._known) == MAX_KNOWN
