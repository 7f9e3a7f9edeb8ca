"""A call that an executable did not finish is repeated in eager, unless the executable has written to its inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from hub.dispatch.assemble import Assembled, Loaded, Shadow, assemble
from hub.errors import ContractError, InputRefused
from hub.partition.extract import extract
from hub.partition.group import Group
from hub.planning.steps import plain_names, steps_for
from hub.plugin.graph import Graph
from hub.testing.single import capture

Wrap = Callable[[Any], Callable[..., Any]]


class Net(torch.nn.Module):
    """Two operators, each a cluster of its own."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y).sigmoid()


X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 4)
Told = list[tuple[str, str, bool]]


@cache
def captured() -> Graph:
    """Return the graph."""
    return capture(Net(), (X, Y)).graph


def good(module: Any) -> Any:
    """Return an executable without a fault."""
    return module


def plan(first: Wrap, last: Wrap = good, **how: Any) -> tuple[Assembled, Told]:
    """Return a plan of two clusters, whose executables are made from their modules, and the failures that it reports."""
    graph = captured()
    names = [node.name for node in graph.nodes]
    groups = [Group("odd", tuple(names[:2])), Group("odd", tuple(names[2:]))]
    steps = steps_for(graph, groups, plain_names(groups))
    loaded: dict[str, Loaded] = {}
    for step, found, wrap in zip(steps, groups, (first, last), strict=True):
        cluster = extract(graph, found.nodes, step.name, {})
        loaded[step.name] = Loaded(cluster, "odd", wrap(cluster.module))
    told: Told = []

    def report(backend: str, cluster: str, error: BaseException, /, *, is_final: bool) -> None:
        told.append((cluster, type(error).__name__, is_final))

    return assemble(graph, steps, loaded, report=report, **how), told


def given() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs that a test may overwrite."""
    return X.clone(), Y.clone()


def raising(error: BaseException, *, writes: bool, after: int = 0) -> Wrap:
    """Return a factory of executables that raise after some good calls, and may write to the first input before."""

    def wrap(module: Any) -> Callable[..., Any]:
        n_calls = 0

        def run(*inputs: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            if n_calls <= after:
                return [value + 0 for value in module(*inputs)]
            if writes:
                inputs[0].mul_(2)
            raise error

        return run

    return wrap


def is_right(outputs: tuple[Any, ...]) -> bool:
    """Return True if the result is eager's."""
    return torch.equal(outputs[0], Net()(X, Y))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("error", [ValueError("odd"), InputRefused("odd"), MemoryError("odd")])
@pytest.mark.parametrize("place", ["c0", "c1"])
def test_a_call_whose_input_is_spoilt_is_an_error(place: str, error: Exception, strict: bool) -> None:
    """It names the input, of the model or in between, and the cause; the next call is right and without the executable."""
    bad = raising(error, writes=True)
    assembled, told = plan(*((bad, good) if place == "c0" else (good, bad)), strict=strict)
    with pytest.raises(ContractError, match=r"wrote to its input .*odd") as caught:
        assembled.run(given())
    assert (caught.value.backend, caught.value.cluster, caught.value.__cause__) == ("odd", place, error)
    if not strict:
        assert told == [(place, "ContractError", True)]
        assert is_right(assembled.run(given()))


@pytest.mark.parametrize(
    ("error", "is_final"), [(ValueError(), True), (InputRefused("odd"), False), (MemoryError(), False)]
)
def test_a_call_whose_inputs_are_unharmed_is_repeated(error: Exception, is_final: bool) -> None:
    """Whatever was raised; values that are refused, and a lack of memory, end this call only."""
    assembled, told = plan(raising(error, writes=False))
    inputs = given()
    inputs[0].add_(0)  # what the user has written counts for nothing
    assert is_right(assembled.run(inputs))
    assert is_right(assembled.run(inputs))
    assert told == [("c0", type(error).__name__, is_final)] * (1 if is_final else 2)


def test_an_input_of_another_dtype_is_no_verdict() -> None:
    """Some of eager's kernels return other dtypes than fake tensors announce: no executable was made for such calls."""
    assembled, told = plan(raising(ValueError("odd"), writes=False))
    x, y = X.double(), Y.double()
    for _ in range(2):
        assert torch.equal(assembled.run((x, y))[0], Net()(x, y))
    assert told == [("c0", "ValueError", False)] * 2


def test_shadow_mode_restores_what_it_checks() -> None:
    """A checked call is repeated in eager on restored inputs; in one that is not checked, a written input is an error."""
    checked, told = plan(raising(ValueError(), writes=True), shadow=Shadow(1.0))
    inputs = given()
    assert is_right(checked.run(inputs))
    assert torch.equal(inputs[0], X)
    assert told == [("c0", "ValueError", True)]
    unchecked, _ = plan(raising(ValueError(), writes=True, after=1), shadow=Shadow(1e-9))
    assert is_right(unchecked.run(given()))
    with pytest.raises(ContractError, match="wrote to its input"):
        unchecked.run(given())


def test_shadow_mode_puts_away_who_writes_and_refuses() -> None:
    """A refusal alone would leave it in use."""
    assembled, told = plan(raising(InputRefused("odd"), writes=True), shadow=Shadow(1.0))
    assert is_right(assembled.run(given()))
    assert told == [("c0", "ContractError", True)]


@pytest.mark.parametrize("wrap", [good, raising(ValueError(), writes=False)])
def test_inference_mode_counts_nothing(wrap: Wrap) -> None:
    """Tensors have no version there: plans run, and fall back, without."""
    assembled, told = plan(wrap)
    with torch.inference_mode():
        assert is_right(assembled.run(given()))
    assert told == ([] if wrap is good else [("c0", "ValueError", True)])


@pytest.mark.parametrize("place", ["c0", "c1"])
def test_tensors_of_inference_mode_may_come_from_outside(place: str) -> None:
    """They cost no executable its place, and one that fails on them is reported as usual."""
    assembled, told = plan(good)
    with torch.inference_mode():
        inputs = given()
    assert is_right(assembled.run(inputs))
    assert not told
    bad = raising(ValueError(), writes=False)
    assembled, told = plan(*((bad, good) if place == "c0" else (good, bad)))
    assert is_right(assembled.run(inputs))
    assert told == [(place, "ValueError", True)]


# --- While a CUDA graph is recorded -----------------------------------------------------------------------------------


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make calls run as if a stream were being recorded."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.usefixtures("recording")
def test_what_no_recording_may_hold_is_no_fault() -> None:
    """The recording ends, and no backend is disabled."""
    assembled, told = plan(raising(RuntimeError("operation not permitted when stream is capturing"), writes=False))
    with pytest.raises(RuntimeError, match="not permitted"):
        assembled.run(given())
    assert told == []


@pytest.mark.usefixtures("recording")
def test_values_that_are_refused_are_recorded_in_eager() -> None:
    """As guards of finite inputs do, which cannot look at values then."""
    assembled, _ = plan(raising(InputRefused("cannot look"), writes=False))
    (found,) = assembled.run(given())
    assert torch.equal(found, Net()(X, Y))
