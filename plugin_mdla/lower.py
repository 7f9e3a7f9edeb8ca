"""Lower a cluster to a program of the device: batch norms folded, linear layers as Gemm, several inputs and outputs.

If a cluster contains an image, every tensor is one: tensors [N, C] are [N, C, 1, 1] on the device, and a linear layer
over a flattened image is a convolution with a filter as large as the image. Other clusters use [N, C] and Gemm.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from hub.plugin import (
    Cluster,
    CompileError,
    TensorSpec,
    argument,
    elements,
    operator_name,
    value_of,
)

from .program import Layer, Program, Shape


def lower(cluster: Cluster) -> Program:
    """Return the program of a cluster. Raise CompileError, naming the node, if the device has no form of it."""
    lowering = _Lowering(cluster, is_flat=not any(len(value_of(node).shape) == 4 for node in _tensors(cluster)))
    for node in cluster.module.graph.nodes:
        lowering.take(node)
    outputs = tuple(lowering.value(node).name for node in elements(cluster.module.graph.output_node().args[0]))
    used = _needed(lowering.layers, outputs)
    return Program(lowering.inputs, tuple(layer for layer in lowering.layers if layer.name in used), outputs)


def _tensors(cluster: Cluster) -> list[fx.Node]:
    found = [node for node in cluster.module.graph.nodes if node.op in ("placeholder", "call_function")]
    return [node for node in found if isinstance(value_of(node), torch.Tensor)]


def _needed(layers: Sequence[Layer], outputs: Sequence[str]) -> set[str]:
    needed = set(outputs)
    for layer in reversed(layers):
        if layer.name in needed:
            needed.update(layer.inputs)
    return needed


@dataclass(frozen=True, slots=True)
class _Value:
    """An activation: its name and its shape on the device."""

    name: str
    shape: Shape


@dataclass(slots=True, eq=False)
class _Lowering:
    cluster: Cluster
    is_flat: bool
    inputs: dict[str, Shape] = field(default_factory=dict[str, Shape])
    layers: list[Layer] = field(default_factory=list[Layer])
    values: dict[fx.Node, _Value] = field(default_factory=dict[fx.Node, _Value])

    def take(self, node: fx.Node) -> None:
        """Lower one node; weights and the output are looked up when they are needed."""
        if node.op == "placeholder":
            self._enter(node)
        elif node.op == "call_function" and node.target is operator.getitem:
            self.values[node] = self.value(node.args[0])
        elif node.op == "call_function":
            rule = _RULES.get(operator_name(node))
            if rule is None:
                raise self.refused(node, f"{operator_name(node)} has no form on the device")
            self.values[node] = rule(self, node)

    def value(self, node: Any) -> _Value:
        """Return the activation of a node. Raise CompileError for a weight."""
        if node not in self.values:
            raise CompileError(f"{node} is not an activation", backend="mdla", cluster=self.cluster.name)
        return self.values[node]

    def weight(self, node: fx.Node, name: str) -> torch.Tensor | None:
        """Return the constant in an argument; None if it is omitted. Raise CompileError for an activation."""
        source = argument(node, name)
        if source is None:
            return None
        found = self.constant(source)
        if found is None:
            raise self.refused(node, f"{name} is not a constant: the device keeps its own weights")
        return found

    def constant(self, source: Any) -> torch.Tensor | None:
        """Return the tensor of a weight or number; None for an activation."""
        if isinstance(source, (int, float)):
            return torch.tensor(float(source))
        if source.op != "get_attr":
            return None
        return self.cluster.constants[str(source.target)].detach()

    def add(
        self,
        kind: str,
        node: fx.Node | None,
        inputs: Sequence[_Value],
        shape: Sequence[int],
        *,
        name: str = "",
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        **attributes: Any,
    ) -> _Value:
        """Append a layer. `node` is the node that it computes; `name` names an intermediate step, which computes none."""
        owner = node.name if node is not None else ""
        result = _Value(name or owner, tuple(map(int, shape)))
        sources = tuple(value.name for value in inputs)
        self.layers.append(Layer(kind, result.name, sources, result.shape, attributes, weight, bias, owner))
        return result

    def shape_of(self, node: fx.Node) -> Shape:
        """Return the device shape of a node's result."""
        value = value_of(node)
        return self.device_shape(tuple(elements(value)[0].shape))

    def device_shape(self, shape: Sequence[int]) -> Shape:
        """Return the shape on the device of a tensor of this shape."""
        sizes = tuple(map(int, shape))
        return sizes if self.is_flat or len(sizes) != 2 else (*sizes, 1, 1)

    def refused(self, node: fx.Node, reason: str) -> CompileError:
        """Return the error for a node that cannot be lowered."""
        return CompileError(reason, backend="mdla", cluster=self.cluster.name, node=node.name)

    def _enter(self, node: fx.Node) -> None:
        spec = value_of(node)
        if not isinstance(spec, torch.Tensor) or spec.dtype != torch.float32 or spec.dim() not in (2, 4):
            raise self.refused(
                node, f"input {TensorSpec.of(spec) if isinstance(spec, torch.Tensor) else spec} cannot enter"
            )
        self.inputs[node.name] = self.device_shape(spec.shape)
        self.values[node] = _Value(node.name, self.inputs[node.name])


Rule = Callable[[_Lowering, fx.Node], _Value]


def _pair(value: Any) -> tuple[int, int]:
    items = elements(value)
    return (int(items[0]), int(items[-1]))


# --- Layers with weights ----------------------------------------------------------------------------------------------


def _conv(self: _Lowering, node: fx.Node) -> _Value:
    weight = self.weight(node, "weight")
    assert weight is not None
    dilations, padding = _pair(argument(node, "dilation")), argument(node, "padding")
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)]
        pads = (*(total // 2 for total in totals), *(total - total // 2 for total in totals))
    else:
        pads = _pair(0 if padding == "valid" else padding) * 2
    return self.add(
        "Conv", node, [self.value(argument(node, "input"))], self.shape_of(node), weight=weight,
        bias=self.weight(node, "bias"), strides=_pair(argument(node, "stride")), pads=pads, dilations=dilations,
        groups=int(argument(node, "groups")),
    )  # fmt: skip


def _conv_transpose(self: _Lowering, node: fx.Node) -> _Value:
    source = self.value(argument(node, "input"))
    return self.add(
        "ConvTranspose", node, [source], self.shape_of(node), weight=self.weight(node, "weight"),
        bias=self.weight(node, "bias"), strides=_pair(argument(node, "stride")), pads=_pair(argument(node, "padding")) * 2,
        output_padding=_pair(argument(node, "output_padding")), dilations=_pair(argument(node, "dilation")),
        groups=int(argument(node, "groups")), input_shape=source.shape,
    )  # fmt: skip


def _linear(self: _Lowering, node: fx.Node) -> _Value:
    weight, source = self.weight(node, "weight"), self.value(argument(node, "input"))
    assert weight is not None
    bias = self.weight(node, "bias")
    if self.is_flat:
        return self.add("Gemm", node, [source], self.shape_of(node), weight=weight, bias=bias)
    filters = weight.reshape(weight.shape[0], *source.shape[1:])
    return self.add(
        "Conv", node, [source], self.shape_of(node), weight=filters, bias=bias, strides=(1, 1), pads=(0,) * 4,
        dilations=(1, 1), groups=1,
    )  # fmt: skip


def _batch_norm(self: _Lowering, node: fx.Node) -> _Value:
    """Lower to scale x + shift, with scale = weight / sqrt(variance + eps) in float64, because epsilon is no integer."""
    scale, shift = _normalisation(self, node)
    source = self.value(argument(node, "input"))
    before = self.layers[-1] if self.layers else None
    owner = next((user for user in node.users if user.target is operator.getitem), node)
    if before is None or before.name != source.name or not _is_only_reader(node, before):
        return self.add("BatchNormalization", owner, [source], source.shape, weight=scale.float(), bias=shift.float())
    assert before.weight is not None
    self.layers.pop()
    bias = torch.zeros_like(shift) if before.bias is None else before.bias.double()
    weight = before.weight.double() * _along_outputs(before, scale)
    return self.add(
        before.kind, owner, [_Value(name, ()) for name in before.inputs], source.shape, weight=weight.float(),
        bias=(bias * scale + shift).float(), **before.attributes,
    )  # fmt: skip


def _normalisation(self: _Lowering, node: fx.Node) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = self.weight(node, "running_mean"), self.weight(node, "running_var")
    if mean is None or variance is None:
        raise self.refused(node, "batch norm without running statistics")
    weight, bias = self.weight(node, "weight"), self.weight(node, "bias")
    scale = (variance.double() + float(argument(node, "eps"))).rsqrt()
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale
    return scale, shift if bias is None else shift + bias.double()


def _is_only_reader(node: fx.Node, before: Layer) -> bool:
    """Return whether only this batch norm reads the layer's result, and each of its channels has its own filter."""
    source = argument(node, "input")
    return before.kind in ("Conv", "ConvTranspose", "Gemm") and len(source.users) == 1


def _along_outputs(layer: Layer, scale: torch.Tensor) -> torch.Tensor:
    """Return a factor per output channel, shaped to broadcast to a layer's weight."""
    assert layer.weight is not None
    if layer.kind != "ConvTranspose":
        return scale.view(-1, *[1] * (layer.weight.dim() - 1))
    groups = layer.attributes["groups"]
    per_group = scale.view(groups, 1, -1).expand(-1, layer.weight.shape[0] // groups, -1)
    return per_group.reshape(layer.weight.shape[0], -1, 1, 1)


# --- Pooling and resampling -------------------------------------------------------------------------------------------


def _pool(kind: str) -> Rule:
    def rule(self: _Lowering, node: fx.Node) -> _Value:
        kernel = _pair(argument(node, "kernel_size"))
        strides = _pair(argument(node, "stride")) if argument(node, "stride") else kernel
        extra: dict[str, Any] = {}
        if kind == "AveragePool":
            extra["count_include_pad"] = bool(argument(node, "count_include_pad"))
        return self.add(
            kind, node, [self.value(argument(node, "self"))], self.shape_of(node), kernel=kernel, strides=strides,
            pads=_pair(argument(node, "padding")) * 2, **extra,
        )  # fmt: skip

    return rule


def _adaptive(self: _Lowering, node: fx.Node) -> _Value:
    source, shape = self.value(argument(node, "self")), self.shape_of(node)
    if shape[2:] == (1, 1):
        return self.add("GlobalAveragePool", node, [source], shape)
    kernel = (source.shape[2] // shape[2], source.shape[3] // shape[3])
    return self.add(
        "AveragePool", node, [source], shape, kernel=kernel, strides=kernel, pads=(0,) * 4, count_include_pad=True
    )


def _mean(self: _Lowering, node: fx.Node) -> _Value:
    return self.add("GlobalAveragePool", node, [self.value(argument(node, "self"))], self.shape_of(node))


def _upsample(self: _Lowering, node: fx.Node) -> _Value:
    source, shape = self.value(node.args[0]), self.shape_of(node)
    scales = (shape[2] // source.shape[2], shape[3] // source.shape[3])
    return self.add("Upsample", node, [source], shape, scales=scales)


# --- Pointwise functions ----------------------------------------------------------------------------------------------


def _unary(kind: str) -> Rule:
    def rule(self: _Lowering, node: fx.Node) -> _Value:
        source = self.value(node.args[0])
        return self.add(kind, node, [source], source.shape)

    return rule


def _leaky(self: _Lowering, node: fx.Node) -> _Value:
    source = self.value(node.args[0])
    return self.add("LeakyRelu", node, [source], source.shape, alpha=float(argument(node, "negative_slope")))


def _clamped(self: _Lowering, node: fx.Node) -> _Value:
    """Lower min(max(x, 0), m) to Relu(x) - Relu(x - m), which is exact in integers."""
    most = 6.0 if "relu6" in operator_name(node) else float(argument(node, "max_val"))
    source, name = self.value(node.args[0]), node.name
    kept = self.add("Relu", None, [source], source.shape, name=f"{name}.kept")
    above = self.add("Add", None, [source], source.shape, name=f"{name}.above", weight=torch.tensor(-most))
    excess = self.add("Relu", None, [above], source.shape, name=f"{name}.excess")
    less = self.add("Mul", None, [excess], source.shape, name=f"{name}.less", weight=torch.tensor(-1.0))
    return self.add("Add", node, [kept, less], source.shape)


def _silu(self: _Lowering, node: fx.Node) -> _Value:
    source = self.value(node.args[0])
    gate = self.add("Sigmoid", None, [source], source.shape, name=f"{node.name}.gate")
    return self.add("Mul", node, [source, gate], source.shape)


# --- Two operands -----------------------------------------------------------------------------------------------------


def _add(self: _Lowering, node: fx.Node) -> _Value:
    sign = -1.0 if "sub" in operator_name(node) else 1.0
    return _both(self, node, "Add", factor=sign * float(argument(node, "alpha")))


def _reversed(self: _Lowering, node: fx.Node) -> _Value:
    """Lower a number minus alpha times self."""
    source, factor = self.value(argument(node, "self")), torch.tensor(-float(argument(node, "alpha")))
    scaled = self.add("Mul", None, [source], source.shape, name=f"{node.name}.scaled", weight=factor)
    return self.add("Add", node, [scaled], source.shape, weight=torch.tensor(float(argument(node, "other"))))


def _mul(self: _Lowering, node: fx.Node) -> _Value:
    return _both(self, node, "Mul", factor=1.0)


def _both(self: _Lowering, node: fx.Node, kind: str, *, factor: float) -> _Value:
    """Lower `kind` of self and `factor` times other."""
    first, second = argument(node, "self"), argument(node, "other")
    left, right = self.constant(first), self.constant(second)
    shape = self.shape_of(node)
    if right is not None:
        return self.add(kind, node, [self.value(first)], shape, weight=_aligned(right, node, shape) * factor)
    other = self.value(second)
    if factor != 1.0:
        weight = torch.tensor(factor)
        other = self.add("Mul", None, [other], other.shape, name=f"{node.name}.scaled", weight=weight)
    if left is not None:
        return self.add(kind, node, [other], shape, weight=_aligned(left, node, shape))
    operands = [self.value(first), other]
    # The operand with one number per channel comes second: the device broadcasts only that one.
    operands.sort(key=lambda value: value.shape != shape)
    return self.add(kind, node, operands, shape)


def _aligned(constant: torch.Tensor, node: fx.Node, shape: Shape) -> torch.Tensor:
    """Return a constant with as many dims as the result has on the device, or with none if it is one number."""
    if constant.numel() == 1:
        return constant.reshape(()).float()
    rank = len(value_of(node).shape)
    padded = constant.reshape(*[1] * (rank - constant.dim()), *constant.shape)
    return padded.reshape(*padded.shape, *[1] * (len(shape) - rank)).float()


def _concat(self: _Lowering, node: fx.Node) -> _Value:
    parts: Sequence[fx.Node] = argument(node, "tensors")
    return self.add("Concat", node, [self.value(part) for part in parts], self.shape_of(node), axis=1)


def _view(self: _Lowering, node: fx.Node) -> _Value:
    """Lower a view to its source: the elements and their order are the same; only the host's shape differs."""
    source = self.value(node.args[0])
    if math.prod(source.shape) != math.prod(value_of(node).shape):
        raise self.refused(node, f"a view of {list(source.shape)} as {list(value_of(node).shape)}")
    return source


_RULES: Mapping[str, Rule] = {
    "aten.conv2d.default": _conv,
    "aten.conv2d.padding": _conv,
    "aten.conv_transpose2d.input": _conv_transpose,
    "aten.linear.default": _linear,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.max_pool2d.default": _pool("MaxPool"),
    "aten.avg_pool2d.default": _pool("AveragePool"),
    "aten.adaptive_avg_pool2d.default": _adaptive,
    "aten._adaptive_avg_pool2d.default": _adaptive,
    "aten.mean.dim": _mean,
    "aten.upsample_nearest2d.vec": _upsample,
    "aten.upsample_nearest2d.default": _upsample,
    "aten.relu.default": _unary("Relu"),
    "aten.sigmoid.default": _unary("Sigmoid"),
    "aten.tanh.default": _unary("Tanh"),
    "aten.silu.default": _silu,
    "aten.leaky_relu.default": _leaky,
    "aten.hardtanh.default": _clamped,
    "aten.relu6.default": _clamped,
    "aten.add.Tensor": _add,
    "aten.sub.Tensor": _add,
    "aten.rsub.Scalar": _reversed,
    "aten.mul.Tensor": _mul,
    "aten.cat.default": _concat,
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    "aten.flatten.using_ints": _view,
    "aten.clone.default": _view,
    "aten.contiguous.default": _view,
}
