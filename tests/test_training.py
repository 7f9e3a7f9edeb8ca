"""Training through the hub follows eager: loss and every gradient, step after step."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import hub
from hub.discovery.registry import registry

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),  # Inductor's own imports
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # Dynamo, GPT-2
]

hf: Any = transformers
STEPS = 5
TRAINING = [name for name in registry().available() if registry().entries[name].info.training]

Batch = Callable[[int], dict[str, torch.Tensor]]


class Classifier(nn.Module):
    """A network on x with a cross-entropy loss against y."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), y)


class Language(nn.Module):
    """A language model with its own loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=ids, labels=ids).loss


class Block(nn.Module):
    """A residual block with batch norm."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outward), nn.BatchNorm2d(outward)])
        self.skip = nn.Conv2d(inward, outward, 1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.skip(x)).relu()


def mlp() -> tuple[nn.Module, Batch]:
    """Return three layers with a norm between."""
    body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    return Classifier(body), _labelled(6, 8, classes=4)


def resnet() -> tuple[nn.Module, Batch]:
    """Return a small ResNet with batch norm in train mode."""
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8, 1), Block(8, 16, 2)]
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    return Classifier(body), _labelled(4, 3, 12, 12, classes=4)


def gpt2() -> tuple[nn.Module, Batch]:
    """Return a small GPT-2, head and embedding tied, without dropout."""
    config = hf.GPT2Config(
        vocab_size=61,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return Language(hf.GPT2LMHeadModel(config)), lambda step: {"ids": torch.randint(0, 61, (2, 9), generator=_seeded(step))}


def _labelled(*shape: int, classes: int) -> Batch:
    def batch(step: int) -> dict[str, torch.Tensor]:
        generator = _seeded(step)
        x = torch.randn(shape, generator=generator)
        return {"x": x, "y": torch.randint(0, classes, shape[:1], generator=generator)}

    return batch


def _seeded(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + step)


MODELS = {"mlp": mlp, "resnet": resnet, "gpt2": gpt2}


def trained(model: nn.Module, call: Any, batch: Batch, optimizer: torch.optim.Optimizer) -> list[dict[str, torch.Tensor]]:
    """Train for some steps; return loss and gradients of each step, by name."""
    steps: list[dict[str, torch.Tensor]] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = call(**batch(step))
        loss.backward()
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        steps.append({"loss": loss.detach().clone(), **gradients})
        optimizer.step()
    return steps


def check_follows_eager(name: str, **options: Any) -> Any:
    """Train a model compiled and a copy of it in eager; return the compiled one. Raise AssertionError if they differ."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    twin = copy.deepcopy(model)
    call = torch.compile(model.train(), backend="hub", options={"tune": "off", **options})
    mine = trained(model, call, batch, torch.optim.SGD(model.parameters(), lr=0.05))
    eager = trained(twin.train(), twin, batch, torch.optim.SGD(twin.parameters(), lr=0.05))
    for step, (left, right) in enumerate(zip(mine, eager, strict=True)):
        assert left.keys() == right.keys()
        for key in right:
            torch.testing.assert_close(left[key], right[key], rtol=1e-4, atol=2e-5, msg=f"step {step}: {key}")
    for left, right in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=2e-5)
    return call


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet", "gpt2"))])
def test_training_follows_eager(name: str) -> None:
    """Loss, every gradient and every buffer match eager over 5 optimizer steps; forward and backward are planned."""
    call = check_follows_eager(name)
    assert {"forward", "backward"} <= {plan.mode for plan in hub.plans(call)}


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[pytest.mark.slow] * (name == "inductor")) for name in TRAINING]
)
@pytest.mark.parametrize("name", MODELS)
def test_training_on_one_backend_follows_eager(name: str, backend: str) -> None:
    """With one backend named, it runs clusters of the forward and of the backward graph, and training follows eager."""
    call = check_follows_eager(name, backends=(backend,))
    used = {plan.mode: plan.backends for plan in hub.plans(call)}
    assert backend in used["forward"]
    assert backend in used["backward"]


def test_inputs_may_need_gradients() -> None:
    """The gradient of an input is eager's."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    call = torch.compile(model, backend="hub", options={"tune": "off"})
    gradients: list[torch.Tensor] = []
    for function in (model, call):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        function(x).square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_training_then_inference() -> None:
    """A trained model returns, without gradients, results of its current weights."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    call = torch.compile(model, backend="hub", options={"tune": "off"})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(3, 4)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x))
        optimizer.zero_grad()
        call(x).sum().backward()
        optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))


def test_frozen_parts_get_no_gradient() -> None:
    """Parameters that need no gradient get none, and the others get eager's."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    twin = copy.deepcopy(model)
    x = torch.randn(3, 4)
    torch.compile(model, backend="hub", options={"tune": "off"})(x).sum().backward()
    twin(x).sum().backward()
    assert model[0].weight.grad is None
    torch.testing.assert_close(model[2].weight.grad, twin[2].weight.grad)


class Teacher(nn.Module):
    """A student, and a teacher whose weights follow the student's within the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for own, followed in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                own.lerp_(followed, 0.1)
        return self.student(x) - self.teacher(x).detach()


@pytest.mark.filterwarnings("ignore:capture. the program writes")
@pytest.mark.parametrize("entry", [hub.compile, functools.partial(torch.compile, backend="hub")])
def test_weights_written_without_gradients_get_none(entry: Callable[..., Any]) -> None:
    """An optimizer over all parameters leaves the teacher where the forward put it."""
    torch._dynamo.reset()
    model = Teacher()
    expected = copy.deepcopy(model)
    compiled = entry(model, options={"tune": "off", "start": "wait"})
    x = torch.randn(3, 4)
    for one, call in ((model, compiled), (expected, expected)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1, weight_decay=0.5)
        for _ in range(4):
            call(x).square().sum().backward()
            assert one.teacher.weight.grad is None
            optimizer.step()
            optimizer.zero_grad()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name])
    (event,) = hub.plans(compiled)[0].events
    assert "writes, without recording gradients, to a weight that needs them" in event.message
