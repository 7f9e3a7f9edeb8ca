"""PyTorch's default device is the user's choice: the hub's own tensors lie on the device that they need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import hub
from hub.discovery.registry import registry
from hub.plugin.graph import Cluster
from hub.pricing.profile import measure_peaks
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import b, call, f, i64
from hub.verification.inputs import KINDS, Kind, generated
from hub.verification.reference import Reference
from tests.toys import toy

CASES = {
    "floats and booleans": ("aten.where.self", call(b(5, 3), f(5, 3), f(5, 3))),
    "integers": ("aten.add.Tensor", call(i64(5, 3), i64(5, 3))),
}


@pytest.fixture
def default() -> Iterator[None]:
    """Set a default device without memory, so that a tensor made on it by mistake holds nothing."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def drawn(kind: Kind, cluster: Cluster, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return list(generated(kind, cluster, inputs))


@pytest.mark.usefixtures("default")
def test_the_cpu_is_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device's peaks must not be taken for its own."""
    seen: list[torch.Tensor] = []
    monkeypatch.setattr("hub.pricing.profile.fastest_s", lambda call: seen.append(call()) or 1.0)  # pyright: ignore[reportUnknownLambdaType]
    measure_peaks(torch.get_num_threads())
    assert [value.device.type for value in seen] == ["cpu", "cpu"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_generated_inputs_are_the_same_ones(kind: Kind, case: str) -> None:
    """In every process, whatever its default device is."""
    cluster, inputs = case_cluster(*CASES[case])
    wanted = drawn(kind, cluster, inputs)
    with torch.device("meta"):
        found = drawn(kind, cluster, inputs)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def test_nudged_references_are_the_same_ones() -> None:
    """They say how far eager can be trusted."""
    cluster, inputs = case_cluster("aten.tanh.default", call(f(5, 3)))
    wanted = Reference(cluster, inputs).nudged(1e-3)
    with torch.device("meta"):
        found = Reference(cluster, inputs).nudged(1e-3)
    assert len(found) == len(wanted) > 0
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_model_runs_compiled_under_any_default_device(request: pytest.FixtureRequest, install_plugin: Any) -> None:
    """It is planned, verified and run on the device of its own values."""
    install_plugin("toy", toy())
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = model(x)
        request.getfixturevalue("default")
        compiled: Any = torch.compile(model, backend="hub", options={"backends": ["toy"], "isolate": False})  # pyright: ignore[reportUnknownMemberType]
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-4)
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("toy",)
    assert not [event for event in plan.events if event.kind in ("failed", "fallback")]


@pytest.mark.parametrize("backend", [name for name in registry().available() if name != "mdla"])
def test_backends_keep_what_they_make_on_their_own_device(backend: str) -> None:
    """A buffer for a result without memory would be written to, too: ONNX Runtime ended processes in that way."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Softmax(-1)).eval()
    x = torch.randn(8, 16)
    options = {"backends": [backend], "tune": "off", "start": "wait"}
    with torch.no_grad():
        wanted = model(x)
        compiled: Any = torch.compile(model, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType]
        direct = hub.compile(model, options=options)
        with torch.device("meta"):
            for one in (compiled, direct, compiled, direct):
                torch.testing.assert_close(one(x), wanted, rtol=1e-4, atol=1e-5)
            frozen = hub.freeze(direct, x)
            torch.testing.assert_close(frozen(x), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(frozen(x), wanted, rtol=1e-4, atol=1e-5)
    for plan in (*hub.plans(compiled), *hub.plans(direct)):
        assert plan.backends == (backend,)
        assert not [event for event in plan.events if event.kind in ("failed", "fallback")]


class _Doubled(TorchFunctionMode):
    """A mode of the user's that doubles every `relu`, so that a model run twice under it is noticed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.relu else found


@pytest.mark.parametrize("start", ["eager", "wait"])
def test_a_mode_of_the_users_acts_once(start: str) -> None:
    """On the captured program, and not again on each operator that the plan, or eager in its place, runs."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x), -1)

    x = torch.randn(4, 16)
    options = {"backends": ["onnxruntime"], "tune": "off", "start": start}
    compiled: Any = torch.compile(run, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType]
    for one in (compiled, hub.compile(run, options=options)):
        one(x)
        for is_doubled in (True, True, False, True, False):
            with torch.no_grad(), _Doubled() if is_doubled else contextlib.nullcontext():
                torch.testing.assert_close(one(x), run(x), rtol=1e-4, atol=1e-5)
            hub.wait(one, 60)
