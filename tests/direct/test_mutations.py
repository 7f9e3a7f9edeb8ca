"""What `hub.compile` notices: for every guard of Dynamo's, each change that could make it fail. Never a stale answer."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.frontend.direct import program as program_module
from hub.frontend.direct.compile import program_of
from hub.frontend.direct.reads import Unwatched
from hub.frontend.direct.trial import Pause
from tests.direct.answers import assert_same, outcome
from tests.direct.guards import Change, Guards, changes_of, settings

OPTIONS = {"tune": "off", "start": "wait", "backends": []}


class Mode(enum.Enum):
    """An attribute that is a member of an enumeration."""

    FAST = 2.0
    SLOW = 3.0


@dataclasses.dataclass
class Config:
    """An attribute that is an object, with parts of many kinds."""

    scale: float = 1.5
    sizes: list[int] = dataclasses.field(default_factory=lambda: [2, 3])
    flags: dict[str, Any] = dataclasses.field(default_factory=lambda: {"add": True, "inner": {"by": 0.5}})
    name: str = "plain"
    none: Any = None


FACTOR = 1.25
TABLE = {"a": 1.0, "b": [2.0, 3.0]}


def shifted(x: torch.Tensor, by: float = 0.5, *, times: float = 2.0) -> torch.Tensor:
    """Return shifted values; a function of this module, with defaults."""
    return (x + by) * times


def made(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that keeps a number in a cell."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * by

    return scaled


class Block(nn.Module):
    """A part with a class attribute, a property, a buffer and one that is None."""

    gain = 1.5

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4))
        self.register_buffer("absent", None)

    @property
    def shift(self) -> float:
        """Return a number that is read through a property."""
        return self.config.flags["inner"]["by"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute with all of it."""
        y = self.linear(x) * self.gain + self.shift
        if self.absent is not None:
            y = y * self.absent
        return y * self.mask if self.config.flags["add"] else y


class Model(nn.Module):
    """A module that reads from everything that Python code reads from."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.blocks = nn.ModuleList([Block(self.config), Block(self.config)])
        self.named = nn.ModuleDict({"norm": nn.LayerNorm(4), "act": nn.ReLU()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.numbers = [1.0, [2.0, 3.0]]
        self.pair = (1.0, {"x": 2.0})
        self.kinds = {"mode": Mode.FAST}
        self.space = types.SimpleNamespace(depth=2)
        self.scaled = made(0.75)
        self.loose = [torch.full((4,), 0.5)]
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute with all of it."""
        for block in self.blocks:
            x = block(x) * self.numbers[1][0]
        x = self.named["act"](self.named["norm"](x)) + self.weights[0] + self.loose[0]
        x = self.dropout(shifted(x) * FACTOR + TABLE["b"][1] * TABLE["a"])
        if self.kinds["mode"] is Mode.FAST:
            x = x * self.kinds["mode"].value
        if self.config.name == "plain" and self.config.none is None and len(self.config.sizes) == 2:
            x = x * self.config.scale
        return self.scaled(x) * self.pair[1]["x"] + self.space.depth


def bert() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a small BERT and its inputs."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    return transformers.BertModel(config), (torch.randint(0, 20, (1, 5)),)


def mobilenet() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a small MobileNetV2 and its inputs."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32, num_labels=3)
    return transformers.MobileNetV2ForImageClassification(config), (torch.randn(1, 3, 32, 32),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "plain": lambda: (Model(), (torch.randn(2, 4),)),
    "bert": bert,
    "mobilenet": mobilenet,
}


def in_eager(function: Any, args: Any, kwargs: Any) -> Any:
    """Run in eager instead of Dynamo while something is changed."""
    return function(*args, **kwargs)


def arm(compiled: Any, args: tuple[Any, ...], name: str = "") -> None:
    """Call until calls bypass Dynamo."""
    program = program_of(compiled)
    for _ in range(5):
        program._pauses = {False: Pause(), True: Pause()}
        n_uses = program._n_uses
        compiled(*args)
        if program._n_uses > n_uses:
            return
    raise AssertionError(f"{name}: {program.why_dynamo}")


def check(compiled: Any, model: Any, args: tuple[Any, ...], change: Change) -> None:
    """Change something, call, undo, call: assert eager's answers, and that no call bypasses Dynamo after the change."""
    program = program_of(compiled)
    arm(compiled, args, f"before {change.name}")
    through_dynamo, program.compiled = program.compiled, in_eager
    n_uses = program._n_uses
    try:
        change.apply()
        try:
            for _ in range(2):
                program._pauses = {False: Pause(), True: Pause()}
                torch.manual_seed(0)
                found = outcome(compiled, args)
                torch.manual_seed(0)
                assert_same(found, outcome(model, args), change.name)
        finally:
            change.undo()
        assert program._n_uses in (0, n_uses) or change.is_noticed_by_graph, f"{change.name}: nobody noticed"
    finally:
        program.compiled = through_dynamo
    assert_same(outcome(compiled, args), outcome(model, args), f"{change.name}, undone")


LASTING = ("output_hidden_states", "output_attentions")
"""Settings that Transformers answers by hooks, which it leaves in the model."""


@pytest.mark.parametrize(
    ("name", "one_in", "way"),
    [
        ("plain", 1, "entry"),
        ("plain", 1, "general"),
        ("bert", 8, "entry"),
        ("bert", 8, "general"),
        pytest.param("bert", 1, "entry", marks=pytest.mark.slow),
        pytest.param("bert", 1, "general", marks=pytest.mark.slow),
        pytest.param("mobilenet", 64, "entry", marks=pytest.mark.slow),
        pytest.param("mobilenet", 64, "general", marks=pytest.mark.slow),
    ],
)
def test_every_guard_is_implied(name: str, one_in: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that could make a guard of Dynamo's fail takes the next call through Dynamo, and the answer is eager's."""
    guards = Guards(monkeypatch)
    if way == "general":
        monkeypatch.setattr(program_module, "_entry", lambda *_: Unwatched("", "not in this test"))
    model, args = MODELS[name]()
    compiled = hub.compile(model.eval(), options=OPTIONS)
    with torch.no_grad():
        arm(compiled, args)
        found = [
            one for one in changes_of(guards.found, program_of(compiled)) if not any(name in one.name for name in LASTING)
        ]
        changes = [*found[::one_in], *settings()]
        for change in changes:
            check(compiled, model, args, change)
        arm(compiled, args)
    assert len(changes) > 150
    assert bool(program_of(compiled)._armed.general) is (way == "general")
