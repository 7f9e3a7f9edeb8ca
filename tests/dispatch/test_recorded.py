"""Plans as CUDA graphs: who may be recorded, and how inputs, weights and outputs move. A recorder here plays the GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

import hub
from hub.capture.inference import capture_inference
from hub.dispatch.recorded import MAX_RECORDINGS, WARM_CALLS, CudaRecorder, Recorded, Recording, Run, unrecordable
from hub.errors import HubError
from hub.plugin.graph import Graph


class Played:
    """A recorder that keeps a run, and replays it into the outputs of the recorded one, as a GPU does."""

    def __init__(self) -> None:
        self.recorded = 0
        self.is_busy = False
        self.refuses = self.in_turn = False
        self.turns = 0

    def is_recording(self) -> bool:
        return self.is_busy

    def record(self, run: Run, inputs: Sequence[Any]) -> Recording:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded += 1
        outputs = tuple(torch.full_like(output, torch.nan) for output in run(inputs))  # recording computes nothing

        def replay() -> None:
            for output, new in zip(outputs, run(inputs), strict=True):
                output.copy_(new)

        return Recording(replay, outputs)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        assert not self.in_turn
        self.in_turn = True
        yield
        self.in_turn = False
        self.turns += 1


def scaled(args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    value, weight = args
    return value * weight, value + weight


def recorded() -> tuple[Recorded, Played, list[BaseException]]:
    player, told = Played(), list[BaseException]()
    return Recorded(scaled, [1], player, told.append), player, told


def call(run: Callable[..., Any], weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Run a call on new values, and assert that it returns what the plan returns."""
    value = torch.randn(3)
    found = run((value, weight))
    assert all(map(torch.equal, found, scaled((value, weight))))
    return found


# --- Running ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_recorded_once_after_some_calls() -> None:
    """And every call gives outputs of its own, which later calls leave alone."""
    run, player, told = recorded()
    weight = torch.randn(3)
    for _ in range(WARM_CALLS):
        call(run, weight)
    assert player.recorded == 0
    first = call(run, weight)
    kept = [each.clone() for each in first]
    for _ in range(3):
        call(run, weight)
    assert player.recorded == 1
    assert all(map(torch.equal, first, kept))
    assert told == []


def test_weights_are_read_where_they_lie() -> None:
    """What is written into them is seen; where they move, the plan is recorded again, and at last no more."""
    run, player, told = recorded()
    weight = torch.randn(3)
    for _ in range(WARM_CALLS + 1):
        call(run, weight)
    weight.mul_(2.0)
    call(run, weight)
    assert player.recorded == 1
    moved = [torch.randn(3) for _ in range(MAX_RECORDINGS)]
    for each in moved:
        call(run, each)
        call(run, each)
    assert player.recorded == MAX_RECORDINGS
    assert "weights have moved" in str(told[0])
    assert len(told) == 1


def test_what_cannot_be_recorded_runs_as_before() -> None:
    """It is tried once, and reported once."""
    run, player, told = recorded()
    player.refuses = True
    weight = torch.randn(3)
    for _ in range(WARM_CALLS + 3):
        call(run, weight)
    assert ["not permitted" in str(error) for error in told] == [True]


def test_the_users_own_recording_holds_the_plans_launches() -> None:
    """A graph cannot be launched while another one is recorded."""
    run, player, _ = recorded()
    weight = torch.randn(3)
    for _ in range(WARM_CALLS + 1):
        call(run, weight)
    player.is_busy = True
    call(run, weight)
    assert player.recorded == 1


# --- Who may ----------------------------------------------------------------------------------------------------------


def graph_of(function: Callable[[Any], Any], *, device: str = "cuda:0") -> Graph:
    with FakeTensorMode():
        return capture_inference(fx.symbolic_trace(function), [torch.empty(4, 4, device=device)])


def test_a_plan_on_one_gpu_may_be_recorded() -> None:
    """With views inside and several outputs."""
    assert unrecordable(graph_of(lambda x: (x.t() @ x, x.softmax(-1).view(-1)))) == ""


@pytest.mark.parametrize(
    ("function", "device", "reason"),
    [
        (lambda x: (x + 1,), "cpu", "not a tensor on a GPU"),
        (lambda x: (x.cpu() + 1,), "cuda:0", "not a tensor on a GPU"),
        (lambda x: (x + 1, x.view(-1)), "cuda:0", "shares memory"),
        (lambda x: x.relu().unbind(1), "cuda:0", "shares memory"),
        (lambda x: (x + torch.rand_like(x),), "cuda:0", "draws random numbers"),
        (lambda x: (x.to("cuda:1") + 1,), "cuda:0", "several GPUs"),
    ],
)
def test_what_may_not_says_why(function: Callable[..., Any], device: str, reason: str) -> None:
    """In words."""
    assert reason in unrecordable(graph_of(function, device=device))


def test_on_a_cpu_the_plan_says_so() -> None:
    """The model runs, and with `strict` it is an error."""
    compiled: Any = torch.compile(torch.nn.Linear(4, 4), backend="hub", options={"tune": "off", "cuda_graphs": True})
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    (plan,) = hub.plans(compiled)
    assert any(event.stage == "record" and "not a tensor on a GPU" in event.message for event in plan.events)
    torch._dynamo.reset()
    options = {"tune": "off", "cuda_graphs": True, "strict": True}
    strict: Any = torch.compile(torch.nn.Linear(4, 4), backend="hub", options=options)
    with torch.no_grad(), pytest.raises(HubError, match="CUDA graph"):
        strict(torch.randn(2, 4))


def test_shadow_mode_comes_first() -> None:
    """It looks at live calls, of which a recorded plan has none."""
    options = {"tune": "off", "cuda_graphs": True, "shadow": 1.0}
    compiled: Any = torch.compile(torch.nn.Linear(4, 4), backend="hub", options=options)
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    (plan,) = hub.plans(compiled)
    assert any(event.stage == "record" and "shadow mode" in event.message for event in plan.events)


# --- The recorder of CUDA ---------------------------------------------------------------------------------------------


class Cuda:
    """A substitute for PyTorch's recording: it stores what is current while a plan runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = torch.device("cuda:0")
        self.stream = "the user's stream"
        self.is_broken = False
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
        monkeypatch.setattr(torch.cuda, "Stream", lambda: f"a stream of {self.device}")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        monkeypatch.setattr(torch.cuda, "device", lambda device: self._while_current("device", device))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: self._while_current("stream", stream))
        monkeypatch.setattr(torch.cuda, "graph", self._graph)

    @contextmanager
    def _while_current(self, kind: str, value: Any) -> Iterator[None]:
        before = getattr(self, kind)
        setattr(self, kind, value)
        try:
            yield
        finally:
            setattr(self, kind, before)

    @contextmanager
    def _graph(self, _: Any, *, stream: str, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        before, self.stream = self.stream, stream
        yield
        if self.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")  # the stream stays, as in PyTorch
        self.stream = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Return a device that does not exist."""
    return Cuda(monkeypatch)


def on(device: str) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, device=device)


def test_a_plan_is_recorded_on_the_gpu_that_it_lies_on(cuda: Cuda) -> None:
    """A stream of another one would hold nothing of it, and a replay compute nothing."""
    seen: list[tuple[Any, str]] = []
    CudaRecorder().record(lambda args: (seen.append((cuda.device, cuda.stream)), args)[1], (on("cuda:1"),))
    assert seen == [(torch.device("cuda:1"), "a stream of cuda:1")]
    assert (cuda.device, cuda.stream) == (torch.device("cuda:0"), "the user's stream")


def test_the_users_stream_is_current_again_where_recording_fails(cuda: Cuda) -> None:
    """What comes next would not wait for what the user does."""
    cuda.is_broken = True
    with pytest.raises(RuntimeError, match="during capture"):
        CudaRecorder().record(tuple, (on("cuda:0"),))
    assert cuda.stream == "the user's stream"


@pytest.mark.usefixtures("cuda")
def test_nothing_is_collected_while_a_plan_is_recorded() -> None:
    """A kernel that is unloaded meanwhile spoils the recording."""
    seen: list[bool] = []
    CudaRecorder().record(lambda args: (seen.append(gc.isenabled()), tuple(args))[1], (on("cuda:0"),))
    assert seen == [False]
    assert gc.isenabled()


def test_each_replay_takes_its_turn() -> None:
    """Calls on different streams share the recorded memory, so that one begins after the other has ended."""
    run, player, _ = recorded()
    for _ in range(WARM_CALLS + 3):
        call(run, torch.ones(3))
    assert (player.turns, player.in_turn) == (3, False)


def test_a_turn_waits_for_the_work_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ordered on the device, by an event: the host does not wait."""
    seen: list[str] = []

    class Event:
        def record(self, stream: Any) -> None:
            seen.append(f"{stream.name} records")

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_event(self, event: Event) -> None:
            seen.append(f"{self.name} waits")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    recorder = CudaRecorder()
    for name in ("one", "two"):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, name=name: Stream(name))
        with recorder.turn():
            seen.append(f"{name} runs")
    assert seen == ["one runs", "one records", "two waits", "two runs", "two records"]
