"""Graph and Cluster: frozen values that guard their own invariants.

A `Graph` is a functional ATen FX graph with fake values in `meta["val"]`. A `Cluster` is a convex set of its nodes, cut out
as a program of its own, which is what plugins receive.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, cast

import torch
from torch import fx

from hub.errors import CaptureError, type_of
from hub.plugin.canonical import Relation, canonical_text, constants_read, relations_in, tensor_digest, text_digest
from hub.plugin.table import WEIGHT, dtype_name, is_symbolic


def hint(size: Any) -> int:
    """Return the size seen during capture for a symbolic size, and a plain int unchanged. Adds no guard.

    Raises ValueError for sizes that depend on data, which capture does not see.
    """
    if isinstance(size, int):
        return int(size)
    value = size.node.hint
    if value is None:
        raise ValueError(f"size {size} depends on data")
    return int(value)


UNSEEN = 8192
"""Size assumed in prices for sizes that depend on data; Inductor assumes the same (`unbacked_symint_fallback`)."""


def priced_size(size: Any) -> int:
    """Return the size to assume in prices: the size seen during capture, or `UNSEEN` if there is none. Raises nothing."""
    try:
        return hint(size)
    except ValueError:
        return UNSEEN


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Properties of a tensor before it exists: sizes and strides in elements, symbolic ones as SymInt."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """Return the spec of a real or fake strided tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    @property
    def is_dynamic(self) -> bool:
        """Return whether any size is symbolic."""
        return any(map(is_symbolic, self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, with symbolic sizes as in prices (`priced_size`)."""
        return self.dtype.itemsize * math.prod(map(priced_size, self.shape))

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements are in row-major order without gaps, with symbolic sizes as in prices."""
        sizes, strides = tuple(map(priced_size, self.shape)), tuple(map(priced_size, self.stride))
        packed = (math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
        return all(size == 1 or stride == want for size, stride, want in zip(sizes, strides, packed, strict=True))

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A plain number that crosses a cluster's boundary: a symbolic size, or arithmetic on sizes."""

    kind: str
    """"int", "float" or "bool"."""
    value: Any
    """The SymInt, SymFloat, SymBool or plain number as captured."""

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


Spec = TensorSpec | ScalarSpec
"""The spec of one value at a cluster's boundary."""


def spec_of(value: Any) -> Spec:
    """Return the spec of a fake value. Raises CaptureError for a value that cannot cross a cluster's boundary."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise CaptureError(f"a {value.layout} tensor cannot cross a cluster's edge")
        return TensorSpec.of(value)
    if isinstance(value, (bool, torch.SymBool)):
        return ScalarSpec("bool", value)
    if isinstance(value, (int, torch.SymInt)):
        return ScalarSpec("int", value)
    if isinstance(value, (float, torch.SymFloat)):
        return ScalarSpec("float", value)
    raise CaptureError(f"{type_of(value)} cannot cross a cluster's edge")


_RELATIONS = "hub_relations"
"""Key in the metadata of a graph's module."""


class Pin(StrEnum):
    """Reason why a node must run in eager, regardless of backends, as shown in plans and messages."""

    FOREIGN = "no ATen operator"
    SIZES = "arithmetic on sizes"
    NUMBER = "returns a number, not a tensor"
    RANDOM = "draws random numbers, and only eager draws eager's"
    UNINITIALISED = "returns uninitialized memory, which cannot be compared"
    CUDA_STATE = "hands over state of a CUDA library, some of it uninitialised, which nothing can be compared with"
    MOVE = "moves data between devices"
    EFFECT = "has a side effect"
    WRITE = "writes to its input"
    NOT_DENSE = "returns tensors that are not dense"
    SHARED = "the output shares memory with an input or another output, and the caller may rely on it"
    PROGRAMS = "is a higher-order operator, which no backend supports; programs that it calls may have their own plans"
    ORDERED_PROGRAMS = f"{PROGRAMS} (one of them has effects, which keep their order)"

    @property
    def is_ordered(self) -> bool:
        """Return True for an effect that must keep its place in the order of effects."""
        return self in (Pin.RANDOM, Pin.EFFECT, Pin.WRITE, Pin.ORDERED_PROGRAMS)


@dataclass(frozen=True, eq=False)
class Graph:
    """One captured program, functional: no node writes to a tensor that another one reads.

    `module` must not be changed. Placeholders are, in order, what the compiled function is called with; the output is a
    flat tuple: first the new values of mutated inputs, then the program's own outputs.
    """

    module: fx.GraphModule
    name: str
    mutated: tuple[str, ...] = ()
    """Names of the placeholders that the first outputs are copied into, in order."""
    weights: tuple[str, ...] = ()
    """Names of the placeholders that are parameters or buffers, and therefore constants for plugins. Empty in training."""
    pinned: Mapping[str, Pin] = field(default_factory=dict[str, "Pin"])
    """Nodes that must run in eager, by name, with the reason."""
    is_training: bool = False
    is_part: bool = False
    """True if one call of the model runs other code, too: then idle threads must not busy-wait on its cores."""

    def __post_init__(self) -> None:
        placeholders = {node.name for node in self.module.graph.find_nodes(op="placeholder")}
        for kind, names in (("mutated", self.mutated), ("weight", self.weights)):
            if missing := [name for name in names if name not in placeholders]:
                raise CaptureError(f"{kind} inputs {missing} are not placeholders of graph {self.name}")
        for name in self.weights:
            self.by_name[name].meta[WEIGHT] = True

    @cached_property
    def placeholders(self) -> tuple[fx.Node, ...]:
        """Inputs, in call order."""
        return tuple(self.module.graph.find_nodes(op="placeholder"))

    @cached_property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Call nodes in topological order: the nodes that clusters consist of."""
        return tuple(node for node in self.module.graph.nodes if node.op not in ("placeholder", "output", "get_attr"))

    @cached_property
    def by_name(self) -> Mapping[str, fx.Node]:
        """Every node by its name."""
        return {node.name: node for node in self.module.graph.nodes}

    @cached_property
    def outputs(self) -> tuple[Any, ...]:
        """Output arguments in order: nodes, or plain constants."""
        return output_arguments(self.module)

    @cached_property
    def is_dynamic(self) -> bool:
        """Return whether any input has a symbolic size."""
        return any(
            isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and any(map(is_symbolic, value.shape)))
            for value in (node.meta.get("val") for node in self.placeholders)
        )

    @cached_property
    def groupings(self) -> dict[tuple[Any, ...], Any]:
        """Groups of nodes that `hub.partition.group` has found, by its query: the backend of each node, mostly."""
        return {}

    @property
    def relations(self) -> tuple[Relation, ...]:
        """Known relations of the symbolic sizes, as of the first read of this property; empty if there are none.

        Compilers query sizes and thereby add to what PyTorch knows of them; keys must not change because of that.
        """
        meta = self.module.meta
        if _RELATIONS not in meta:
            meta[_RELATIONS] = relations_in(self.module)
        return meta[_RELATIONS]

    @cached_property
    def digest(self) -> str:
        """Digest of the structure: operators, attributes, wiring, shapes and their relations, dtypes, layouts.

        Weights' values are not part of it.
        """
        return text_digest(canonical_text(self.module, self.relations))


@dataclass(frozen=True, eq=False)
class Cluster:
    """A convex set of a graph's nodes, as a program of its own.

    `module` must not be changed. Its placeholders are the inputs in order, `get_attr` nodes read weights, everything else
    is `call_function`, and the output is a flat tuple. Every node carries its fake value in `meta["val"]`.
    """

    name: str
    module: fx.GraphModule
    node_names: tuple[str, ...]
    """Names of its nodes in the graph it was cut from, in topological order; equal to the names inside `module`."""
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    inputs: tuple[Spec, ...]
    outputs: tuple[TensorSpec, ...]
    relations: tuple[Relation, ...] = ()
    """Relations between symbolic sizes that its graph knows; those of sizes outside the cluster do not count."""

    @cached_property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Call nodes in topological order."""
        return tuple(node for node in self.module.graph.nodes if node.op == "call_function")

    @cached_property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """Weights as constants, by the name of their `get_attr` target."""
        return {
            str(node.target): getattr(self.module, str(node.target))
            for node in self.module.graph.find_nodes(op="get_attr")
            if isinstance(getattr(self.module, str(node.target)), torch.Tensor)
        }

    @property
    def is_dynamic(self) -> bool:
        """Return whether an input's size is symbolic or an input is a number."""
        return any(isinstance(spec, ScalarSpec) or spec.is_dynamic for spec in self.inputs)

    @cached_property
    def structure_digest(self) -> str:
        """Digest of everything but the constants' values; equal for repeated layers."""
        return text_digest(canonical_text(self.module, self.relations))

    @cached_property
    def digest(self) -> str:
        """Digest of the structure and of every constant's bytes."""
        return self.digest_with({})

    def digest_with(self, known: MutableMapping[str, str]) -> str:
        """Return `digest`, using the digests in `known` by constant's name; add those that had to be computed."""
        read = tuple(constants_read(self.module))
        for name, value in read:
            if name not in known:
                known[name] = tensor_digest(value)
        return text_digest("\n".join((self.structure_digest, *(known[name] for name, _ in read))))


def output_arguments(module: fx.GraphModule) -> tuple[Any, ...]:
    """Return what a module returns, in order: nodes, or plain constants."""
    return tuple(cast("Sequence[Any]", module.graph.output_node().args[0]))


_UNDECLARED_VIEWS = frozenset(
    {
        "aten._unsafe_view.default",
        "aten.atleast_1d.Sequence",
        "aten.atleast_1d.default",
        "aten.atleast_2d.Sequence",
        "aten.atleast_2d.default",
        "aten.atleast_3d.Sequence",
        "aten.atleast_3d.default",
        "aten.broadcast_tensors.default",
        "aten.einsum.default",
        "aten.meshgrid.default",
        "aten.meshgrid.indexing",
        "aten.sum_to_size.default",
        "aten.type_as.default",
        "aten.unsafe_chunk.default",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
    }
)
"""Operators that may return a view although their schema does not declare it."""


def is_view(node: fx.Node) -> bool:
    """Return whether a node's output may share memory with one of its inputs, according to its operator's schema."""
    if node.target is operator.getitem:
        return False
    if str(node.target) in _UNDECLARED_VIEWS:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def edges_into(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the nodes outside a set that the set reads, each once, in order of first use."""
    inside = set(nodes)
    seen: dict[fx.Node, None] = {}
    for node in sorted(inside):
        for source in node.all_input_nodes:
            if source not in inside:
                seen[source] = None
    return tuple(seen)


def edges_out_of(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the nodes of a set whose value is read outside it, in the set's order."""
    inside = set(nodes)
    return tuple(node for node in nodes if any(user not in inside for user in node.users))
