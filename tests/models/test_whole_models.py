"""Real models through `torch.compile(model, backend="hub")` are as accurate as eager, however pieces are assigned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

import hub
from hub.discovery.registry import registry
from hub.planning import measure, race
from tests.models.builders import BUILDERS, Built, build
from tests.models.closeness import check_as_exact_as_eager
from tests.slices import NUMBER

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),  # Inductor's own imports
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),  # Mamba
]

BACKENDS = registry().available()
GRAPH_BREAKS = ("branching",)
"""Models of more than one graph."""
MEASURED = ("bert", "unet")
"""Models that are planned by measuring, too."""
COMPILED_SLOWLY = ("inductor",)
"""Backends that call a C++ compiler, often for a minute a model: in the default suite only with the models below."""
COMPILED_WHOLE_ELSEWHERE = ("iree", "tvm", "xla")
"""Backends that compile whole models in tests of their own: here, in the default suite, with one model each."""
COMPILED_FAST = ("unet", "lstm")
TAKES_LONGEST = ("mobilenet", "minilm", "t5", "mamba", "llama", "gpt2")
PAIRS = [(first, second) for position, first in enumerate(BACKENDS) for second in BACKENDS[position + 1 :]]
NEIGHBOURS = list(pairwise(BACKENDS))


@pytest.fixture(autouse=True)
def _recurrent_layers() -> Iterator[None]:
    """Let Dynamo capture recurrent layers, which it leaves in eager by default."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def compiled(built: Built, **options: Any) -> Any:
    """Compile a model with these options and run it twice; return the compiled model and the second result."""
    model = torch.compile(built.model, backend="hub", options=options)
    built.run(model)
    return model, built.run(model)


def is_slow(model: str, *backends: str) -> bool:
    """Return True if a combination takes too long for the default suite."""
    if model not in COMPILED_FAST and any(backend in COMPILED_SLOWLY for backend in backends):
        return True
    return model != "lstm" and any(backend in COMPILED_WHOLE_ELSEWHERE for backend in backends)


def combination(model: str, *backends: str, is_drawn: bool = True) -> Any:
    """Return the parameters of one test, marked slow if they are slow, or if others are tried in their place."""
    marks = [] if is_drawn and not is_slow(model, *backends) else [pytest.mark.slow]
    return pytest.param(model, *backends, marks=marks, id="-".join((model, *backends)))


def alone() -> Iterator[Any]:
    """Yield every backend with every model.

    The default suite takes half of them, the other half with the next commit, and the models that take longest with one.
    """
    for position, name in enumerate(BUILDERS):
        fast = [backend for backend in BACKENDS if not is_slow(name, backend)]
        drawn = fast[position % len(fast) :][:1] if name in TAKES_LONGEST else fast[(position + NUMBER) % 2 :: 2]
        yield from (combination(name, backend, is_drawn=backend in drawn) for backend in BACKENDS)


def alternations() -> Iterator[Any]:
    """Yield every pair with every model; the default suite takes most models with one pair, and one with all backends."""
    for position, name in enumerate(BUILDERS):
        fast = [pair for pair in PAIRS if not is_slow(name, *pair)]
        drawn = NEIGHBOURS if len(fast) == len(PAIRS) else fast[position % len(fast) :][:1]
        drawn = [] if name in TAKES_LONGEST else drawn
        yield from (combination(name, *pair, is_drawn=pair in drawn) for pair in PAIRS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in TAKES_LONGEST[:4])) for name in BUILDERS]
)
def test_planned_by_estimates(name: str) -> None:
    """A model planned without measuring gives what eager gives, and its plan covers it with no failure."""
    built = build(name)
    model, got = compiled(built, tune="off", exclude=COMPILED_SLOWLY)
    check_as_exact_as_eager(built, got)
    plans = hub.plans(model)
    assert plans
    assert (len(plans) > 1) == (name in GRAPH_BREAKS)
    assert not [event for plan in plans for event in plan.events if event.kind in ("failed", "fallback")]


@pytest.mark.parametrize("name", [MEASURED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MEASURED[1:])])
def test_planned_by_measuring(name: str) -> None:
    """A model planned by measuring gives what eager gives, and its plan tells the measured time."""
    built = build(name)
    model, got = compiled(built, tune="fast")
    check_as_exact_as_eager(built, got)
    assert all(plan.measured_s is not None for plan in hub.plans(model))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Set two threads: with one, there is no other number of threads to try."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_planned_by_measuring_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tune="full"` times real backends, with other threads and busy-waiting too; the plan is exact, and serves "fast"."""
    monkeypatch.setattr(race, "BLOCK_S", 0.02)
    monkeypatch.setattr(race, "MAX_ROUNDS", race.MIN_ROUNDS)
    monkeypatch.setattr(measure, "MAX_HEAT_S", 1.0)
    monkeypatch.setattr(measure, "MAX_PRICING_ROUNDS", 0)
    monkeypatch.setattr(measure, "MAX_MIXES", {"full": 1})
    monkeypatch.setattr(measure, "PROFILE_BUDGET_S", math.inf)
    names, built = ("onnxruntime", "openvino"), build("whisper")
    options = {"backends": names, "budget_s": 600.0}  # no machine uses it up
    model, got = compiled(built, tune="full", **options)
    check_as_exact_as_eager(built, got)
    (plan,) = hub.plans(model)
    assert (plan.decided_by, plan.effort) == ("measured whole plans", "full")
    assert not [event for event in plan.events if event.kind in ("failed", "fallback")]
    timed = [contender.name for contender in plan.contenders]
    assert "eager" in timed
    assert {name.partition(",")[0] for name in timed} & set(names), timed
    assert any(name.endswith("busy-waiting") for name in timed), timed
    assert any(name.endswith("1 thread") for name in timed), timed
    torch._dynamo.reset()
    model, got = compiled(built, tune="fast", **options)
    check_as_exact_as_eager(built, got)
    replayed = hub.plans(model)[-1]
    assert (replayed.decided_by, replayed.effort) == ("replayed", "full")
    assert replayed.contenders == plan.contenders


@pytest.mark.parametrize(("name", "backend"), list(alone()))
def test_forced_to_one_backend(name: str, backend: str) -> None:
    """With one backend named, everything that it takes goes to it, and the result is what eager gives."""
    built = build(name)
    model, got = compiled(built, backends=(backend,), tune="off")
    check_as_exact_as_eager(built, got)
    used = {used for plan in hub.plans(model) for used in plan.backends}
    assert backend in used
    assert used <= {backend, "eager"}
    assert not [event for plan in hub.plans(model) for event in plan.events if event.kind in ("failed", "fallback")]


@pytest.mark.parametrize(("name", "first", "second"), list(alternations()))
def test_forced_to_alternate(name: str, first: str, second: str) -> None:
    """With every other operator forced to one of two backends a mixed plan runs, and gives what eager gives."""
    built = build(name)
    operators = operators_of(built)
    force = {operator: (first, second)[index % 2] for index, operator in enumerate(operators)}
    torch._dynamo.reset()
    model, got = compiled(built, force=force, tune="off")
    check_as_exact_as_eager(built, got)
    assert {first, second} <= {backend for plan in hub.plans(model) for backend in plan.backends}


def operators_of(built: Built) -> list[str]:
    """Return the operators of a model, in order of first use, from a plan that runs everything in eager."""
    model, _ = compiled(built, exclude=BACKENDS, tune="off")
    names = [name for plan in hub.plans(model) for cluster in plan.clusters for name in cluster.operators]
    return [name for name in dict.fromkeys(names) if name.startswith("aten.")]


def test_builders_are_seeded() -> None:
    """Building a model twice gives equal weights and inputs."""
    first, second = build("bert"), build("bert")
    assert all(
        torch.equal(left, right) for left, right in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )
    assert torch.equal(first.args[0], second.args[0])
