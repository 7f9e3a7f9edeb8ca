"""Extraction of one cluster from a module, for tests of a single backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hub.capture.inference import capture_inference
from hub.capture.sources import weight_positions
from hub.errors import InputRefused
from hub.partition.extract import extract
from hub.plugin.backend import Backend, CompileSettings, Executable
from hub.plugin.graph import Cluster, Graph, hint

SETTINGS = CompileSettings(threads=1)


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured graph with the values it was captured on."""

    graph: Graph
    inputs: tuple[Any, ...]
    """Values of the graph's placeholders, in order."""

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Return the values of the weights, by placeholder."""
        values = dict(zip((node.name for node in self.graph.placeholders), self.inputs, strict=True))
        return {name: values[name] for name in self.graph.weights}


def capture(module: torch.nn.Module, inputs: Sequence[Any], *, dynamic: bool | None = False) -> Captured:
    """Capture `module(*inputs)` for inference. `dynamic=True` makes every size of at least 2 symbolic.

    Raise CaptureError if there is a graph break.
    """
    found: list[Captured] = []

    def backend(program: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        graph = capture_inference(program, example_inputs, weight_positions(program, example_inputs))
        found.append(Captured(graph, tuple(map(_concrete, example_inputs))))
        return program.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(module, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)  # pyright: ignore[reportUnknownMemberType] - torch's
    return found[0]


def whole_cluster(
    module: torch.nn.Module, inputs: Sequence[Any], *, dynamic: bool | None = False
) -> tuple[Cluster, tuple[Any, ...]]:
    """Return everything of a module that is not pinned to eager as one cluster, and the values of its inputs.

    The values come from running what precedes the cluster. Raise PlanError if pinned nodes lie in between.
    """
    captured = capture(module, inputs, dynamic=dynamic)
    names = [node.name for node in captured.graph.nodes if node.name not in captured.graph.pinned]
    cluster = extract(captured.graph, names, "c0", captured.weights)
    recorder = _Recorder(captured.graph.module)
    with torch.no_grad():
        recorder.run(*captured.inputs)
    return cluster, tuple(recorder.values[name] for name in cluster.input_names)


def compile_and_run(
    backend: Backend, cluster: Cluster, inputs: Sequence[Any], settings: CompileSettings = SETTINGS
) -> tuple[Executable, Sequence[torch.Tensor]]:
    """Compile a cluster and run it once, as `run` does. Propagate the backend's exceptions."""
    executable = backend.compile(cluster, settings)
    return executable, run(executable, cluster, inputs)


def run(executable: Executable, cluster: Cluster, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
    """Run one call as the dispatcher does: in eager if the executable refuses the values."""
    try:
        return executable(*inputs)
    except InputRefused:
        with torch.no_grad():
            return cluster.module(*inputs)


class _Recorder(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.values[n.name] = super().run_node(n)
        return self.values[n.name]


def _concrete(value: Any) -> Any:
    return hint(value) if isinstance(value, torch.SymInt) else value
