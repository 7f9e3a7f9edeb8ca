"""Writes a captured graph and its input values to a folder for worker processes, and reads them back there.

The folder is private to one planning session; it is no cache, so pickles in it are the hub's own.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hub.graph import Graph


@dataclass(frozen=True, slots=True)
class Sample:
    """A graph with the values of its placeholders on one real call."""

    graph: Graph
    values: tuple[Any, ...]

    @property
    def by_name(self) -> Mapping[str, Any]:
        """Values by placeholder."""
        return dict(zip((node.name for node in self.graph.placeholders), self.values, strict=True))


def write_sample(folder: Path, sample: Sample) -> None:
    """Writes a sample. Raises whatever pickling raises, for instance for operators that only this process knows."""
    graph = sample.graph
    (folder / "graph.bin").write_bytes(dump_module(graph.module))
    facts = (graph.name, graph.mutated, graph.weights, dict(graph.pinned), graph.is_training)
    (folder / "facts.bin").write_bytes(pickle.dumps(facts))
    torch.save(
        [value.detach() if isinstance(value, torch.Tensor) else value for value in sample.values], folder / "values.pt"
    )


def read_sample(folder: Path) -> Sample:
    """Reads a sample back, with symbolic sizes in a ShapeEnv of its own."""
    name, mutated, weights, pinned, is_training = pickle.loads((folder / "facts.bin").read_bytes())
    module = load_module((folder / "graph.bin").read_bytes())
    values: Sequence[Any] = torch.load(folder / "values.pt", weights_only=True, mmap=True)
    graph = Graph(module, name, mutated=mutated, weights=weights, pinned=pinned, is_training=is_training)
    return Sample(graph, tuple(values))


def dump_module(module: fx.GraphModule) -> bytes:
    """Pickles an FX module with the fake values of its nodes, and no other metadata."""
    return GraphPickler.dumps(
        module, Options(ops_filter=None, node_metadata_key_filter=lambda key: key in ("val", "stack_trace"))
    )


def load_module(data: bytes) -> fx.GraphModule:
    """Reads what `dump_module` wrote."""
    loaded = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(loaded, fx.GraphModule)
    return loaded
