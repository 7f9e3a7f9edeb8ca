"""Extracts a set of nodes from a graph as a cluster: a program of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import fx

from hub.errors import PlanError
from hub.plugin.graph import Cluster, Graph, edges_into, edges_out_of, spec_of


def extract(graph: Graph, nodes: Iterable[str], name: str, weights: Mapping[str, torch.Tensor]) -> Cluster:
    """Return the cluster made of the named nodes. Node names are unchanged.

    `weights` holds the values of those placeholders that become constants; other placeholders become inputs. Raises
    PlanError if the set is not convex: if a path leaves it and comes back.
    """
    wanted = frozenset(nodes)
    members = tuple(node for node in graph.nodes if node.name in wanted)
    if len(members) != len(wanted):
        raise PlanError(f"nodes {sorted(wanted - {node.name for node in members})} are not in {graph.name}", cluster=name)
    check_convex(members, name)
    sources = edges_into(members)
    inputs = tuple(node for node in sources if node.op != "get_attr" and node.name not in weights)
    outputs = edges_out_of(members)
    module = _program(graph, members, sources, inputs, outputs, weights)
    return Cluster(
        name=name,
        module=module,
        node_names=tuple(node.name for node in members),
        input_names=tuple(node.name for node in inputs),
        output_names=tuple(node.name for node in outputs),
        inputs=tuple(spec_of(node.meta["val"]) for node in inputs),
        outputs=tuple(spec_of(node.meta["val"]) for node in outputs),  # pyright: ignore[reportArgumentType] - numbers are pinned to eager
        relations=graph.relations,
    )


def check_convex(members: tuple[fx.Node, ...], name: str) -> None:
    """Raise PlanError, naming the node, if a path leaves the set and comes back."""
    inside = set(members)
    outside_after: set[fx.Node] = set()
    for node in members[0].graph.nodes if members else ():
        reads = node.all_input_nodes
        if node in inside:
            if bad := next((source for source in reads if source in outside_after), None):
                raise PlanError(
                    f"not convex: a path leaves the cluster and comes back through {bad.name}", cluster=name, node=node.name
                )
        elif any(source in inside or source in outside_after for source in reads):
            outside_after.add(node)


def _program(
    graph: Graph,
    members: tuple[fx.Node, ...],
    sources: tuple[fx.Node, ...],
    inputs: tuple[fx.Node, ...],
    outputs: tuple[fx.Node, ...],
    weights: Mapping[str, torch.Tensor],
) -> fx.GraphModule:
    program = fx.Graph()
    root = torch.nn.Module()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = program.create_node("placeholder", node.name, name=node.name)
    for node in sources:
        if node in copies:
            continue
        if node.op == "get_attr":
            target, value = str(node.target), getattr(graph.module, str(node.target))
        else:
            target, value = node.name, weights[node.name].detach()
        if isinstance(value, torch.Tensor):
            root.register_buffer(target, value)
        else:
            setattr(root, target, value)
        copies[node] = program.create_node("get_attr", target, name=node.name)
    for node in members:
        copies[node] = program.node_copy(node, copies.__getitem__)
        copies[node].name = node.name
    program.output(tuple(copies[node] for node in outputs))
    for original, copy in copies.items():
        copy.meta = {key: value for key, value in original.meta.items() if key in ("val", "stack_trace")}
    return fx.GraphModule(root, program)
