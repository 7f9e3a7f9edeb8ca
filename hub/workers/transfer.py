"""Write a captured graph and its input values to a folder for worker processes, and read them back there.

The folder is private to one planning session. It is not a cache, so the hub itself wrote all pickles in it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hub.partition.extract import extract
from hub.plugin.graph import Graph
from hub.process.forks import freed_in_forks
from hub.torch_private import FakeTensorMode, GraphPickler, OpOverload, PicklerOptions, custom_operators


@dataclass(frozen=True)
class Sample:
    """A graph with the values of its placeholders on one real call."""

    graph: Graph
    values: tuple[Any, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Any]:
        """Values by placeholder."""
        return dict(zip((node.name for node in self.graph.placeholders), self.values, strict=True))

    @cached_property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Values of those placeholders that are the graph's weights."""
        return {name: self.by_name[name] for name in self.graph.weights}


def cut_sample(sample: Sample, nodes: Sequence[str], values: Mapping[str, Any]) -> Sample:
    """Return a sample of only some nodes, to replace a graph that cannot be sent whole.

    `values` holds the values that the nodes read from other nodes.
    """
    cluster = extract(sample.graph, nodes, sample.graph.name, {})
    known = {**sample.by_name, **values}
    weights = tuple(name for name in cluster.input_names if name in set(sample.graph.weights))
    graph = Graph(cluster.module, sample.graph.name, weights=weights, is_training=sample.graph.is_training, is_part=True)
    return Sample(graph, tuple(known[name] for name in cluster.input_names))


def write_sample(folder: Path, sample: Sample) -> None:
    """Write a sample. Raise any error of pickling, for instance for operators that only this process knows."""
    graph = sample.graph
    (folder / "graph.bin").write_bytes(dump_module(graph.module))
    facts = (graph.name, graph.mutated, graph.weights, dict(graph.pinned), graph.is_training, graph.is_part)
    (folder / "homes.json").write_text(json.dumps(homes_of_operators(graph)))
    (folder / "facts.bin").write_bytes(pickle.dumps(facts))
    torch.save(
        [value.detach() if isinstance(value, torch.Tensor) else value for value in sample.values], folder / "values.pt"
    )


def read_sample(folder: Path) -> Sample:
    """Read a sample back, with symbolic sizes in a ShapeEnv of its own.

    Import the modules that register the graph's custom operators. Raise any error of reading, for instance if such an
    operator is still unknown.
    """
    for home in json.loads((folder / "homes.json").read_text()):
        with contextlib.suppress(Exception):  # reading the graph without its operators raises a clearer error
            importlib.import_module(home)
    name, mutated, weights, pinned, is_training, is_part = pickle.loads((folder / "facts.bin").read_bytes())
    module = load_module((folder / "graph.bin").read_bytes())
    values: Sequence[Any] = torch.load(folder / "values.pt", weights_only=True, mmap=True)
    graph = Graph(module, name, mutated=mutated, weights=weights, pinned=pinned, is_training=is_training, is_part=is_part)
    return Sample(graph, tuple(values))


def homes_of_operators(graph: Graph) -> tuple[str, ...]:
    """Return the modules whose import registers the graph's custom operators, as far as PyTorch knows them.

    This includes modules of PyTorch that are imported only when used. The user's main module is excluded: it must not run
    twice.
    """
    names = {_qualified_name(node.target) for node in graph.nodes}
    homes = (getattr(custom_operators.get(name), "_init_fn", None) for name in sorted(names))
    found = (getattr(function, "__module__", "") for function in homes)
    return tuple(dict.fromkeys(home for home in found if home and home != "__main__"))


def _qualified_name(target: Any) -> str:
    return str(target.name()).partition(".")[0] if isinstance(target, OpOverload) else ""


def dump_module(module: fx.GraphModule) -> bytes:
    """Pickle an FX module with the fake values and stack traces of its nodes, and no other metadata."""
    options = PicklerOptions(ops_filter=None, node_metadata_key_filter=lambda key: key in ("val", "stack_trace"))
    copied = _with_its_code(module)
    if any(_has_computed_slice((node.args, node.kwargs)) for node in module.graph.nodes):
        with _DUMPING:
            return GraphPickler.dumps(copied, options)
    with io.BytesIO() as stream:
        pickler: Any = GraphPickler(stream, options)
        pickler.dump(copied)
        return stream.getvalue()


_DUMPING = freed_in_forks(threading.Lock())
"""Held by `GraphPickler.dumps`, which makes slices containers for PyTorch's pytrees, in all threads. Few graphs need it."""


def _has_computed_slice(value: Any) -> bool:
    """Return whether arguments contain a slice whose bounds the graph computes."""
    if isinstance(value, slice):
        return any(isinstance(bound, fx.Node) for bound in (value.start, value.stop, value.step))
    items: Any = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()  # pyright: ignore[reportUnknownVariableType]
    return any(map(_has_computed_slice, items))


class _WithItsCode(fx.GraphModule):
    """A module whose code stays as it is.

    The pickler generates it anew, which replaces the code that other threads run. If two threads do that at once, they
    take names from each other, and the code refers to values that it has not computed.
    """

    def recompile(self) -> Any:
        return None


def _with_its_code(module: torch.nn.Module) -> Any:
    """Return a shallow copy of a module and of those within it, whose code is not generated anew."""
    kind: Any = _WithItsCode if isinstance(module, fx.GraphModule) else type(module)
    copied = kind.__new__(kind)
    children: Mapping[str, torch.nn.Module | None] = vars(module)["_modules"]
    inner = {name: None if child is None else _with_its_code(child) for name, child in children.items()}
    copied.__dict__ = {**vars(module), "_modules": inner}
    return copied


def load_module(data: bytes) -> fx.GraphModule:
    """Read what `dump_module` wrote."""
    loaded = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(loaded, fx.GraphModule)
    for module in loaded.modules():
        if isinstance(module, fx.GraphModule):
            module.recompile()  # nested modules, such as the bodies of `cond`, come back without their code
    return loaded
