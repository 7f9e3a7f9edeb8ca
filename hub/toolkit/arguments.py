"""Programs in the form that compilers behind torch-mlir need: weights as arguments, sizes as numbers, few operators.

Nothing here imports a compiler: what a compiler knows (its table of decompositions) is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from hub.plugin.graph import Cluster, Spec, TensorSpec, hint
from hub.process.interrupts import held_back
from hub.process.tracing import tracing
from hub.torch_private import FakeTensorMode, detect_fake_mode

Decompositions = Mapping[Any, Callable[..., Any]]
"""Operator overloads, each with the function that decomposes it."""


@dataclass(frozen=True)
class Arguments:
    """A cluster with its weights as additional inputs."""

    module: fx.GraphModule
    weights: tuple[str, ...]
    """Targets of the weights, in the order of their arguments, which follow the cluster's inputs."""


def with_weights(cluster: Cluster) -> Arguments:
    """Return a cluster's program with the weights as arguments."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in cluster.module.graph.find_nodes(op="placeholder"):
        values[node] = graph.node_copy(node)
    weights: dict[str, fx.Node] = {}
    for node in cluster.module.graph.find_nodes(op="get_attr"):
        target = str(node.target)
        if target not in weights:
            weights[target] = graph.placeholder(f"weight{len(weights)}")
            weights[target].meta["val"] = node.meta["val"]
        values[node] = weights[target]
    for node in cluster.module.graph.nodes:
        if node.op in ("call_function", "output"):
            values[node] = graph.node_copy(node, values.__getitem__)
    return Arguments(fx.GraphModule({}, graph), tuple(weights))


def decomposed(module: fx.GraphModule, table: Decompositions) -> fx.GraphModule:
    """Return a program with the operators in a table decomposed, and symbolic sizes kept."""
    values: list[Any] = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    mode = detect_fake_mode(values)
    kind = "fake" if mode is None else "real"  # "real" keeps the fake tensors, and with them the symbols
    with held_back(), tracing(), mode or nullcontext():
        return make_fx(module, decomposition_table=dict(table), tracing_mode=kind)(*values)


@dataclass(frozen=True)
class Specialised:
    """A program for given sizes, without symbols or number inputs (unless made by `hub.toolkit.open_sizes`)."""

    module: fx.GraphModule
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs followed by its weights. Unused ones are left out."""
    weights: tuple[str, ...]


Sizes = tuple["tuple[int, ...] | int | bool | float", ...]
"""For each input of a cluster, the shape of a tensor or the number itself."""


def captured_sizes(cluster: Cluster) -> Sizes:
    """Return the sizes with which a cluster was captured."""
    return tuple(
        tuple(map(hint, spec.shape)) if isinstance(spec, TensorSpec) else hint(spec.value) for spec in cluster.inputs
    )


def specialised(
    cluster: Cluster,
    sizes: Sizes,
    table: Decompositions,
    *,
    prepare: Callable[[fx.GraphModule], None] | None = None,
) -> Specialised:
    """Return a cluster's program for given sizes, with the operators in a table decomposed.

    `prepare` may modify it before that.
    """

    def fakes() -> list[Any]:
        return [fake(spec, size) for spec, size in zip(cluster.inputs, sizes, strict=True)]

    return traced(cluster, FakeTensorMode(allow_non_fake_inputs=True), fakes, table, prepare)


def traced(
    cluster: Cluster,
    mode: FakeTensorMode,
    inputs: Callable[[], list[Any]],
    table: Decompositions,
    prepare: Callable[[fx.GraphModule], None] | None,
) -> Specialised:
    """Return a cluster's program, traced in a fake tensor mode with the inputs that `inputs` makes within that mode."""
    arguments = with_weights(cluster)
    _without_views(arguments.module)
    if prepare is not None:
        prepare(arguments.module)
    constants = cluster.constants
    with held_back(), tracing(), mode:
        values = inputs()
        values += [mode.from_tensor(constants[name].detach(), static_shapes=True) for name in arguments.weights]
        module = make_fx(arguments.module, decomposition_table=dict(table), tracing_mode="real")(*values)
    module.graph.eliminate_dead_code()
    fed: list[int] = []
    for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if node.users:
            fed.append(position)
        else:
            module.graph.erase_node(node)
    module.recompile()
    return Specialised(module, tuple(fed), arguments.weights)


def _without_views(module: fx.GraphModule) -> None:
    """Replace views by `reshape`: a decomposed operator may produce other strides than views rely on."""
    for target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in module.graph.find_nodes(op="call_function", target=target):
            node.target = torch.ops.aten.reshape.default
    module.recompile()


def fake(spec: Spec, size: Any) -> Any:
    """Return an input of the given size; call this within a fake tensor mode."""
    if not isinstance(spec, TensorSpec):
        return size
    return torch.empty_strided(size, _strides(size, spec), dtype=spec.dtype, device=spec.device)


def _strides(shape: Sequence[int], spec: TensorSpec) -> tuple[int, ...]:
    """Return strides for a shape whose dims keep the memory order of the captured tensor, which views rely on."""
    captured = [hint(stride) for stride in spec.stride]  # int() of a symbol would specialise it for everyone
    if not spec.is_dynamic:
        return tuple(captured)
    found = [0] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (captured[dim], -dim)):
        if captured[dim]:
            found[dim] = step
            step *= shape[dim] or 1
    return tuple(found)
