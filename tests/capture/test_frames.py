"""Recurrent modules are captured for the hub, and for no other backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import hub
from hub import HubWarning
from hub.capture import frames

EAGER = {"tune": "off", "backends": ["eager"]}
X = torch.randn(2, 5, 8)


class Tagger(nn.Module):
    """An embedding, two recurrent layers in both directions, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.recurrent = nn.LSTM(16, 16, 2, batch_first=True, bidirectional=True)
        self.classify = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.recurrent(self.embed(x))[0])


class Front(nn.Module):
    """What stands before the recurrent part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Whole(nn.Module):
    """A model that calls its parts."""

    def __init__(self, parts: nn.Sequential) -> None:
        super().__init__()
        self.front, self.back = parts[0], parts[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.front(x))


class Cells(nn.Module):
    """One step of every cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.RNNCell(8, 8), nn.GRUCell(8, 8)])
        self.last = nn.LSTMCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x[0]
        for cell in self.cells:
            hidden = cell(hidden)
        return self.last(hidden)[1]


def operators(compiled: Any) -> list[str]:
    """Return the operators of every captured graph."""
    return [name for plan in hub.plans(compiled) for cluster in plan.clusters for name in cluster.operators]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(8, 8, batch_first=True),
    "GRU": lambda: nn.GRU(8, 8, 2, bidirectional=True),
    "RNN": lambda: nn.RNN(8, 8, nonlinearity="relu"),
    "projection": lambda: nn.LSTM(8, 8, proj_size=4),
    "tagger": Tagger,
    "cells": Cells,
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # eager's own, from PyTorch 2.15 on
@pytest.mark.parametrize("name", MODELS)
def test_recurrent_modules_are_captured_in_inference(name: str) -> None:
    """A recurrent module, alone and inside a model, is one graph for the hub without any setting of PyTorch's."""
    model = MODELS[name]().eval()
    assert not torch._dynamo.config.allow_rnn
    compiled = torch.compile(model, backend="hub", options=EAGER)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    assert len(hub.plans(compiled)) == 1
    assert hub.plans(compiled)[0].backends == ("eager",)
    assert not torch._dynamo.config.allow_rnn


def test_a_backend_runs_a_recurrent_model_for_the_hub() -> None:
    """A compiler gets the whole of a recurrent model."""
    model = Tagger().eval()
    compiled = torch.compile(model, backend="hub", options={"tune": "off", "backends": ["onnxruntime"]})
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-4, atol=1e-5)
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("onnxruntime",)
    assert not [event for event in plan.events if event.kind in ("failed", "fallback")]


def test_another_backend_of_the_process_gets_what_pytorch_gives_it() -> None:
    """PyTorch leaves recurrent modules to eager for other backends, whatever the hub captured, and after a reset too.

    From 2.15 on it compiles what is around them, in parts.
    """
    model, counter, alone = Tagger().eval(), CompileCounter(), CompileCounter()
    with torch.no_grad():
        torch.compile(model, backend=alone)(X)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="hub", options=EAGER)
    other = torch.compile(model, backend=counter)
    for turn in (1, 2):
        with torch.no_grad():
            compiled(X)
            torch.testing.assert_close(other(X), model(X))
        assert len(hub.plans(compiled)) == 1
        assert counter.frame_count == turn * alone.frame_count
        torch._dynamo.reset()


def test_other_sizes_are_captured_too() -> None:
    """A recurrent model is captured again, with symbolic sizes, where a sequence has another length."""
    model = Tagger().eval()
    compiled = torch.compile(model, backend="hub", options=EAGER)
    with torch.no_grad():
        for length in (5, 7, 9):
            x = torch.randn(2, length, 8)
            torch.testing.assert_close(compiled(x), model(x))
    assert 1 <= len(hub.plans(compiled)) <= 2


def test_in_training_a_recurrent_module_stays_in_eager_and_a_warning_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the model calls besides is compiled for training, and inference is captured whole."""
    monkeypatch.setattr(frames, "_warned", set[str]())
    model = nn.Sequential(Front(), Tagger())
    compiled = torch.compile(Whole(model), backend="hub", options=EAGER)
    with pytest.warns(HubWarning, match=r"nn\.LSTM runs in eager.*\n.*torch\.no_grad\(\)") as caught:
        for _ in range(3):
            compiled(X).sum().backward()
    assert len([one for one in caught if issubclass(one.category, HubWarning)]) == 1
    assert {plan.mode for plan in hub.plans(compiled)} == {"forward", "backward"}
    found = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    for _ in range(3):
        model(X).sum().backward()
    torch.testing.assert_close(found, [weight.grad for weight in model.parameters()])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X), model(X))
    (plan,) = [plan for plan in hub.plans(compiled) if plan.mode == "inference"]
    assert "lstm" in str(plan.clusters[0].operators)


def test_a_user_who_allows_it_trains_recurrent_modules_compiled() -> None:
    """PyTorch's own setting counts."""
    model = nn.RNN(8, 4)
    compiled = torch.compile(model, backend="hub", options=EAGER)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled(X[:, :2])[0].sum().backward()
    assert {plan.mode for plan in hub.plans(compiled)} == {"forward", "backward"}


def test_packed_sequences_are_right_and_the_plans_have_what_is_around_them() -> None:
    """Lengths are values, on which PyTorch's capture stops: the layer runs in eager, the rest is captured."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(8, 8, batch_first=True)
            self.classify = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
            return self.classify(padded)

    model, inputs = Packed().eval(), (X, torch.tensor([5, 3]))
    compiled = torch.compile(model, backend="hub", options=EAGER)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    assert "linear" in str(operators(compiled))


def test_a_frozen_recurrent_model_runs_its_plan() -> None:
    """`hub.freeze` takes a recurrent model."""
    model = Tagger().eval()
    frozen = hub.freeze(torch.compile(model, backend="hub", options=EAGER), X)
    with torch.no_grad():
        torch.testing.assert_close(frozen(X), model(X))
