"""Starts, indices and widths that only a call knows may be negative, and then count from the end, or cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional

from hub.capture.inference import capture_inference
from hub.capture.sources import weight_positions
from hub.partition.extract import extract
from hub.plugin.backend import CompileSettings
from plugin_disc.backend import create

ONE = CompileSettings(threads=1)
DEEP = [(8, 3), (9, 5), (4, 4), (7, 6), (12, 2)]
"""Sizes of a dim and a number that is not larger."""
SIGNED = [(8, -3), (9, -5), (7, 4), (8, 2), (3, -3), (5, 0)]
"""The number counts from the front or, below 0, from the end."""

PROGRAMS: dict[str, tuple[Callable[[torch.Tensor, int], torch.Tensor], Sequence[tuple[int, int]]]] = {
    "the last rows": (lambda x, n: x[:, -n:] * 2, DEEP),
    "the first rows": (lambda x, n: x[:, :n] * 2, DEEP),
    "all but the last": (lambda x, n: x[:, :-n] * 2, DEEP),
    "all but the first": (lambda x, n: x[:, n:] * 2, DEEP),
    "from a place": (lambda x, n: x[:, n:] * 2, SIGNED),
    "every other from a place": (lambda x, n: x[:, n::2] * 2, SIGNED),
    "up to a place": (lambda x, n: x[:, :n] * 2, SIGNED),
    "between two places": (lambda x, n: x[:, -n - 1 : -n] * 2, [(8, 3), (9, 5), (7, 6)]),
    "one row": (lambda x, n: x[:, n] * 2, [case for case in SIGNED if case[1]]),
    "some rows from a place": (lambda x, n: x.narrow(1, -n, 2) * 2, DEEP),
    "padded behind, or cut": (lambda x, n: functional.pad(x, (0, 0, 0, n)) * 2, SIGNED[:4]),
    "padded in front, or cut": (lambda x, n: functional.pad(x, (0, 0, n, 0)) * 2, SIGNED[:4]),
    "padded to a length, or cut": (
        lambda x, n: functional.pad(x, (0, 0, 0, n - x.shape[1])) * 2,
        [(8, 10), (9, 5), (3, 7)],
    ),
    "moved by padding": (lambda x, n: functional.pad(x, (0, 0, n, -n)) * 2, SIGNED[:4]),
    "put in at a place": (lambda x, n: torch.slice_scatter(x, x[:, -n:] + 1, 1, -n), DEEP),
    "two put in from the end": (lambda x, n: torch.slice_scatter(x * n, x[:, -2:] + 1, 1, -2), DEEP),
    "one put in at a place": (lambda x, n: torch.select_scatter(x, x[:, 0] + 1, 1, -n), DEEP),
    "cropped and grown": (lambda x, n: torch.cat([x[:, :-n], x + 1], 1) * 2, DEEP),
    "the last rows in front": (lambda x, n: torch.cat([x[:, -n:], x], 1).softmax(-1), DEEP),
    "a product with the last rows": (lambda x, n: x @ x[:, -n:].transpose(1, 2), DEEP),
    "the last rows of a product": (lambda x, n: (x @ x.transpose(1, 2))[:, -n:, :-n], [(8, 3), (9, 5), (12, 2)]),
}


class _Recorder(fx.Interpreter):
    """An interpreter that keeps each node's result."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n.name] = super().run_node(n)
        return self.values[n.name]


def compared(executables: list[Any]) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """Return a backend of `torch.compile` that returns eager's results and compares DISC's with them at every call."""

    def backend(program: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = capture_inference(program, example_inputs, weight_positions(program, example_inputs))
        names = [node.name for node in graph.nodes if node.name not in graph.pinned]
        cluster = extract(graph, names, "c0", {})
        executables.append(executable := create().compile(cluster, ONE))

        def call(*inputs: Any) -> Any:
            recorder = _Recorder(graph.module)
            results = recorder.run(*inputs)
            found = executable(*(recorder.values[name] for name in cluster.input_names))
            for name, value in zip(cluster.output_names, found, strict=True):
                torch.testing.assert_close(value, recorder.values[name], msg=lambda text, name=name: f"{name}: {text}")
            return results

        return call

    return backend


@pytest.mark.parametrize("program", PROGRAMS)
def test_places_known_at_a_call(program: str) -> None:
    """Results are eager's wherever a place lies, and however much is cut."""
    function, cases = PROGRAMS[program]
    executables: list[Any] = []
    torch.compiler.reset()
    compile_: Any = torch.compile
    compiled = compile_(function, backend=compared(executables), dynamic=True, fullgraph=True)
    with torch.no_grad():
        for rows, number in cases:
            value = torch.linspace(-3, 3, 2 * rows * 12).reshape(2, rows, 12)
            torch.testing.assert_close(compiled(value, number), function(value, number))
    assert executables
