"""While the hub plans, other threads of the program notice nothing of it, and lose nothing that they write."""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import fx, nn

import hub
from hub.discovery.registry import registry
from hub.errors import HubWarning
from hub.frontend.compiled import CompiledGraph
from hub.frontend.dynamo import hub_backend
from hub.process import state

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

Step = Callable[[int], str]
"""What a thread does repeatedly: takes the number of the step, and returns what is wrong, or ""."""
SEED = 7
PLUGIN = """
import os
from hub import Backend, BackendInfo, Executable, Support, hookimpl

{at_import}

@hookimpl
def hub_backends():
    return [BackendInfo(name="meddler", factory="hub_meddler:Meddler", summary="")]

class Meddler(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return Run(cluster)

    def load(self, folder, cluster, settings):
        {at_load}
        return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        return [value + 0 for value in self.module(*inputs)]

    def save(self, folder):
        (folder / "nothing").write_text("")
"""
WRITE = "os.environ['MEDDLER_WAS_HERE'] = '1'"


def net() -> nn.Module:
    """Return a small model with parts that every backend supports."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4), nn.Softmax(-1)).eval()


def compiled_beside(
    model: nn.Module, steps: Sequence[Step], **options: Any
) -> tuple[Callable[..., Any], list[CompiledGraph]]:
    """Return a compiled model whose captured graph is planned, and called, while other threads run; and that graph.

    The threads run in the calls alone: Dynamo itself resets Python's and PyTorch's random numbers after each capture,
    regardless of the backend.
    """
    graphs: list[CompiledGraph] = []

    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = hub_backend(module, inputs, options=options)
        assert isinstance(graph, CompiledGraph)
        graphs.append(graph)

        def call(*arguments: Any) -> Any:
            with beside(*steps):
                return graph(*arguments)

        return call

    return torch.compile(model, backend=backend), graphs  # pyright: ignore


class Neighbour:
    """A thread that does one thing repeatedly; what it finds wrong is in `faults`."""

    def __init__(self, step: Step) -> None:
        self.steps = 0
        self.faults: list[str] = []
        self._step, self._stop = step, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            try:
                fault = self._step(self.steps)
            except Exception as error:  # noqa: BLE001 - the test reports any exception
                fault = f"{type(error).__name__}: {error}"
            self.faults += [fault] if fault else []
            self.steps += 1

    def end(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()


@contextmanager
def beside(*steps: Step) -> Iterator[list[Neighbour]]:
    """Run one thread for each step while the body runs; fail for what any of them found."""
    neighbours = [Neighbour(step) for step in steps]
    try:
        yield neighbours
    finally:
        for neighbour in neighbours:
            neighbour.end()
    assert [neighbour.faults[:3] for neighbour in neighbours if neighbour.faults] == []
    assert all(neighbour.steps > 3 for neighbour in neighbours), "a thread was kept from running"


def drawing(draw: Callable[[], Any], seed: Callable[[int], Any]) -> tuple[Step, Callable[[], str]]:
    """Return a step that draws a random number, and a function that reports where the sequence was broken."""
    seen: list[Any] = []

    def step(_: int) -> str:
        seen.append(draw())
        return ""

    def verdict() -> str:
        seed(SEED)
        broken = next((place for place, value in enumerate(seen) if draw() != value), None)
        return "" if broken is None else f"draw {broken} of {len(seen)} is not the seeded sequence's"

    seed(SEED)
    return step, verdict


def writes_the_environment(number: int) -> str:
    """Write a variable, and check whether the one written before is still there."""
    found = os.environ.get("MY_COUNTER")
    os.environ["MY_COUNTER"] = str(number)
    return "" if number == 0 or found == str(number - 1) else f"the variable is {found}, {number - 1} was written"


def filters_warnings(number: int) -> str:
    """Add a filter for one message, and check whether the one added before is still there."""
    texts = [entry[1].pattern for entry in warnings.filters if entry[1] is not None]
    warnings.filterwarnings("ignore", message=f"mine {number}!")
    return "" if number == 0 or f"mine {number - 1}!" in texts else f"filter {number - 1} is gone"


def uses_modes(number: int) -> str:
    """Use modes of its own, and check whether a product is as it should be."""
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.ones(4, 4) @ torch.ones(4, 4)
    return "" if product.dtype == torch.bfloat16 and not torch.is_autocast_enabled("cpu") else f"{product.dtype}"


def looks_for_compilers(_: int) -> str:
    """Check whether PyTorch reports that a compilation is running."""
    return "is_compiling() is True" if torch.compiler.is_compiling() else ""


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_planning_disturbs_no_other_thread(tune: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers, variables, folders, filters, modes and compiled models of other threads are theirs alone."""
    monkeypatch.setenv("MY_COUNTER", "")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()

    def changes_folder(number: int) -> str:
        found = Path.cwd()
        os.chdir(folders[number % 2])
        return "" if number == 0 or found == folders[(number - 1) % 2] else f"the working directory is {found}"

    model, other, x = net(), net(), torch.randn(16, 8)
    call_other = torch.compile(other, backend="hub", options={"backends": ("onnxruntime",), "tune": "off"})  # pyright: ignore
    with torch.no_grad():
        call_other(x)

    def calls_another_model(_: int) -> str:
        with torch.no_grad():
            return "" if torch.allclose(call_other(x), other(x), atol=1e-6) else "another model is wrong"

    kinds = {
        "Python": drawing(random.random, random.seed),
        "NumPy": drawing(lambda: float(numpy.random.rand()), numpy.random.seed),
        "PyTorch": drawing(lambda: float(torch.rand(())), torch.manual_seed),
    }
    monkeypatch.chdir(tmp_path)
    steps = (writes_the_environment, filters_warnings, changes_folder, uses_modes, looks_for_compilers, calls_another_model)
    call, graphs = compiled_beside(
        model,
        (*(step for step, _ in kinds.values()), *steps),
        tune=tune,
        backends=("disc", "inductor", "onnxruntime", "openvino"),
        budget_s=6,
    )
    with warnings.catch_warnings(), torch.no_grad():
        found = call(x)
    torch.testing.assert_close(found, model(x))
    assert {name: verdict() for name, (_, verdict) in kinds.items()} == dict.fromkeys(kinds, "")
    (plan,) = [graph.plan for graph in graphs]
    assert plan is not None
    assert set(plan.backends) - {"eager"}
    assert [event for event in plan.events if event.kind in ("failed", "fallback")] == []


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    """Compile a model with the plugin alone, by estimates."""
    return torch.compile(model, backend="hub", options={"backends": ("meddler",), "tune": "off", **options})  # pyright: ignore


def test_what_loading_changes_is_refused_beside_other_threads(install_plugin: Any) -> None:
    """A worker knows what loading changes; if other threads would notice, the cluster runs in eager, for that reason."""
    install_plugin("meddler", PLUGIN.format(at_import="", at_load=WRITE))
    model, x = net(), torch.randn(16, 8)
    told = pytest.warns(HubWarning, match=r"meddler.*changes the environment \(MEDDLER_WAS_HERE\), which other threads")
    with torch.no_grad(), beside(writes_the_environment), told:
        found = compiled(model)(x)
    torch.testing.assert_close(found, model(x))
    assert "MEDDLER_WAS_HERE" not in os.environ
    with torch.no_grad():  # alone, what it changes can be told from what others change, and is restored
        torch._dynamo.reset()
        call = compiled(model)
        torch.testing.assert_close(call(x), model(x))
    (plan,) = hub.plans(call)
    assert "meddler" in plan.backends
    assert "MEDDLER_WAS_HERE" not in os.environ


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_importing_changes_is_known_before(
    is_alone: bool, install_plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child process imports a plugin first: while other threads run, one that changes the process is refused by name."""
    install_plugin("meddler", PLUGIN.format(at_import=WRITE, at_load="pass"))
    monkeypatch.setattr(state, "is_alone", lambda: is_alone)
    entry = registry().entries["meddler"]
    assert "MEDDLER_WAS_HERE" not in os.environ
    assert entry.status.accepted == is_alone
    text = entry.note if is_alone else entry.status.reason
    assert "the environment (MEDDLER_WAS_HERE)" in text


def test_state_of_other_threads_is_neither_compared_nor_restored() -> None:
    """While other threads run, a block is not blamed for their changes, and their changes stay."""
    seen: list[list[str]] = []
    random.seed(SEED)
    with beside(writes_the_environment):
        with state.kept_state() as changed:
            first = random.random()
            grad = torch.is_grad_enabled()
            torch.set_grad_enabled(not grad)
        seen.append(changed)
        assert torch.is_grad_enabled() == grad, "the calling thread's own state is restored"
        threading.Event().wait(0.05)
    assert seen == [["whether gradients are on"]]
    assert random.random() != first
    del os.environ["MY_COUNTER"]


@pytest.mark.slow
def test_eight_threads_compile_different_models_at_once() -> None:
    """Each gets eager's answer from its own plan, and a ninth thread keeps what it writes."""
    gate = threading.Barrier(8)
    faults: list[str] = []

    def compile_one(number: int) -> None:
        model = nn.Sequential(nn.Linear(8, 16 + number), nn.GELU(), nn.Linear(16 + number, 4), nn.Softmax(-1)).eval()
        options = {"backends": ("disc", "onnxruntime"), "tune": "off"}
        call = torch.compile(model, backend="hub", options=options)  # pyright: ignore
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
        gate.wait()
        try:
            with torch.no_grad():
                for _ in range(3):
                    torch.testing.assert_close(call(x), model(x))
            (plan,) = hub.plans(call)
            assert set(plan.backends) - {"eager"}, plan.backends
        except Exception as error:  # noqa: BLE001 - reported below
            faults.append(f"model {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=compile_one, args=(number,)) for number in range(8)]
    with beside(writes_the_environment):  # PyTorch itself resets filters of warnings while it captures
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert faults == []
    del os.environ["MY_COUNTER"]


@pytest.mark.parametrize("name", ["disc", "inductor", "iree", "onnxruntime", "openvino", "tvm", "xla"])
def test_loading_a_backends_library_changes_nothing_that_threads_share(name: str) -> None:
    """Each backend that comes with the hub serves while other threads run: a worker finds nothing that it changes."""
    pytest.importorskip({"disc": "torch_mlir", "inductor": "torch", "iree": "iree", "xla": "jaxlib"}.get(name, name))
    model, x = net(), torch.randn(16, 8)
    call = torch.compile(model, backend="hub", options={"backends": (name,), "tune": "off"})  # pyright: ignore
    with torch.no_grad(), beside(writes_the_environment):
        torch.testing.assert_close(call(x), model(x))
    del os.environ["MY_COUNTER"]
    (plan,) = hub.plans(call)
    assert name in plan.backends
    assert [event.message for event in plan.events if event.kind != "note" or "changed" in event.message] == []
