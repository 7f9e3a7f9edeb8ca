"""Accelerators compute while the CPU goes on: whatever is timed ends when they have done their work.

This machine has none: fake tensors lie on one, and a queue with a clock of its own simulates its pending work.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import hub
from hub.bench import worker
from hub.bench.closeness import Difference
from hub.bench.contenders import Contender
from hub.bench.models import LoadedModel
from hub.cache.measurements import Measurements
from hub.dispatch.assemble import Loaded
from hub.dispatch.codegen import Step, generate
from hub.errors import CompileError, HubWarning
from hub.frontend.eager_plans import eager_plan
from hub.partition.extract import extract
from hub.partition.group import Group
from hub.plan import DecidedBy, Event
from hub.planning import failures, make
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Graph
from hub.pricing import profile, roofline
from hub.pricing.eager import profile_eager
from hub.pricing.features import features_of, kind_of
from hub.pricing.roofline import Peaks
from hub.pricing.timing import time_call
from hub.process.accelerators import accelerators_of, wait_for_values
from hub.process.state import kept_state
from hub.workers import tasks
from hub.workers.candidate import Candidate
from hub.workers.compilation.values import values_at
from hub.workers.transfer import Sample
from tests.toys import toy

CUDA = torch.device("cuda", 0)
CALL_S = 0.001
"""Seconds of the CPU for enqueueing an operator."""
WORK_S = 1.0
"""Seconds of the accelerator that an operator takes."""


class Queue(TorchDispatchMode):
    """An accelerator's work: operators on fake tensors on it take time, and the CPU waits only when it synchronizes."""

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
        """Enqueue work, which is done once the work before it is."""
        self.busy_until_s = max(self.now_s, self.busy_until_s) + work_s

    def synchronize(self, device: torch.device) -> None:
        """Wait."""
        assert device == CUDA
        self.waits += 1
        self.now_s = max(self.now_s, self.busy_until_s)

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Return a queue that PyTorch's functions wait for, and whose clock all timing code reads."""
    found = Queue()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda real=False: None if real else torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "synchronize", found.synchronize)
    clock = SimpleNamespace(perf_counter=found.perf_counter, process_time=found.perf_counter)
    at_once = SimpleNamespace(timed=lambda take, _: take(), disturbed=0)
    monkeypatch.setattr(tasks, "PATIENCE", at_once)  # the real one measures how busy this machine is
    for module in (
        "pricing.timing",
        "pricing.eager",
        "pricing.profile",
        "workers.tasks",
        "dispatch.assemble",
        "bench.worker",
    ):
        monkeypatch.setattr(f"hub.{module}.time", clock)
    return found


def on(device: str, *shape: int) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(*shape, device=device)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget all peaks."""
    monkeypatch.setattr(roofline, "_settled", {1: Peaks(1e11, 1e10)})
    monkeypatch.setattr(roofline, "_accelerators", {})
    roofline._own_accelerator.cache_clear()


def two_steps(device: str) -> Sample:
    """Return relu, then tanh; with fake values on a device."""
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
    """Yield a worker's state, for this test alone."""
    found = tasks._State()
    monkeypatch.setattr(tasks, "_state", found)
    yield found
    tasks.rest()


def test_accelerators_are_found_in_containers() -> None:
    """Each accelerator once, in order; nothing waits for what lies on the CPU, or nowhere."""
    x, y, host = on("cuda:0", 2), on("cuda:1", 2), torch.empty(2)
    found = accelerators_of((host, {"a": [x, (y,)]}, 3, None, x, torch.empty(2, device="meta")))
    assert found == (torch.device("cuda:0"), torch.device("cuda:1"))


def test_values_on_the_cpu_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is not queried for an accelerator if nothing lies on one."""
    monkeypatch.setattr(torch, "accelerator", None)
    wait_for_values((torch.empty(2), [torch.empty(2)]))
    assert len(time_call(lambda: torch.empty(2), 0.0).samples_s) == 3


def test_a_device_that_pytorch_cannot_use_here_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values on it are simulated, or it has no means to wait."""
    waited: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    for own, expected in ((None, 0), (torch.device("mps"), 0), (torch.device("cuda", 0), 1)):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda own=own: own)
        wait_for_values((on("cuda:0", 2),))
        assert len(waited) == expected


def test_a_call_takes_as_long_as_the_accelerator(queue: Queue) -> None:
    """Each sample has the work of its own call, and the first one nothing of the warm-up calls."""
    x = on("cuda:0", 2)
    with queue:
        assert time_call(lambda: torch.relu(x), 0.0).samples_s == pytest.approx([CALL_S + WORK_S] * 3)


@pytest.mark.parametrize("given", [True, False])
def test_a_call_that_gives_nothing_is_waited_for_where_it_is_told(queue: Queue, given: bool) -> None:
    """A step of training may return nothing, and works on its arguments."""
    x = on("cuda:0", 2)
    queue.give(5.0)
    timing = time_call(lambda: queue.give(1.0), 0.0, warmup=0, awaited=accelerators_of((x,)) if given else ())
    assert timing.samples_s == pytest.approx([1.0 if given else 0.0] * 3)


def test_eager_nodes_are_waited_for_one_by_one(queue: Queue) -> None:
    """Each node's price is thus its own work, and the first one's does not include earlier work."""
    sample = two_steps("cuda:0")
    queue.give(100.0)
    with queue:
        seconds = profile_eager(sample.graph, sample.values)
    assert seconds == pytest.approx({"first": CALL_S + WORK_S, "second": CALL_S + WORK_S})


def test_generated_code_waits_for_no_cpu() -> None:
    """Timed steps on the CPU are unchanged; on an accelerator each ends when its work is done."""
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
    """Steps are enqueued while earlier ones are computed, as in the user's process; each is timed separately."""
    state.sample = two_steps("cuda:0")
    queue.give(100.0)
    with queue:
        assert tasks.build_plan(STEPS, busy_wait=True) == pytest.approx(CALL_S + 2 * WORK_S)
        before = queue.waits
        timing, laps = tasks.time_plan(0.0)
    assert timing.samples_s == pytest.approx([CALL_S + 2 * WORK_S] * 3)
    assert laps == pytest.approx([CALL_S + WORK_S] * 2)
    assert queue.waits - before == 1 + 3 + 2 * tasks._LAPPED_CALLS


def test_a_plan_on_the_cpu_is_one_program(state: Any) -> None:
    """Its calls return the seconds of its steps as well."""
    state.sample = Sample(two_steps("cpu").graph, (torch.ones(4, 4),))
    tasks.build_plan(STEPS, busy_wait=True)
    assert state.stepwise is state.plan
    timing, laps = tasks.time_plan(0.0)
    samples = timing.samples_s
    assert 0 < sum(laps) <= sum(samples) / len(samples)


def test_a_cluster_is_waited_for(queue: Queue, state: Any) -> None:
    """Its price is only that of its work."""
    sample = state.sample = two_steps("cuda:0")
    cluster = extract(sample.graph, ["first", "second"], "k0", {})
    state.values["x"] = sample.values[0]
    state.built["k0"] = Loaded(cluster, "toy", lambda _: queue.give(2.0))
    assert tasks.time_cluster("k0", 0.0, busy_wait=True).samples_s == pytest.approx([2.0] * 3)


def test_contenders_of_a_benchmark_are_waited_for(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """First calls and later ones take as long as the accelerator; the reference's work counts for no contender."""
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
        block = worker.block(0.0)
    finally:
        torch.set_grad_enabled(is_enabled)
        worker._call, worker._awaited = None, ()
    assert prepared.first_call_s == pytest.approx(2.0)
    assert block.samples_s == pytest.approx([2.0] * 3)


# --- Prices -----------------------------------------------------------------------------------------------------------


def test_an_accelerator_is_measured_with_waiting(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peaks are those of the work, not of enqueueing it."""
    # Copies of fake tensors query the device, which this build of PyTorch may not know.
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: queue.give(WORK_S))  # pyright: ignore[reportUnknownLambdaType]
    with FakeTensorMode(), queue:
        flops_s, bytes_s = profile.measure_accelerator(CUDA)
    assert flops_s == pytest.approx(2 * 4096**3 / (CALL_S + WORK_S))
    assert bytes_s == pytest.approx(2 * 2**28 / WORK_S)


@pytest.mark.usefixtures("fresh")
def test_an_accelerator_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of all that share a store measures; its peaks are kept next to the CPU's, which are unchanged."""
    measured: list[torch.device] = []
    monkeypatch.setattr(profile, "measure_accelerator", lambda device: measured.append(device) or (5e13, 2e12))  # pyright: ignore[reportUnknownLambdaType]
    kept, _ = Measurements.open(tmp_path)
    cpu = roofline.settle_peaks(kept, 1)
    for _ in range(2):
        roofline._accelerators.clear()
        roofline.settle_accelerators(kept, two_steps("cuda:0").graph)
        assert roofline.peaks(1, CUDA) == Peaks(5e13, 2e12)
    assert measured == [CUDA]
    assert roofline.settle_peaks(kept, 1) == cpu


@pytest.mark.usefixtures("fresh")
def test_an_accelerator_that_cannot_be_measured_is_no_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is priced at the peaks of an unmeasured one, and the next process tries again."""

    def full(_: torch.device) -> tuple[float, float]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(profile, "measure_accelerator", full)
    monkeypatch.setattr(roofline, "measure_accelerator", full)
    kept, _ = Measurements.open(tmp_path)
    roofline.settle_accelerators(kept, two_steps("cuda:0").graph)
    assert roofline.peaks(1, CUDA) == roofline.UNMEASURED
    assert roofline.peaks(1, torch.device("cuda:1")) == roofline.UNMEASURED
    assert kept.profile(f"{profile.machine_digest()} {profile.name_of(CUDA)}", 0) is None


@pytest.mark.usefixtures("fresh")
def test_work_is_priced_by_the_device_that_does_it() -> None:
    """Clusters and eager nodes are priced by their outputs' device, at the peaks that planning settled on."""
    roofline.settle(1, Peaks(1e11, 1e10), {"cuda:0": Peaks(1e13, 1e12)})
    graphs = {device: two_steps(device).graph for device in ("cpu", "cuda:0")}
    clusters = {device: extract(graph, ["first", "second"], "k0", {}) for device, graph in graphs.items()}
    costs = {device: roofline.cluster_estimate(cluster, 1, call_s=0.0) for device, cluster in clusters.items()}
    assert costs["cpu"].run_s == pytest.approx(100 * costs["cuda:0"].run_s)
    assert costs["cpu"].detail == "roofline, 100 Gflop/s, 10 GB/s, 1 threads"
    assert costs["cuda:0"].detail == "roofline, 10000 Gflop/s, 1000 GB/s, cuda:0"
    eager = {device: roofline.eager_estimate(graph.nodes[0], 1) for device, graph in graphs.items()}
    work = {device: seconds - roofline.EAGER_CALL_S for device, seconds in eager.items()}
    assert work["cpu"] == pytest.approx(100 * work["cuda:0"])


@pytest.mark.usefixtures("fresh")
def test_no_bound_is_above_what_narrow_products_reach() -> None:
    """An accelerator computes float16 and float8 many times as fast as float32."""
    roofline.settle(1, Peaks(1e11, 1e10), {"cuda:0": Peaks(1e13, 1e12)})
    host, device = (roofline.least_seconds(two_steps(name).graph.nodes, 1) for name in ("cpu", "cuda:0"))
    assert (host, device) == pytest.approx((32 / 1e11, 32 / (32 * 1e13)))


@pytest.mark.usefixtures("fresh")
def test_workers_estimate_with_the_same_peaks(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers use the peaks of the calling process: a worker measures nothing."""
    state.sample = two_steps("cuda:0")

    def estimate(cluster: Any, settings: CompileSettings) -> Any:
        return roofline.cluster_estimate(cluster, settings.threads)

    state.configured = SimpleNamespace(backend=lambda _: SimpleNamespace(estimate=estimate))  # pyright: ignore[reportUnknownLambdaType]
    given = {"cuda:0": Peaks(3e13, 1e12)}
    said: Any = tasks.estimate("toy", ["first"], CompileSettings(threads=1), Peaks(1e11, 1e10), given)
    assert "30000 Gflop/s" in said.answer.detail
    assert roofline.settled_accelerators() == given


def test_a_graph_on_one_accelerator_is_told() -> None:
    """Scalars on the CPU do not count as its work; a graph on the CPU, or on two devices, has no accelerator."""
    graph = two_steps("cuda:0").graph
    assert roofline.only_accelerator(graph) == CUDA
    graph.nodes[0].meta["val"] = on("cpu", 1)
    assert roofline.only_accelerator(graph) == CUDA
    graph.nodes[0].meta["val"] = on("cpu", 4)
    assert roofline.only_accelerator(graph) is None
    assert roofline.only_accelerator(two_steps("cpu").graph) is None


def test_features_say_which_kind_of_device_computes() -> None:
    """The kind is a number, so that prices are learned for each kind alone."""
    assert [features_of(two_steps(device).graph.nodes)["device"] for device in ("cpu", "cuda:0", "xpu:0")] == [
        0.0,
        1.0,
        2.0,
    ]


@pytest.mark.parametrize("operator", ["flash", "efficient", "cudnn"])
def test_attention_of_cuda_counts_as_attention(operator: str) -> None:
    """Its operators do the work of the general one."""
    graph = fx.Graph()
    sources = [graph.placeholder(name) for name in ("query", "key", "value")]
    name = f"_scaled_dot_product_{operator}_attention"
    more = {"flash": (), "efficient": (None, False), "cudnn": (None, False)}[operator]
    node = graph.call_function(getattr(torch.ops.aten, name).default, (*sources, *more))
    for source in sources:
        source.meta["val"] = on("cuda:0", 2, 3, 16, 8)
    node.meta["val"] = (on("cuda:0", 2, 3, 16, 8), on("cuda:0", 2, 3, 16))
    graph.output((node,))
    assert kind_of(node) == "attention"
    assert roofline.flops(node) == 2 * (2 * 3 * 16) * 16 * (8 + 8)


# --- Random numbers ---------------------------------------------------------------------------------------------------


class Generators:
    """The random numbers of two CUDA devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_initialized: bool) -> None:
        self.is_initialized = is_initialized
        self.states = [torch.tensor([7, 7], dtype=torch.uint8), torch.tensor([9, 9], dtype=torch.uint8)]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.is_initialized)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", self.read)
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.write)

    def read(self) -> list[torch.Tensor]:
        """Return copies, as CUDA does."""
        assert self.is_initialized, "nobody may start CUDA for this"
        return [state.clone() for state in self.states]

    def write(self, state: torch.Tensor, device: int) -> None:
        """Set the state of one device."""
        assert self.is_initialized
        self.states[device] = state.clone()

    def draw(self) -> None:
        """Advance the state of the second device."""
        self.is_initialized = True
        self.states[1] += 1

    @property
    def numbers(self) -> list[list[int]]:
        """Return the current states as numbers."""
        return [state.tolist() for state in self.states]


def test_random_numbers_of_cuda_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that draws some is named, like one that draws the CPU's."""
    generators = Generators(monkeypatch, is_initialized=True)
    with kept_state() as changed:
        generators.draw()
    assert changed == ["CUDA's random numbers"]
    assert generators.numbers == [[7, 7], [9, 9]]


def test_to_start_cuda_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking does not start CUDA; a plugin that starts it has changed no random numbers."""
    generators = Generators(monkeypatch, is_initialized=False)
    with kept_state() as changed:
        generators.draw()
    assert changed == []


@pytest.mark.parametrize("is_initialized", [True, False])
def test_running_a_graph_leaves_cudas_random_numbers(monkeypatch: pytest.MonkeyPatch, is_initialized: bool) -> None:
    """Values for verification come from a run of the user's graph, which may draw some."""
    generators = Generators(monkeypatch, is_initialized=is_initialized)

    def draws(x: torch.Tensor) -> torch.Tensor:
        if is_initialized:
            generators.draw()
        return x + 1

    graph = fx.Graph()
    x = graph.placeholder("x")
    drawn = graph.call_function(draws, (x,), name="drawn")
    graph.output((drawn,))
    values = values_at(Graph(fx.GraphModule(torch.nn.Module(), graph), "draws"), (torch.zeros(1),), ["drawn"])
    assert values["drawn"].tolist() == [1.0]
    assert generators.numbers == [[7, 7], [9, 9]]


# --- Memory -----------------------------------------------------------------------------------------------------------

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
FULL_ONCE = """
import torch
mark = pathlib.Path({mark!r})
if not mark.exists():
    mark.touch()
    raise torch.OutOfMemoryError({text!r})
"""


@pytest.mark.parametrize(
    ("text", "is_verdict"),
    [
        (f"compile failed: OutOfMemoryError: {FULL}", False),
        (f"the worker process died: exit status 1\n  {FULL}", False),
        ("run failed: RuntimeError: CUDA error: out of memory", False),
        ("run failed: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes", False),
        ("compile failed: ValueError: odd", True),
        ("the worker process took 9.1 GB of memory", True),
    ],
)
def test_a_full_accelerator_is_no_verdict(text: str, is_verdict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is recorded about the candidate; its saved files are removed in any case."""
    discarded: list[Path] = []
    kept: list[object] = []
    monkeypatch.setattr(failures, "discard_artifact", lambda folder, **_: discarded.append(folder))  # pyright: ignore[reportUnknownLambdaType]
    context: Any = SimpleNamespace(
        failure_subject=lambda *_: None,  # pyright: ignore[reportUnknownLambdaType]
        measurements=SimpleNamespace(keep_failure=kept.append),
    )
    asked = Candidate("c0", Group("toy", ("first",)), CompileSettings(threads=1), (), Path("saved"))
    failures.remember_failure(context, replace(asked, failure=CompileError(text)))
    assert bool(kept) == is_verdict
    assert discarded == [Path("saved")]


def test_after_a_full_accelerator_the_next_process_tries_again(tmp_path: Path, install_plugin: Any) -> None:
    """The error crosses a worker's pipe as text."""
    install_plugin("toy", toy(compiling=FULL_ONCE.format(mark=str(tmp_path / "mark"), text=FULL)))
    model, x = torch.nn.Tanh(), torch.randn(4, 8)
    found: list[tuple[str, ...]] = []
    for _ in range(2):
        torch.compiler.reset()
        options = {"backends": ["toy"], "tune": "off"}
        compiled: Any = torch.compile(model, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", HubWarning)
            assert torch.equal(compiled(x), model(x))
        found.append(hub.plans(compiled)[0].backends)
    assert [("toy" in backends) for backends in found] == [False, True]


@pytest.mark.parametrize(("message", "is_lasting"), [(FULL, False), ("compile failed: ValueError: odd", True)])
def test_a_plan_made_beside_a_full_accelerator_does_not_last(message: str, is_lasting: bool) -> None:
    """A candidate that only lacked memory may win in the next process."""
    event = Event(kind="failed", stage="compile", backend="toy", message=message)
    plan = eager_plan("two", "").model_copy(update={"decided_by": DecidedBy.MEASURED_PLANS, "events": (event,)})
    assert make.is_lasting(plan) == is_lasting


@pytest.mark.parametrize("is_initialized", [True, False])
def test_a_worker_at_rest_holds_no_memory_of_cuda(
    state: Any, monkeypatch: pytest.MonkeyPatch, is_initialized: bool
) -> None:
    """PyTorch's cached memory is released, and CUDA is not started for that."""
    given_back: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(len(state.values)))
    state.values["x"] = torch.ones(1)
    tasks.rest()
    assert given_back == [0] * is_initialized
