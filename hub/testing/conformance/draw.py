"""Clusters built call by call, without Dynamo: in milliseconds instead of seconds, and the same in every process."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.node import map_arg

from hub.plugin.graph import Cluster, is_view, spec_of
from hub.testing.operators import overload_of
from hub.torch_private import ConstantSource, FakeTensorMode, enable_python_dispatcher

Inputs = tuple[Any, ...]


class Drawing:
    """One cluster under construction. Add inputs and weights first, then calls in order, then call `cluster`."""

    def __init__(self, *, dynamic: bool = False, seed: int = 0) -> None:
        """Begin a cluster whose weights are drawn from `seed`.

        With `dynamic`, free dims of inputs are symbolic, equal sizes one symbol.
        """
        self.is_dynamic = dynamic
        self.inputs: Inputs = ()
        self._values = torch.Generator().manual_seed(7)
        self._weights = torch.Generator().manual_seed(1000 + seed)
        self._mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, static_shapes=not dynamic)
        self._module = torch.nn.Module()
        self._graph = fx.Graph()
        self._n_weights = 0

    def normal(self, *shape: int) -> torch.Tensor:
        """Return normal values for an input, the same in every process."""
        return torch.randn(shape, generator=self._values)

    def indices(self, *shape: int, below: int) -> torch.Tensor:
        """Return indices below `below` for an input."""
        return torch.randint(0, below, shape, generator=self._values)

    def input(self, value: torch.Tensor, *, free: Sequence[int] = ()) -> fx.Node:
        """Add an input with this value; `free` lists the dims that are symbolic in a dynamic cluster."""
        node = self._graph.placeholder(f"input{len(self.inputs)}")
        node.meta["val"] = self._fake(value, free, node.name)
        self.inputs = (*self.inputs, value)
        return node

    def weight(self, *shape: int) -> fx.Node:
        """Add a float32 weight with normal values drawn from the seed."""
        name = f"weight{self._n_weights}"
        self._n_weights += 1
        value = torch.randn(shape, generator=self._weights)
        self._module.register_buffer(name, value)
        node = self._graph.create_node("get_attr", name, name=name)
        node.meta["val"] = self._fake(value, (), name)
        return node

    def call(self, name: str, *arguments: Any, **keywords: Any) -> fx.Node:
        """Add a call of "aten.relu.default"; arguments may hold nodes. Raise what the operator raises on fake tensors."""
        target = overload_of(name)
        args, kwargs = cast("tuple[Any, Any]", map_arg((arguments, keywords), lambda node: node.meta["val"]))
        # The Python dispatcher is also enabled during capture: some operators need it for symbols.
        with torch.no_grad(), self._mode, enable_python_dispatcher():
            result = target(*args, **kwargs)
        node = self._graph.call_function(target, arguments, keywords)
        node.meta["val"] = result
        return node

    def element(self, node: fx.Node, position: int) -> fx.Node:
        """Add the selection of one element of a call with several results."""
        picked = self._graph.call_function(operator.getitem, (node, position))
        picked.meta["val"] = node.meta["val"][position]
        return picked

    def owned(self, node: fx.Node) -> fx.Node:
        """Return the node, or a copy if it may be a view: no output of a real cluster is a view of an input."""
        source = cast("fx.Node", node.args[0]) if node.target is operator.getitem else node
        return self.call("aten.clone.default", node) if is_view(source) else node

    def cluster(self, name: str, outputs: Sequence[fx.Node]) -> Cluster:
        """Return the cluster with these outputs."""
        self._graph.output(tuple(outputs))
        inputs = self._graph.find_nodes(op="placeholder")
        return Cluster(
            name=name,
            module=fx.GraphModule(self._module, self._graph),
            node_names=tuple(node.name for node in self._graph.nodes if node.op == "call_function"),
            input_names=tuple(node.name for node in inputs),
            output_names=tuple(node.name for node in outputs),
            inputs=tuple(spec_of(node.meta["val"]) for node in inputs),
            outputs=tuple(spec_of(node.meta["val"]) for node in outputs),  # pyright: ignore[reportArgumentType] - tensors only
        )

    def _fake(self, value: torch.Tensor, free: Sequence[int], name: str) -> torch.Tensor:
        if not self.is_dynamic:
            return self._mode.from_tensor(value)
        kinds = [DimDynamic.DUCK if dim in free else DimDynamic.STATIC for dim in range(value.dim())]
        context = cast("Any", StatelessSymbolicContext(dynamic_sizes=kinds))
        return self._mode.from_tensor(value, source=ConstantSource(name), symbolic_context=context)
