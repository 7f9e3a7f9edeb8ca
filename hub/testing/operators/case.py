"""Clusters of one operator made from sample calls, without Dynamo: in milliseconds instead of seconds."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.node import map_arg

from hub.plugin.graph import Cluster, spec_of
from hub.plugin.table import overload_of
from hub.testing.operators.sample import Sample
from hub.torch_private import ConstantSource, FakeTensorMode, enable_python_dispatcher, pytree

Inputs = tuple[Any, ...]

_SIZES = ("size", "end", "length")
"""Arguments that models fill with sizes of tensors. Strides and kernels have the type of sizes but are attributes."""


def expected(name: str, sample: Sample) -> tuple[torch.Tensor, ...]:
    """Return eager's results: the tensors that the sample reads, in order."""
    arguments, keywords = sample.build()
    with torch.no_grad():
        return read_outputs(overload_of(name)(*arguments, **keywords), sample)


def case_cluster(
    name: str, sample: Sample, *, dynamic: bool = False, constants: Collection[int] = ()
) -> tuple[Cluster, Inputs]:
    """Return a cluster of this one call, and the values of its inputs.

    Tensors become inputs in argument order, except those whose position among the tensors is in `constants`: these become
    weights. With `dynamic=True` sizes of at least 2 become symbolic, equal sizes one symbol, as in Dynamo (`dynamic=True`);
    sizes among the arguments that equal such a size become inputs; sizes that the operator itself fixes stay fixed.
    """
    values, structure = pytree.tree_flatten(sample.build())
    fixed: set[tuple[int, int]] = set()
    while True:
        case = _Case(name, sample, values, structure, dynamic, frozenset(constants), fixed)
        cluster = case.build()
        if not (newly := case.specialised()):
            return cluster, case.inputs
        fixed |= newly


class _Case:
    """One attempt at building the cluster; `fixed` holds (leaf, dim) of the sizes that must not be symbolic."""

    def __init__(
        self,
        name: str,
        sample: Sample,
        values: list[Any],
        structure: pytree.TreeSpec,
        dynamic: bool,
        constants: Collection[int],
        fixed: set[tuple[int, int]],
    ) -> None:
        self.target = overload_of(name)
        self.sample = sample
        self.values = values
        self.structure = structure
        self.dynamic = dynamic
        self.fixed = fixed
        tensors = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self.weights = {tensors[position] for position in constants if position < len(tensors)}
        self.mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, static_shapes=not dynamic)
        self.fakes = {index: self._fake(index) for index in tensors}
        self.sizes = self._symbols() if dynamic else {}
        self.module = torch.nn.Module()
        self.graph = fx.Graph()
        self.inputs: Inputs = ()

    def build(self) -> Cluster:
        leaves = [self._leaf(index) for index in range(len(self.values))]
        arguments, keywords = pytree.tree_unflatten(leaves, self.structure)
        with (
            torch.no_grad(),
            self.mode,
            enable_python_dispatcher(),
        ):  # as during capture: some operators need it for symbols
            result = self.target(*_metas(arguments), **_metas(keywords))
        call = self.graph.call_function(self.target, arguments, keywords)
        call.meta["val"] = result
        outputs = self._outputs(call, result)
        self.graph.output(tuple(outputs))
        return self._cluster(outputs)

    def specialised(self) -> set[tuple[int, int]]:
        """Return the symbolic sizes for which the operator allows only one value."""
        return {
            (index, dim)
            for index, fake in self.fakes.items()
            for dim, size in enumerate(fake.shape)
            if isinstance(size, torch.SymInt) and cast("Any", size).node.maybe_as_int() is not None
        }

    def _fake(self, index: int) -> torch.Tensor:
        tensor = self.values[index]
        if not self.dynamic:
            return self.mode.from_tensor(tensor)
        weight = index in self.weights
        static = [weight or size < 2 or (index, dim) in self.fixed for dim, size in enumerate(tensor.shape)]
        sizes = [DimDynamic.STATIC if is_static else DimDynamic.DUCK for is_static in static]
        context = cast("Any", StatelessSymbolicContext(dynamic_sizes=sizes))
        return self.mode.from_tensor(tensor, source=ConstantSource(f"tensor{index}"), symbolic_context=context)

    def _symbols(self) -> dict[int, torch.SymInt]:
        pairs = [
            (real, size)
            for index, fake in self.fakes.items()
            for real, size in zip(self.values[index].shape, fake.shape, strict=True)
            if isinstance(size, torch.SymInt)
        ]
        return dict(reversed(pairs))

    def _leaf(self, index: int) -> Any:
        value = self.values[index]
        if isinstance(value, torch.Tensor):
            return self._weight(index) if index in self.weights else self._input(f"arg{index}", self.fakes[index], value)
        if type(value) is int and value in self.sizes and index in _size_leaves(self.target, self.values, self.structure):
            return self._input(f"size{index}", self.sizes[value], value)
        return value

    def _input(self, name: str, meta: Any, value: Any) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = meta
        self.inputs = (*self.inputs, value)
        return node

    def _weight(self, index: int) -> fx.Node:
        self.module.register_buffer(f"weight{index}", self.values[index])
        node = self.graph.create_node("get_attr", f"weight{index}", name=f"weight{index}")
        node.meta["val"] = self.fakes[index]
        return node

    def _outputs(self, call: fx.Node, result: Any) -> list[fx.Node]:
        if isinstance(result, torch.Tensor):
            return [call]
        read = self.sample.outputs if self.sample.outputs is not None else range(len(result))
        outputs: list[fx.Node] = []
        for position in read:
            if isinstance(result[position], torch.Tensor):
                node = self.graph.call_function(operator.getitem, (call, position))
                node.meta["val"] = result[position]
                outputs.append(node)
        return outputs

    def _cluster(self, outputs: list[fx.Node]) -> Cluster:
        inputs = self.graph.find_nodes(op="placeholder")
        return Cluster(
            name="case",
            module=fx.GraphModule(self.module, self.graph),
            node_names=tuple(node.name for node in self.graph.nodes if node.op == "call_function"),
            input_names=tuple(node.name for node in inputs),
            output_names=tuple(node.name for node in outputs),
            inputs=tuple(spec_of(node.meta["val"]) for node in inputs),
            outputs=tuple(spec_of(node.meta["val"]) for node in outputs),  # pyright: ignore[reportArgumentType] - tensors, by `_outputs`
        )


def _size_leaves(target: Any, values: list[Any], structure: pytree.TreeSpec) -> set[int]:
    """Return the positions of flat arguments that are sizes in a graph captured from a model with symbolic sizes."""
    arguments, keywords = pytree.tree_unflatten(list(range(len(values))), structure)
    declared = [argument.name for argument in target._schema.arguments]
    given = dict(zip(declared, arguments, strict=False)) | keywords
    return {leaf for name in _SIZES if name in given for leaf in pytree.tree_leaves(given[name])}


def _metas(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: node.meta["val"])


def read_outputs(result: Any, sample: Sample) -> tuple[torch.Tensor, ...]:
    """Return the tensors among an operator's results that the sample reads."""
    if isinstance(result, torch.Tensor):
        return (result,)
    read = sample.outputs if sample.outputs is not None else range(len(result))
    return tuple(result[position] for position in read if isinstance(result[position], torch.Tensor))
