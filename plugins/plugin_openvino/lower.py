"""Lowers a cluster into an OpenVINO model, operator by operator.

OpenVINO's own FX frontend (2026.4) has no rule for pre-dispatch operators such as `layer_norm`, `conv2d`, `softmax.int`,
`matmul` or `reshape`, and ignores PyTorch's NaN and integer semantics in others, so the rules are the plugin's own.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from openvino import Model, Output, PartialShape, op
from torch import fx

from hub.plugin import (
    Cluster,
    CompileError,
    ConstantsRefused,
    ScalarSpec,
    Spec,
    elements,
    is_symbolic,
    operator_name,
)
from hub.toolkit.intervals import Hazards, constants_of
from plugin_openvino.alarms import Alarm, Alarms
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import INT32_MAX, OV_TYPES, Value, indices, output
from plugin_openvino.rules import RULES
from plugin_openvino.rules.blind import raise_alarm_where_lost
from plugin_openvino.support import NAN_BLIND

SCALAR_DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
"""dtype with which each kind of number enters a model."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """An OpenVINO model of a cluster."""

    model: Model
    fed: tuple[int, ...]
    """For each parameter of the model, the position of the cluster input that feeds it."""
    alarms: tuple[Alarm, ...]
    """If any, the model has one more result than the cluster: a bool that is true if the call must run eagerly."""


def lower(cluster: Cluster) -> Lowered:
    """Return an OpenVINO model of the cluster: weights become constants that share their memory; unread inputs are omitted.

    Raise CompileError, with the node's name, if a rule fails.
    """
    values: dict[fx.Node, Value] = {}
    alarms = Alarms()
    parameters: list[op.Parameter] = []
    fed: list[int] = []
    for position, (node, spec) in enumerate(zip(_placeholders(cluster), cluster.inputs, strict=True)):
        if node.users:
            parameters.append(_parameter(node.name, spec))
            values[node] = output(parameters[-1])
            fed.append(position)
    constants = constants_of(cluster.module)
    for node, value in constants.items():
        values[node] = weight_constant(value, cluster.name, node.name)
    hazards = Hazards(constants)
    for node in cluster.nodes:
        values[node] = _lowered(node, values, alarms, hazards, cluster.name)
    leaving: Any = cluster.module.graph.output_node().args[0]
    alarms.close(leaving)
    results = [_result(values[node]) for node in leaving]
    if (alarm := alarms.whole()) is not None:
        results.append(op.Result(alarm))
    model = Model(results, parameters, cluster.name)  # pyright: ignore[reportGeneralTypeIssues] - its stub's base is another
    return Lowered(model, tuple(fed), alarms.kinds)


def weight_constant(value: torch.Tensor, cluster: str, node: str) -> Output:
    """Return a constant over the weight's own memory, copied only if it is not contiguous.

    Raise ConstantsRefused for integers beyond the int32 range in which OpenVINO computes.
    """
    if problem := _unfit(value):
        raise ConstantsRefused(problem, backend="openvino", cluster=cluster, node=node)
    array = value.detach().contiguous().numpy()
    return output(op.Constant(array, shared_memory=array.ndim > 0))


def _unfit(value: Any) -> str | None:
    """Return why a value cannot become a constant, or return None."""
    if not isinstance(value, torch.Tensor) or value.dtype not in OV_TYPES:
        return f"a constant of {getattr(value, 'dtype', type(value).__name__)}, only {', '.join(map(str, OV_TYPES))} here"
    if value.dtype is torch.int64 and value.numel() and max(abs(int(bound)) for bound in value.aminmax()) > INT32_MAX:
        return "an int64 constant beyond the int32 range in which OpenVINO computes"
    return None


def _placeholders(cluster: Cluster) -> Sequence[fx.Node]:
    return cluster.module.graph.find_nodes(op="placeholder")


def _parameter(name: str, spec: Spec) -> op.Parameter:
    if isinstance(spec, ScalarSpec):
        found = ops.parameter(PartialShape([]), OV_TYPES[SCALAR_DTYPES[spec.kind]])
    else:
        shape = PartialShape([-1 if is_symbolic(size) else int(size) for size in spec.shape])
        found = ops.parameter(shape, OV_TYPES[spec.dtype])
    found.set_friendly_name(name)
    return found


def _lowered(node: fx.Node, values: dict[fx.Node, Value], alarms: Alarms, hazards: Hazards, cluster: str) -> Value:
    hazards.add(node)
    if node.target is operator.getitem:
        source, position = node.args
        several: Any = values[cast("fx.Node", source)]
        return several[position]
    name = operator_name(node)
    try:
        call = Call(node, values, alarms)
        if name in NAN_BLIND:
            raise_alarm_where_lost(call, hazards)
        found = _outputs(RULES[name](call))
        alarms.follow(node, lambda: call.tensor("condition", torch.bool))
    except Exception as error:
        raise CompileError(
            f"{name} cannot be lowered: {type(error).__name__}: {error}",
            backend="openvino",
            cluster=cluster,
            node=node.name,
        ) from error
    for part in found if isinstance(found, tuple) else (found,):
        if part is not None and part.get_index() == 0:
            part.get_node().set_friendly_name(node.name)
    return found


def _outputs(found: Any) -> Value:
    if isinstance(found, tuple):
        return tuple(None if part is None else output(part) for part in elements(found))
    return output(found)


def _result(value: Value) -> op.Result:
    assert isinstance(value, Output), "a tuple cannot leave a cluster"
    return op.Result(_copied(value) if value.get_node().get_type_name() == "Parameter" else value)


def _copied(value: Output) -> Output:
    """Return a copy. OpenVINO (2026.4) does not write a preset output if a parameter is directly a result."""
    rank = value.get_partial_shape().rank.get_length()
    if rank == 0:
        one = ops.tile(ops.reshape(value, indices([1]), False), indices([1]))
        return output(ops.reshape(one, output(op.Constant(np.zeros(0, np.int64))), False))
    return output(ops.tile(value, indices([1] * rank)))
