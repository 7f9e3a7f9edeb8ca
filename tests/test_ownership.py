"""`hub.plans` returns the plans of its compiled model, and of no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hub

X = torch.randn(3, 16)


class Net(nn.Module):
    """A layer and its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def compiled(what: Any, backend: str) -> Any:
    """Compile for one backend without measuring, and call once."""
    call = torch.compile(what, backend="hub", options={"tune": "off", "backends": [backend]})
    with torch.no_grad():
        call(X)
    return call


def backends_of(call: Any) -> list[tuple[str, ...]]:
    """Return the backends of each plan."""
    return [plan.backends for plan in hub.plans(call)]


@pytest.fixture(autouse=True)
def _nothing_captured() -> None:
    torch.compiler.reset()


def test_one_model_compiled_twice() -> None:
    """A model that is compiled with two sets of options has the plan of each under its own compiled form."""
    model = Net().eval()
    first, second = compiled(model, "onnxruntime"), compiled(model, "openvino")
    assert backends_of(first) == [("onnxruntime",)]
    assert backends_of(second) == [("openvino",)]


def test_two_models_of_one_class() -> None:
    """Models of one class with equal options share a graph, and each finds its plan; one of other options does not."""
    calls = [compiled(Net().eval(), backend) for backend in ("onnxruntime", "onnxruntime", "openvino")]
    assert [backends_of(call) for call in calls] == [[("onnxruntime",)], [("onnxruntime",)], [("openvino",)]]


def test_functions_over_modules() -> None:
    """A function has the plans of its graphs, although it is unknown which modules it reads."""
    inner = Net().eval()
    call = compiled(lambda x: inner(x) + 1, "onnxruntime")
    assert backends_of(call) == [("onnxruntime",)]
