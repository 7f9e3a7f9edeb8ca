"""Lowers a cluster to the form that Inductor compiles: a functional core-ATen graph with weights as constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin import (
    Cluster,
    CompileError,
    ScalarSpec,
    forget_last_trace,
)
from plugin_inductor.checked import insert_checks, whole_alarm
from plugin_inductor.exact import DECOMPOSITIONS, REPLACEMENTS
from plugin_inductor.symbols import FreshSizes
from plugin_inductor.torch_private import FakeTensorMode, aot_export_module, select_decomp_table

_WEIGHT = "hub_weight_{}"
"""Name of a weight. Inductor makes constants globals of its program and inputs locals, so their names must differ: with the
names of the cluster, a placeholder "arg12_1" hides a weight "arg12_1" and the numbers are wrong."""


@dataclass(frozen=True)
class Lowered:
    """A program for Inductor's graph compiler, with the shape environment in which it was made."""

    module: fx.GraphModule
    inputs: tuple[Any, ...]
    """Fake tensors and SymInts, in the order of the cluster's inputs."""
    mode: FakeTensorMode
    sizes: FreshSizes
    weights: tuple[torch.Tensor, ...]
    """Values of the constants `hub_weight_0` and so on."""


def lower(cluster: Cluster) -> Lowered:
    """Decompose a cluster with Inductor's own table, in a shape environment of its own.

    Raise CompileError for inputs that Inductor cannot take. Exceptions of AOTAutograd propagate unchanged.
    """
    _check_inputs(cluster)
    sizes = FreshSizes(cluster.inputs)
    mode = FakeTensorMode(shape_env=sizes.env, allow_non_fake_inputs=True)
    weights = tuple(weight.detach() for weight in cluster.constants.values())
    module = _with_weights_as_inputs(cluster)
    fake_weights = [mode.from_tensor(weight, static_shapes=True) for weight in weights]
    inputs = sizes.fake_inputs(mode)
    program, signature = aot_export_module(
        module, (*fake_weights, *inputs), trace_joint=False, decompositions={**select_decomp_table(), **DECOMPOSITIONS}
    )
    assert isinstance(program, fx.GraphModule)
    forget_last_trace()  # before the weights are added, which it would keep alive
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise CompileError("the cluster writes to its inputs", backend="inductor", cluster=cluster.name)
    _bind_weights(program, weights)
    _copy_aliasing_outputs(program)
    return Lowered(program, inputs, mode, sizes, weights)


def _check_inputs(cluster: Cluster) -> None:
    for name, spec in zip(cluster.input_names, cluster.inputs, strict=True):
        if isinstance(spec, ScalarSpec) and spec.kind != "int" and not isinstance(spec.value, (bool, float)):
            raise CompileError(
                f"input {name} is a {spec.kind} known only at run time; only sizes can be",
                backend="inductor",
                cluster=cluster.name,
            )


def _with_weights_as_inputs(cluster: Cluster) -> fx.GraphModule:
    """Return a copy whose first placeholders are the weights, in the order of `cluster.constants`, with checks.

    Tracing the cluster itself would put fake tensors in its attributes for a while, and other threads may read them.
    """
    graph = fx.Graph()
    weights = {name: graph.placeholder(_WEIGHT.format(index)) for index, name in enumerate(cluster.constants)}
    copies: dict[fx.Node, fx.Node] = {}
    alarms: list[fx.Node] = []
    for node in cluster.module.graph.nodes:
        if node.op == "get_attr" and str(node.target) in weights:
            copies[node] = weights[str(node.target)]
        elif node.op == "output":
            results: Any = fx.map_arg(node.args[0], copies.__getitem__)
            more = (graph.call_function(whole_alarm, tuple(alarms)),) if alarms else ()
            graph.output((*results, *more))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].target = REPLACEMENTS.get(node.target, node.target)
            copies[node].meta = {}
            if node.op == "call_function":
                alarms += insert_checks(node, copies[node])
    return fx.GraphModule(cluster.module, graph)


def _bind_weights(program: fx.GraphModule, weights: tuple[torch.Tensor, ...]) -> None:
    placeholders = program.graph.find_nodes(op="placeholder")
    for index, (node, weight) in enumerate(zip(placeholders, weights, strict=False)):
        name = _WEIGHT.format(index)
        program.register_buffer(name, weight)
        with program.graph.inserting_before(node):
            constant = program.graph.create_node("get_attr", name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        program.graph.erase_node(node)
    program.recompile()


def _copy_aliasing_outputs(program: fx.GraphModule) -> None:
    """Replace every output that shares memory with an input by a copy, in place. Constants are copied at run time.

    Compares storages of fake values, not schemas: `type_as`, `meshgrid` or `einsum` may return undeclared views.
    """
    graph = program.graph
    shared = {_storage(node) for node in graph.find_nodes(op="placeholder")} - {None}
    output = graph.output_node()
    outputs: Any = output.args[0]
    for node in dict.fromkeys(item for item in outputs if isinstance(item, fx.Node)):
        if _storage(node) in shared:
            with graph.inserting_before(output):
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta["val"] = node.meta["val"].clone()
            output.replace_input_with(node, copy)
    program.recompile()


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return value.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] - fake tensors have no address
