"""Weights: what is written to, moved or given another form is seen in the next call; plans for others do not run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.frontend.direct.compile import program_of
from hub.frontend.direct.reads import Reads
from hub.frontend.direct.watch import CHANGED, SAME, WRITTEN, Watch

OPTIONS: dict[str, Any] = {"tune": "off", "start": "wait", "backends": ["inductor"], "background": False}


def watch_of(*tensors: torch.Tensor) -> Watch:
    """Return a watch of these tensors alone."""
    return Watch(Reads(tensors={id(one): one for one in tensors}))


def square() -> nn.Parameter:
    """Return a square weight, whose transpose could replace it."""
    return nn.Parameter(torch.arange(9.0).reshape(3, 3))


def write(weight: nn.Parameter) -> None:
    """Write in place, as an optimizer does."""
    with torch.no_grad():
        weight.add_(1)


def resize(weight: nn.Parameter) -> None:
    """Resize to fewer numbers, in the same memory."""
    weight.requires_grad_(False).resize_(2, 2).requires_grad_(True)


CHANGES: dict[str, tuple[Callable[[nn.Parameter], Any], int]] = {
    "a write": (write, WRITTEN),
    "other memory": (lambda weight: setattr(weight, "data", torch.ones(3, 3)), WRITTEN),
    "the same memory, transposed": (lambda weight: setattr(weight, "data", weight.data.t()), CHANGED),
    "fewer rows": (lambda weight: setattr(weight, "data", weight.data[:2]), CHANGED),
    "another rank": (lambda weight: setattr(weight, "data", weight.data[None]), CHANGED),
    "another dtype": (lambda weight: setattr(weight, "data", weight.data.double()), CHANGED),
    "the same bytes as integers": (lambda weight: setattr(weight, "data", weight.data.view(torch.int32)), CHANGED),
    "no need of gradients": (lambda weight: weight.requires_grad_(False), CHANGED),
    "a resize": (resize, CHANGED),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_weight_are_told_apart(name: str) -> None:
    """A form that a guard would mind is no form of before; contents are others only."""
    change, expected = CHANGES[name]
    if name == "the same bytes as integers":
        weight = nn.Parameter(torch.arange(9.0).reshape(3, 3), requires_grad=False)
    else:
        weight = square()
    watch = watch_of(torch.zeros(2), weight, torch.zeros(()))
    assert watch.compare() == SAME
    change(weight)
    assert watch.compare() == expected
    watch.renew()
    assert watch.compare() == (SAME if expected == WRITTEN else CHANGED)


def test_a_watch_lets_its_tensors_go() -> None:
    """Weights, and the memory behind them, end with what compares them."""
    weight = square()
    ended = weakref.ref(weight)
    watch = watch_of(weight)
    del weight
    gc.collect()
    assert ended() is not None
    del watch
    gc.collect()
    assert ended() is None


class Two(nn.Module):
    """One layer, whose result depends on the number of rows: two captured programs for one set of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() if x.shape[0] == 2 else self.linear(x).tanh()


def armed(compiled: Any, *inputs: torch.Tensor) -> None:
    """Call until calls of each form bypass Dynamo, and without a check of single weights."""
    for _ in range(8):
        for x in inputs:
            compiled(x)
    uses = program_of(compiled)._n_uses
    for x in inputs:
        compiled(x)
    assert program_of(compiled)._n_uses == uses + len(inputs), program_of(compiled).why_dynamo


def test_a_write_seen_by_one_program_is_seen_by_the_other() -> None:
    """Executables hold weights as constants: after a write, each program builds its own anew, whichever is called first."""
    model = Two().eval()
    compiled = hub.compile(model, options=OPTIONS, dynamic=False)
    two, three = torch.randn(2, 8), torch.randn(3, 8)
    with torch.no_grad():
        armed(compiled, two, three)
        for step in range(4):
            model.linear.weight.mul_(-1.5)
            order = (two, three) if step % 2 else (three, two)
            for x in (*order, *order):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_loaded_weights_serve_from_the_next_call_on() -> None:
    """And calls go without Dynamo again afterwards."""
    model, other = Two().eval(), Two().eval()
    compiled = hub.compile(model, options=OPTIONS, dynamic=False)
    x = torch.randn(2, 8)
    with torch.no_grad():
        armed(compiled, x)
        compiled.load_state_dict(other.state_dict())
        torch.testing.assert_close(compiled(x), other(x))
        armed(compiled, x)
        model.linear.weight.data = torch.zeros(8, 8)
        torch.testing.assert_close(compiled(x), model(x))
        model.linear.weight = nn.Parameter(torch.ones(8, 8))
        torch.testing.assert_close(compiled(x), model(x))


def test_an_input_that_is_a_weight_goes_through_dynamo() -> None:
    """Dynamo captures a program of its own where two of its tensors are one."""
    model = Two().eval()
    compiled = hub.compile(model, options=OPTIONS, dynamic=False)
    x = torch.randn(8, 8)
    with torch.no_grad():
        armed(compiled, x)
        uses = program_of(compiled)._n_uses
        given = model.linear.weight.detach().requires_grad_(False)
        torch.testing.assert_close(compiled(given), model(given))
        torch.testing.assert_close(compiled(model.linear.weight), model(model.linear.weight))
        assert program_of(compiled)._n_uses <= uses + 1


def test_inputs_and_results_of_finished_calls_are_freed() -> None:
    """A compiled model remembers forms of inputs, not the inputs: flat ones, keyword ones, and those in containers."""

    class Held(nn.Module):
        def forward(self, x: torch.Tensor, more: list[torch.Tensor], *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": x + more[0] * scale, "least": x.amin()}

    def call() -> list[weakref.ref[torch.Tensor]]:
        x, other, scale = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
        found = compiled(x, [other], scale=scale)
        plain = flat(x)
        return [weakref.ref(one) for one in (x, other, scale, found["sum"], found["least"], plain)]

    model = Held().eval()
    compiled, flat = hub.compile(model, options=OPTIONS), hub.compile(Two().eval(), options=OPTIONS)
    flat.linear = nn.Linear(4, 4)
    with torch.no_grad():
        references = [reference for _ in range(8) for reference in call()]
    assert all(program_of(one)._n_uses > 0 for one in (compiled, flat))
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
