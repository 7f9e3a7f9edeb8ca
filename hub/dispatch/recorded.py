"""Runs a plan that is wholly on one GPU as a CUDA graph: all launches of all backends, and of eager, at once."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from hub.capture.pins import alias_chain
from hub.plugin.graph import Graph
from hub.plugin.table import elements, is_symbolic, value_of

WARM_CALLS = 2
"""Calls before recording: the first ones compile kernels, create handles and set libraries up, which no graph may hold."""
MAX_RECORDINGS = 3
"""Times that weights may move before recording is disabled."""

Run = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run, which reads inputs from and writes outputs to fixed memory."""

    replay: Callable[[], None]
    outputs: tuple[torch.Tensor, ...]


class Recorder(Protocol):
    """Device-specific operations for recording."""

    def is_recording(self) -> bool:
        """Return whether a recording is already in progress, for example the user's."""
        ...

    def record(self, run: Run, inputs: Sequence[Any]) -> Recording:
        """Record a run, which computes nothing. Raises what the run raises, and for operations that no graph may hold."""
        ...

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for launching one call: its work begins after that of the call before, on whatever stream."""
        ...


class CudaRecorder:
    """Recorder that uses PyTorch's CUDA graphs, for one plan."""

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._done: torch.cuda.Event | None = None

    def is_recording(self) -> bool:
        """See `Recorder`."""
        return torch.cuda.is_current_stream_capturing()

    def record(self, run: Run, inputs: Sequence[Any]) -> Recording:
        """See `Recorder`."""
        device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), None)
        self._device = device
        graph = torch.cuda.CUDAGraph()
        # The outer stream is restored even if recording fails: PyTorch then leaves its own current. A stream of another GPU
        # would record nothing. Only this thread's calls are checked: a data loader's copies on another thread are no error.
        with (
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream()),
            _without_collection(),
            torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"),
        ):
            outputs = run(inputs)
        return Recording(graph.replay, outputs)

    @contextlib.contextmanager
    def turn(self) -> Generator[None]:
        """See `Recorder`."""
        stream = torch.cuda.current_stream(self._device)
        if self._done is None:
            self._done = torch.cuda.Event()
        else:
            stream.wait_event(self._done)
        yield
        self._done.record(stream)


@contextlib.contextmanager
def _without_collection() -> Generator[None]:
    """Keep Python's garbage collector from unloading unused kernels, which would spoil the recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def unrecordable(graph: Graph) -> str:
    """Return why a graph's plans cannot be recorded; "" if they can."""
    if graph.is_training:
        return "it is part of a training step, whose saved values lie elsewhere each time"
    if graph.mutated:
        return f"it writes to its input {graph.mutated[0]}"
    found = ((node.name, value) for node in graph.module.graph.nodes for value in elements(value_of(node)))
    values = {name: value for name, value in found if value is not None}
    if any(is_symbolic(size) for value in values.values() if isinstance(value, torch.Tensor) for size in value.shape):
        return "its sizes are symbolic"
    elsewhere = next((name for name, value in values.items() if not _is_on_gpu(value)), None)
    if elsewhere is not None:
        return f"{elsewhere} is not a tensor on a GPU"
    if len({value.device for value in values.values()}) > 1:
        return "it uses several GPUs"
    if drawing := next((node.name for node in graph.nodes if _draws(node)), None):
        return f"{drawing} draws random numbers"
    return _shared_outputs(graph)


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _draws(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _shared_outputs(graph: Graph) -> str:
    """Return which outputs would no longer share memory as eager's do: those of a recorded plan are copies."""
    roots = [alias_chain(node)[-1] for node in graph.outputs if isinstance(node, fx.Node)]
    if len(roots) < len(graph.outputs):
        return "an output is not a tensor"
    shared = next((root for root in roots if root.op != "call_function" or roots.count(root) > 1), None)
    return "" if shared is None else f"an output shares memory with {shared.name}"


class Recorded:
    """A plan's run that is recorded after a few calls, and from then on launched at once. One call at a time.

    Inputs are copied to where the recorded run reads them, weights are read in place, and outputs are copied out, because
    the next call overwrites them. If recording fails, or weights move repeatedly, the plan runs as before.
    """

    def __init__(
        self, run: Run, weights: Sequence[int], recorder: Recorder, give_up: Callable[[BaseException], None]
    ) -> None:
        self._run = run
        self._weights = tuple(weights)
        self._recorder = recorder
        self._give_up = give_up
        self._lock = threading.Lock()
        self._calls = 0
        self._recordings = 0
        self._recording: Recording | None = None
        self._places: tuple[int, ...] = ()
        self._inputs: Mapping[int, torch.Tensor] = {}
        self._is_given_up = False

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call."""
        if self._is_given_up or self._recorder.is_recording():
            return self._run(args)
        with self._lock:
            if self._calls < WARM_CALLS:
                self._calls += 1
                return self._run(args)
            recording = self._recorded(args)
            if recording is None:
                return self._run(args)
            with self._recorder.turn():  # calls share the memory of inputs and outputs
                for position, inner in self._inputs.items():
                    inner.copy_(args[position])
                recording.replay()
                return tuple(output.clone() for output in recording.outputs)

    def _recorded(self, args: Sequence[Any]) -> Recording | None:
        places = tuple(args[position].data_ptr() for position in self._weights)
        if self._recording is not None and places == self._places:
            return self._recording
        self._recording = None
        if self._recordings == MAX_RECORDINGS:
            self._is_given_up = True
            self._give_up(RuntimeError(f"its weights have moved {MAX_RECORDINGS} times"))
            return None
        self._recordings += 1
        with torch.inference_mode(False), torch.no_grad():  # copies made in inference mode could not be written to outside
            inner = [value if position in self._weights else value.clone() for position, value in enumerate(args)]
        try:
            self._recording = self._recorder.record(self._run, inner)
        except Exception as error:  # noqa: BLE001 - whatever the error, the plan runs without recording
            self._is_given_up = True
            self._give_up(error)
            return None
        self._places = places
        self._inputs = {position: value for position, value in enumerate(inner) if position not in self._weights}
        return self._recording
