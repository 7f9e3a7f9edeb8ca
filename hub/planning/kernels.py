"""Kernel search before planning: `hub tune` with named backends has them search for faster code of a model's clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from hub.capture.call import capture_call
from hub.capture.inference import capture_inference
from hub.capture.nothing import why_nothing
from hub.capture.sources import weight_positions
from hub.config.options import Options
from hub.discovery.registry import Registry, registry
from hub.errors import HubError, PluginError, text_of
from hub.partition.assignments import assignment
from hub.partition.extract import extract
from hub.partition.verdicts import ask_backends
from hub.plugin.backend import CompileSettings, overrides
from hub.plugin.graph import Cluster, Graph
from hub.process.interrupts import held_back

Captured = tuple[Graph, dict[str, torch.Tensor]]
"""A graph with the values of its weights."""


def tuning_backends(options: Options) -> tuple[str, ...]:
    """Return the backends that search for code and are named in the options; otherwise the time belongs to planning.

    It loads the named backends. One that cannot be loaded is left out: planning says why.
    """
    found = registry().configured(options)
    return tuple(name for name in options.backends or () if _tunes(found, name))


def _tunes(found: Registry, name: str) -> bool:
    try:
        return overrides(found.backend(name), "tune")
    except HubError:
        return False


def tune_kernels(
    module: Any, inputs: Sequence[Any], options: Options, budget_s: float, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Run the search of each tuning backend on an equal share of the budget, and return one line per backend.

    Raises PluginError for anything a backend raises. May be interrupted: backends save findings as they go.
    """
    names = tuning_backends(options)
    if not names:
        return ()
    found = registry().configured(options)
    graphs = _captured(module, inputs)
    settings = CompileSettings(threads=options.threads or torch.get_num_threads(), effort="full")
    share_s = budget_s / len(names)
    return tuple(f"{name}: {_tuned(found, name, graphs, settings, share_s, say)}" for name in names)


def _tuned(
    found: Registry,
    name: str,
    graphs: Sequence[Captured],
    settings: CompileSettings,
    budget_s: float,
    say: Callable[[str], None],
) -> str:
    try:
        backend = found.backend(name)
        clusters = [cluster for graph, weights in graphs for cluster in _clusters(found, name, graph, weights)]
        return backend.tune(clusters, settings, budget_s, say)
    except HubError:
        raise
    except Exception as error:
        raise PluginError(f"it cannot search for faster code: {text_of(error)}", backend=name) from error


def _captured(module: Any, inputs: Sequence[Any]) -> list[Captured]:
    """Return the graphs captured during one call of a model; eager computes the results of that call.

    Raises CaptureError, with the cause, if nothing was captured.
    """
    graphs: list[Captured] = []

    def backend(program: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        with held_back():
            graph = capture_inference(program, example_inputs, weight_positions(program, example_inputs))
        values = dict(zip((node.name for node in graph.placeholders), example_inputs, strict=True))
        graphs.append((graph, {name: values[name] for name in graph.weights}))
        return program.forward

    frames = capture_call(module, inputs, None, backend)
    if not graphs:
        raise why_nothing(module, frames).error()
    return graphs


def _clusters(found: Registry, name: str, graph: Graph, weights: dict[str, torch.Tensor]) -> list[Cluster]:
    """Return the clusters of a plan with this backend alone."""
    options = Options(backends=(name,))
    alone = assignment(ask_backends(graph, found, options), (name,), options)
    return [extract(graph, one.nodes, f"k{place}", weights) for place, one in enumerate(alone.clusters)]
