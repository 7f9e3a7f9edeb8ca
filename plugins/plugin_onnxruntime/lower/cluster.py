"""Lowers one whole cluster to a `Program`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import onnx
import torch
from onnx import helper
from torch import fx

from hub.plugin import (
    Cluster,
    CompileError,
    ScalarSpec,
    Spec,
    operator_name,
    output_arguments,
    spec_of,
)
from hub.toolkit.intervals import Hazards, constants_of

from ..program import Edges, Program, outside
from .builder import ELEMENT, MICROSOFT, OPSET, Builder
from .call import RULES, Call, Result, number_dtype

IR_VERSION = 10
"""ONNX file format that matches opsets 20 and 21; ORT 1.23 refuses newer ones."""


def lower(cluster: Cluster) -> Program:
    """Return the ONNX program of a cluster. Raise CompileError, with the node's name, if a node cannot be expressed."""
    builder = Builder()
    names: dict[fx.Node, Result] = {}
    hazards = Hazards(constants_of(cluster.module))
    for node in cluster.module.graph.nodes:
        builder.origin = node.name
        if node.op == "placeholder":
            names[node] = _input(builder, node)
        elif node.op == "get_attr":
            names[node] = builder.weight(getattr(cluster.module, str(node.target)), node.name)
        elif node.op == "call_function":
            hazards.add(node)
            names[node] = _call(builder, node, names, hazards)
    return _program(cluster, builder, names)


def _input(builder: Builder, node: fx.Node) -> str:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        order = memory_order(spec_of(value))
        builder.know_shape(node.name, value.shape)
        if order:
            return builder.op("Transpose", node.name, perm=sorted(range(len(order)), key=order.__getitem__))
    elif isinstance(value, torch.SymInt):
        builder.know_number(node.name, value)
    return node.name


def _call(builder: Builder, node: fx.Node, names: dict[fx.Node, Result], hazards: Hazards) -> Result:
    if node.target is operator.getitem:
        source, position = cast("tuple[fx.Node, int]", node.args)
        result: Result = names[source][position]
    else:
        result = _lowered(Call(builder, node, names, hazards))
    value = node.meta.get("val")
    if isinstance(result, str) and isinstance(value, torch.Tensor):
        builder.know_shape(result, value.shape)
    return result


def _lowered(call: Call) -> Result:
    name = operator_name(call.node)
    rule = RULES.get(name)
    if rule is None:
        raise CompileError(f"{name} has no lowering", node=call.node.name)
    try:
        return rule(call)
    except CompileError:
        raise
    except Exception as error:
        raise CompileError(f"{name} could not be lowered: {type(error).__name__}: {error}", node=call.node.name) from error


def _program(cluster: Cluster, builder: Builder, names: dict[fx.Node, Result]) -> Program:
    outputs, output_orders = _outputs(cluster, builder, names)
    nodes = live(builder.nodes, outputs)
    read = {name for node in nodes for name in node.input}
    inputs = tuple(name if name in read else "" for name in cluster.input_names)
    input_orders = tuple(map(memory_order, cluster.inputs))
    graph = helper.make_graph(
        nodes,
        cluster.name,
        [_info(name, spec, order) for name, spec, order in zip(inputs, cluster.inputs, input_orders, strict=True) if name],
        [_info(name, spec, order) for name, spec, order in zip(outputs, cluster.outputs, output_orders, strict=True)],
        [constant for constant in builder.inline if constant.name in read],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="compiler-hub")
    weights = {name: tensor for name, tensor in builder.weights.items() if name in read}
    outside(model, weights, ELEMENT)
    return Program(model, weights, Edges(inputs, outputs, input_orders, output_orders))


def live(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes that outputs depend on, in order; ORT would run the others, too."""
    wanted = set(outputs)
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def memory_order(spec: Spec) -> tuple[int, ...]:
    """Return the dims in memory order if the memory is dense but in another order than the dims; else ()."""
    if isinstance(spec, ScalarSpec) or not all(isinstance(number, int) for number in (*spec.shape, *spec.stride)):
        return ()
    value = torch.empty_strided(spec.shape, spec.stride, device="meta")
    order = tuple(sorted(range(value.dim()), key=lambda dim: -spec.stride[dim]))
    return order if not value.is_contiguous() and value.permute(order).is_contiguous() else ()


def _outputs(
    cluster: Cluster, builder: Builder, names: dict[fx.Node, Result]
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Return the names and memory orders of the outputs; inputs, constants and repeated values are copied first."""
    computed = {name for node in builder.nodes for name in node.output}
    orders = tuple(map(memory_order, cluster.outputs))
    taken: set[str] = set()
    results: list[str] = []
    for node, order in zip(output_arguments(cluster.module), orders, strict=True):
        name: Any = names[node]
        if order:
            name = builder.op("Transpose", name, perm=list(order))
        elif name not in computed or name in taken:
            name = builder.op("Identity", name)
        taken.add(name)
        results.append(name)
    return tuple(results), orders


def _info(name: str, spec: Spec, order: Sequence[int]) -> onnx.ValueInfoProto:
    if isinstance(spec, ScalarSpec):
        return helper.make_tensor_value_info(name, ELEMENT[number_dtype(spec.value)], [])
    shape = [spec.shape[dim] for dim in order] if order else spec.shape
    return helper.make_tensor_value_info(name, ELEMENT[spec.dtype], [_dim(size) for size in shape])


def _dim(size: Any) -> int | str:
    return int(size) if isinstance(size, int) else str(size)
