"""Lowering of a cluster to a tensor program, with one rule for each operator."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import fx

from hub.errors import CompileError
from hub.plugin.graph import Cluster, ScalarSpec, TensorSpec, output_arguments
from hub.plugin.table import elements, is_symbolic, operator_name
from hub.toolkit.builders import extent, in_place, permuted, with_own_memory
from hub.toolkit.layout import inverse, memory_order
from hub.toolkit.rules import RULES
from hub.toolkit.rules.call import DTYPES, Call
from hub.toolkit.sizes import Size, size_of
from hub.toolkit.tensors import Number, Source, Tensor, arguments_of


@dataclass(frozen=True)
class Lowered:
    """A cluster as a tensor program."""

    outputs: tuple[Tensor, ...]
    """Outputs in memory order, each with its own memory."""
    weights: Mapping[str, torch.Tensor]
    """Weights packed in memory order, by the names of their sources; the sources of inputs are named i0, i1, ..."""
    origins: Mapping[Tensor, str]
    """The node for which each tensor was made."""


def lower(cluster: Cluster, *, gapped: Mapping[int, tuple[Size, ...]] = MappingProxyType({})) -> Lowered:
    """Return a cluster's tensor program. Raise CompileError for an operator without a rule.

    `gapped` maps positions of inputs that will not be packed to their strides: they are read in place.
    """
    values: dict[fx.Node, Any] = {}
    for position, node in enumerate(cluster.module.graph.find_nodes(op="placeholder")):
        values[node] = _input(position, cluster, gapped.get(position))
    names = _weight_names(cluster)
    origins: dict[Tensor, str] = {}
    for node in cluster.module.graph.nodes:
        if node.op == "get_attr":
            name = names[str(node.target)]
            weight = getattr(cluster.module, str(node.target))
            order = _weight_order(weight)
            shape = tuple(weight.shape[dim] for dim in order)
            values[node] = permuted(Source(shape, DTYPES[weight.dtype], name), inverse(order))
        elif node.op == "call_function":
            values[node] = _lowered(node, values, cluster)
            _note_origins(values[node], node.name, origins)
    outputs: list[Tensor] = []
    for argument, spec in zip(output_arguments(cluster.module), cluster.outputs, strict=True):
        outputs.append(_output(values[argument], spec, outputs))
    return Lowered(tuple(outputs), weights_of(cluster), origins)


def weights_of(cluster: Cluster) -> dict[str, torch.Tensor]:
    """Return the weights, packed in memory order, by name."""
    names = _weight_names(cluster)
    return {
        name: getattr(cluster.module, target).detach().permute(_weight_order(getattr(cluster.module, target))).contiguous()
        for target, name in names.items()
    }


def _weight_names(cluster: Cluster) -> dict[str, str]:
    targets = dict.fromkeys(str(node.target) for node in cluster.module.graph.find_nodes(op="get_attr"))
    return {target: f"weight{place}" for place, target in enumerate(targets)}


def _weight_order(weight: torch.Tensor) -> tuple[int, ...]:
    return memory_order(TensorSpec.of(weight))


def _input(position: int, cluster: Cluster, strides: Sequence[Size] | None) -> Tensor:
    spec = cluster.inputs[position]
    if isinstance(spec, ScalarSpec):
        return _number(position, spec)
    name = f"i{position}"
    if strides is not None:
        shape = tuple(map(size_of, spec.shape))
        return in_place(Source((extent(shape, strides),), DTYPES[spec.dtype], name), shape, strides)
    order = memory_order(spec)
    shape = tuple(size_of(spec.shape[dim]) for dim in order)
    return permuted(Source(shape, DTYPES[spec.dtype], name), inverse(order))


def _number(position: int, spec: ScalarSpec) -> Tensor:
    if spec.kind == "int":
        value = size_of(spec.value) if is_symbolic(spec.value) else f"i{position}"
        return Number((), "i64", value)
    return Number((), "f64" if spec.kind == "float" else "i1", f"i{position}")


def _lowered(node: fx.Node, values: Mapping[fx.Node, Any], cluster: Cluster) -> Any:
    if node.target is operator.getitem:
        source, place = cast(tuple[fx.Node, int], node.args)
        return values[source][place]
    rule = RULES.get(operator_name(node))
    if rule is None:
        raise CompileError(f"no rule for {operator_name(node)}", cluster=cluster.name, node=node.name)
    return rule(Call(node, values))


def _note_origins(value: Any, name: str, origins: dict[Tensor, str]) -> None:
    """Record a node as the origin of all tensors behind its value that no earlier node made."""
    stack = [each for each in elements(value) if isinstance(each, Tensor)]
    while stack:
        tensor = stack.pop()
        if tensor not in origins and not isinstance(tensor, Source):
            origins[tensor] = name
            stack.extend(arguments_of(tensor))


def _output(tensor: Tensor, spec: TensorSpec, earlier: list[Tensor]) -> Tensor:
    return with_own_memory(permuted(tensor, memory_order(spec)), earlier)
