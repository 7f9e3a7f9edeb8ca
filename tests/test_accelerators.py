"""Accelerators compute beside the CPU: whatever is timed ends when they have done their work.

None is at hand here: fake tensors lie on one, and a queue with a clock of its own stands in for what it still has to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from hub.accelerators import accelerators_of, wait_for_values
from hub.bench import worker
from hub.bench.closeness import Difference
from hub.bench.contenders import Contender
from hub.bench.models import LoadedModel
from hub.compilation import tasks
from hub.compilation.transfer import Sample
from hub.dispatch.assemble import Loaded
from hub.dispatch.codegen import Step, generate
from hub.graph import Graph
from hub.partition.extract import extract
from hub.pricing.eager import profile_eager
from hub.pricing.timing import time_call

CUDA = torch.device("cuda", 0)
CALL_S = 0.001
"""Seconds of the CPU that handing an operator over takes."""
WORK_S = 1.0
"""Seconds of the accelerator that an operator takes."""


class Queue(TorchDispatchMode):
    """An accelerator's work: operators on fake tensors on it take time, and nobody waits unless told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.busy_until_s = 0.0
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.now_s += CALL_S
        result = func(*args, **(kwargs or {}))
        if accelerators_of((result,)):
            self.give(WORK_S)
        return result

    def give(self, work_s: float) -> None:
        """Hands work over, which is done once what was given before is."""
        self.busy_until_s = max(self.now_s, self.busy_until_s) + work_s

    def synchronize(self, device: torch.device) -> None:
        """Waits."""
        assert device == CUDA
        self.waits += 1
        self.now_s = max(self.now_s, self.busy_until_s)

    def perf_counter(self) -> float:
        """Tells the time."""
        return self.now_s


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue that PyTorch's functions wait for, and whose clock those who time things read."""
    found = Queue()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "synchronize", found.synchronize)
    clock = SimpleNamespace(perf_counter=found.perf_counter)
    for module in ("pricing.timing", "pricing.eager", "compilation.tasks", "dispatch.assemble", "bench.worker"):
        monkeypatch.setattr(f"hub.{module}.time", clock)
    return found


def on(device: str, *shape: int) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(*shape, device=device)


def two_steps(device: str) -> Sample:
    """relu, then tanh; with fake values on a device."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.ops.aten.relu.default, (x,), name="first")
    second = graph.call_function(torch.ops.aten.tanh.default, (first,), name="second")
    graph.output((second,))
    value = on(device, 4, 4)
    for node in (x, first, second):
        node.meta["val"] = value
    return Sample(Graph(fx.GraphModule(torch.nn.Module(), graph), "two"), (value,))


STEPS = (Step("eager_0", "eager", ("first",), is_eager=True), Step("eager_1", "eager", ("second",), is_eager=True))


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A worker's state, of this test alone."""
    found = tasks._State()
    monkeypatch.setattr(tasks, "_state", found)
    yield found
    tasks.rest()


def test_accelerators_are_found_in_containers() -> None:
    """Each once, in order; what lies on the CPU, or nowhere, is waited for by nobody."""
    x, y, host = on("cuda:0", 2), on("cuda:1", 2), torch.empty(2)
    found = accelerators_of((host, {"a": [x, (y,)]}, 3, None, x, torch.empty(2, device="meta")))
    assert found == (torch.device("cuda:0"), torch.device("cuda:1"))


def test_values_on_the_cpu_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks PyTorch for an accelerator where nothing lies on one."""
    monkeypatch.setattr(torch, "accelerator", None)
    wait_for_values((torch.empty(2), [torch.empty(2)]))
    assert len(time_call(lambda: torch.empty(2), 0.0).samples_s) == 3


def test_a_device_that_pytorch_cannot_use_here_is_not_waited_for() -> None:
    """Values on it are simulated, or it has no way to wait."""
    if torch.accelerator.current_accelerator() is None:
        wait_for_values((on("cuda:0", 2),))


def test_a_call_takes_as_long_as_the_accelerator(queue: Queue) -> None:
    """Each sample has the work of its own call, and the first one nothing of the calls that warm up."""
    x = on("cuda:0", 2)
    with queue:
        assert time_call(lambda: torch.relu(x), 0.0).samples_s == pytest.approx([CALL_S + WORK_S] * 3)


@pytest.mark.parametrize("given", [True, False])
def test_a_call_that_gives_nothing_is_waited_for_where_it_is_told(queue: Queue, given: bool) -> None:
    """A step of training may give nothing back, and works on what it is called with."""
    x = on("cuda:0", 2)
    queue.give(5.0)
    timing = time_call(lambda: queue.give(1.0), 0.0, warmup=0, awaited=accelerators_of((x,)) if given else ())
    assert timing.samples_s == pytest.approx([1.0 if given else 0.0] * 3)


def test_eager_nodes_are_waited_for_one_by_one(queue: Queue) -> None:
    """So each node's price is its own work, and the first one's not what was under way before."""
    sample = two_steps("cuda:0")
    queue.give(100.0)
    with queue:
        seconds = profile_eager(sample.graph, sample.values)
    assert seconds == pytest.approx({"first": CALL_S + WORK_S, "second": CALL_S + WORK_S})


def test_generated_code_waits_for_no_cpu() -> None:
    """Timed steps on the CPU are what they were; on an accelerator each ends when that has done its work."""
    source = generate(two_steps("cpu").graph, STEPS, timed=True).source
    assert source.splitlines()[2:5] == [
        "    start = now()",
        "    first = op_aten_relu_default(x)",
        "    laps[0] += now() - start",
    ]
    lines = generate(two_steps("cuda:0").graph, STEPS, timed=True).source.splitlines()
    assert lines[4].startswith("    wait_for(")
    assert lines[5] == "    laps[0] += now() - start"
    assert "wait_for" not in generate(two_steps("cuda:0").graph, STEPS).source


def test_a_plan_is_waited_for_once_a_call(queue: Queue, state: Any) -> None:
    """Steps are handed over while earlier ones are computed, as in the user's process; what each takes is timed apart."""
    state.sample = two_steps("cuda:0")
    queue.give(100.0)
    with queue:
        assert tasks.build_plan(STEPS, spin=True) == pytest.approx(CALL_S + 2 * WORK_S)
        before = queue.waits
        samples, laps = tasks.time_plan(0.0)
    assert samples == pytest.approx([CALL_S + 2 * WORK_S] * 3)
    assert laps == pytest.approx([CALL_S + WORK_S] * 2)
    assert queue.waits - before == 1 + 3 + 2 * tasks._LAPPED_CALLS


def test_a_plan_on_the_cpu_is_one_program(state: Any) -> None:
    """Its calls give the seconds of its steps as well."""
    state.sample = Sample(two_steps("cpu").graph, (torch.ones(4, 4),))
    tasks.build_plan(STEPS, spin=True)
    assert state.stepwise is state.plan
    samples, laps = tasks.time_plan(0.0)
    assert 0 < sum(laps) <= sum(samples) / len(samples)


def test_a_cluster_is_waited_for(queue: Queue, state: Any) -> None:
    """Its price alone is that of its work."""
    sample = state.sample = two_steps("cuda:0")
    cluster = extract(sample.graph, ["first", "second"], "k0", {})
    state.values["x"] = sample.values[0]
    state.built["k0"] = Loaded(cluster, "toy", lambda _: queue.give(2.0))
    assert tasks.time_cluster("k0", 0.0, spin=True).samples_s == pytest.approx([2.0] * 3)


def test_contenders_of_a_benchmark_are_waited_for(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """First calls and later ones take as long as the accelerator; the reference's work is nobody's."""
    x = on("cuda:0", 2)

    def model(value: torch.Tensor) -> torch.Tensor:
        queue.give(1.0)
        return value

    def built(*_: Any) -> SimpleNamespace:
        return SimpleNamespace(call=lambda: queue.give(2.0), compiled=None)

    def same(*_: Any) -> Difference:
        return Difference(0.0, 0.0)

    monkeypatch.setattr(worker, "load_model", lambda *_, **__: LoadedModel("toy", model, (x,)))  # pyright: ignore
    monkeypatch.setattr(worker, "build", built)
    monkeypatch.setattr(worker, "difference", same)
    monkeypatch.setattr(worker, "least_tolerance", lambda *_: None)  # pyright: ignore
    monkeypatch.setattr(worker, "_WARM_S", 0.0)
    is_enabled = torch.is_grad_enabled()
    try:
        prepared = worker.prepare(Contender("toy"), "toy", None, {}, None, False, 0.1)
        samples: Sequence[float] = worker.block(0.0)
    finally:
        torch.set_grad_enabled(is_enabled)
        worker._call, worker._awaited = None, ()
    assert prepared.first_call_s == pytest.approx(2.0)
    assert samples == pytest.approx([2.0] * 3)
