"""Where nothing of a model is captured, everything that would show a plan says so, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.capture.call import capture_call
from hub.capture.nothing import Cause, why_nothing
from hub.errors import CaptureError, FreezeError, HubWarning

OPTIONS = {"tune": "off", "backends": ["eager"]}
X = torch.randn(3)


def same(x: torch.Tensor) -> torch.Tensor:
    """Return the input, without any operator."""
    return x


class Disabled(nn.Module):
    """Kept out by its author."""

    @torch.compiler.disable(reason="too old")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@torch.compiler.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    """Add one, outside every captured graph."""
    return x + 1


def around(x: torch.Tensor) -> torch.Tensor:
    """Call nothing but the excluded function."""
    return outside(x)


def stopped(x: torch.Tensor) -> torch.Tensor:
    """Run an operator whose result's size depends on values."""
    return x.nonzero()


CASES: dict[str, tuple[Any, Cause, str]] = {
    "no operators": (same, Cause.NO_OPERATORS, "no tensor operators"),
    "disabled": (Disabled(), Cause.DISABLED, "too old"),
    "disabled inside": (around, Cause.STOPPED, r"test_nothing\.py:\d+ in around"),
    "values": (stopped, Cause.STOPPED, r"test_nothing\.py:\d+ in stopped.*depends on input Tensor data"),
}


def ignored(program: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """Return the program's own forward: a backend that runs everything in eager."""
    return program.forward


@pytest.mark.parametrize("name", CASES)
def test_explain_raises_and_names_the_cause(name: str) -> None:
    """`hub.explain` raises CaptureError with the cause, the place and a next step."""
    model, cause, words = CASES[name]
    with pytest.raises(CaptureError, match=words) as caught:
        hub.explain(model, X, options=OPTIONS)
    assert caught.value.hint
    assert why_nothing(model, capture_call(model, (X,), None, ignored)).cause is cause


@pytest.mark.parametrize("name", CASES)
def test_plans_and_freeze_say_so_of_a_compiled_model(name: str) -> None:
    """`hub.plans` warns with the cause, and `hub.freeze` raises with it."""
    model, _, words = CASES[name]
    compiled = torch.compile(model, backend="hub", options=OPTIONS)
    with torch.no_grad():
        compiled(X)
    with pytest.warns(HubWarning, match=words):
        assert hub.plans(compiled) == ()
    with pytest.raises(FreezeError, match=words):
        hub.freeze(compiled, X)


def test_a_model_that_was_not_called_is_no_reason_to_warn() -> None:
    """Before the first call there are no plans, and nothing to say."""
    compiled = torch.compile(lambda x: x + 1, backend="hub", options=OPTIONS)
    assert hub.plans(compiled) == ()


def test_what_turns_compilation_off_is_named() -> None:
    """Where the whole process does not compile, that is the cause."""
    with torch.compiler.set_stance("force_eager"), pytest.raises(CaptureError, match="force_eager"):
        hub.explain(lambda x: x + 1, X, options=OPTIONS)


def test_a_recurrent_module_in_training_is_the_cause() -> None:
    """A module that is one recurrent layer runs in eager where gradients are recorded, and `hub.plans` says why."""
    compiled = torch.compile(nn.GRU(3, 3), backend="hub", options=OPTIONS)
    with pytest.warns(HubWarning):
        compiled(torch.randn(2, 3))[0].sum().backward()
        found = hub.plans(compiled)
    assert found == ()
    with pytest.warns(HubWarning, match=r"nn\.GRU.*gradients"):
        hub.plans(compiled)
