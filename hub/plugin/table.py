"""Support: a backend's verdict on a node, with the reason; and operator tables, which produce verdicts.

A table is data: one row per operator, with its conditions. Nothing here imports torch at module level, so that `hub
list-backends` can count rows in milliseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hub.errors import shortened

if TYPE_CHECKING:
    import torch
    from torch import fx

    from hub.torch_private import OpOverload


@dataclass(frozen=True, slots=True)
class Support:
    """A backend's answer about one node or cluster; a refusal always has a reason."""

    accepted: bool
    reason: str = ""
    """Reason in plain words and numbers: "conv2d: kernel 13x13, at most 7x7 here". Very long reasons lose their middle."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shortened(self.reason))
        if not self.accepted and not self.reason:
            raise ValueError("a refusal needs a reason")


ACCEPTED = Support(accepted=True)
"""The answer of a backend that supports a node."""


def refused(reason: str) -> Support:
    """Return a refusal with its reason."""
    return Support(accepted=False, reason=reason)


Condition = Callable[["fx.Node"], str | None]
"""Predicate on a node: returns None if it holds, else the reason why not, in plain words and numbers."""


def operator_name(node: fx.Node) -> str:
    """Return the name of a node's operator in tables and options: "aten.linear.default"."""
    return str(node.target) if node.op == "call_function" else node.op


def overload_of(name: str) -> OpOverload:
    """Return the operator named "aten.add.Tensor". Raise AttributeError if this torch has none."""
    import torch

    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def argument(node: fx.Node, name: str) -> Any:
    """Return the value of a node's argument by its name in the operator's schema, defaults filled in.

    Raises KeyError if the schema has no such argument.
    """
    if name in node.kwargs:
        return node.kwargs[name]
    for position, declared in enumerate(declared_arguments(node)):
        if declared.name == name:
            return node.args[position] if position < len(node.args) else declared.default_value
    raise KeyError(f"{operator_name(node)} has no argument named {name!r}")


def declared_arguments(node: fx.Node) -> tuple[Any, ...]:
    """Return the arguments in the schema of a node's operator, in order; each has a `name` and a `default_value`."""
    return tuple(cast("Any", node.target)._schema.arguments)


def value_of(argument_or_node: Any) -> Any:
    """Return the fake value (tensor, SymInt, tuple ...) behind a node, or the argument itself if it is not a node."""
    meta = getattr(argument_or_node, "meta", None)
    return argument_or_node if meta is None else meta.get("val")


def elements(value: Any) -> tuple[Any, ...]:
    """Return the elements of a tuple or list, and anything else as the only element."""
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else (value,)


def tensors_of(node: fx.Node) -> Iterator[Any]:
    """Yield the fake tensors that a node reads and writes: inputs in argument order, then outputs."""
    for source in (*node.all_input_nodes, node):
        for item in elements(value_of(source)):
            if hasattr(item, "dtype") and hasattr(item, "shape"):
                yield item


def devices_of(node: fx.Node) -> tuple[torch.device, ...]:
    """Return the devices of a node's results, each once; for a tuple's element, those of the whole tuple."""
    source: Any = node.args[0] if node.target is operator.getitem else node
    made = value_of(source if isinstance(value_of(source), (tuple, list)) else node)
    return tuple(dict.fromkeys(item.device for item in elements(made) if hasattr(item, "device")))


def is_symbolic(size: Any) -> bool:
    """Return whether a size is known only at run time (a SymInt)."""
    return not isinstance(size, int)


WEIGHT = "hub_weight"
"""Key in a placeholder's metadata, True for weights, so that a verdict on one node can distinguish them from inputs."""


def is_weight(argument: Any) -> bool:
    """Return True for a node's argument that is a parameter or buffer, and so a constant for plugins in inference."""
    return getattr(argument, "op", "") == "get_attr" or bool(getattr(argument, "meta", {}).get(WEIGHT))


def dtype_name(dtype: Any) -> str:
    """Return a dtype's short name: "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


# --- Conditions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Condition: every tensor that the node reads or writes has one of the dtypes `allowed`."""

    allowed: tuple[str, ...]

    def __call__(self, node: fx.Node) -> str | None:
        """Return None if it holds, else the dtypes that are not allowed."""
        seen = {dtype_name(tensor.dtype) for tensor in tensors_of(node)}
        bad = sorted(seen.difference(self.allowed))
        return f"dtype {', '.join(bad)}, only {', '.join(self.allowed)} here" if bad else None


def dtypes(*allowed: str) -> Dtypes:
    """Require every tensor that the node reads or writes to have one of these dtypes."""
    return Dtypes(allowed)


def rank(name: str, low: int, high: int) -> Condition:
    """Require the tensor argument `name` to have between `low` and `high` dims."""

    def condition(node: fx.Node) -> str | None:
        found = len(value_of(argument(node, name)).shape)
        return None if low <= found <= high else f"{name} has {found} dims, {low} to {high} here"

    return condition


def static(name: str) -> Condition:
    """Require the tensor argument `name` to have no symbolic dims."""

    def condition(node: fx.Node) -> str | None:
        shape = value_of(argument(node, name)).shape
        return f"{name} has symbolic dims {list(shape)}" if any(map(is_symbolic, shape)) else None

    return condition


def attribute(name: str, holds: Callable[[Any], bool], wanted: str) -> Condition:
    """Require the plain argument `name` to satisfy `holds`; `wanted` is the requirement in words."""

    def condition(node: fx.Node) -> str | None:
        value = argument(node, name)
        return None if holds(value) else f"{name}={value}, {wanted} here"

    return condition


def absent(name: str) -> Condition:
    """Require the optional argument `name` to be omitted."""
    return attribute(name, lambda value: value is None, "only without it")


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """Operators that a backend supports, each with conditions; `supports` returns the verdicts.

    Keys are overload names ("aten.linear.default"). `everywhere` holds for every row. `declined` gives reasons for
    operators that users may expect in the table but that are left out.
    """

    rows: Mapping[str, tuple[Condition, ...]]
    everywhere: tuple[Condition, ...] = field(default=())
    declined: Mapping[str, str] = field(default_factory=dict[str, str])

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, operator: str) -> bool:
        return operator in self.rows

    def names(self, operator: str, dtype: str) -> bool:
        """Return whether an operator's row has its own `dtypes` conditions, and all that apply to it allow a dtype."""
        own = [condition for condition in self.rows.get(operator, ()) if isinstance(condition, Dtypes)]
        shared = [condition for condition in self.everywhere if isinstance(condition, Dtypes)]
        return bool(own) and all(dtype in condition.allowed for condition in (*own, *shared))

    def supports(self, node: fx.Node) -> Support:
        """Return the verdict on one call_function node. Raises nothing for nodes of a captured graph."""
        name = operator_name(node)
        conditions = self.rows.get(name)
        if conditions is None:
            return refused(f"{name}: {self.declined.get(name, 'not in the operator table')}")
        for condition in (*self.everywhere, *conditions):
            if reason := condition(node):
                return refused(f"{name}: {reason}")
        return ACCEPTED
