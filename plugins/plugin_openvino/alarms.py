"""Detection, by the model, of calls for which OpenVINO, with int32 for int64, cannot return eager's numbers.

Elements beyond int32 are marked and replaced by 0. Their marks propagate through sums and extremes, and end where a `where`
does not select them: T5 takes logarithms of distances, some of them 0, and selects other values there. Marks that reach any
other operator, or leave the cluster, raise the alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import reduce

import torch
from openvino import Output
from torch import fx

from hub.plugin import argument, operator_name
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output

_FOLLOWED = frozenset(
    f"aten.{name}"
    for name in (
        *(f"{sum_}.{form}" for sum_ in ("add", "sub", "rsub") for form in ("Tensor", "Scalar")),
        *("minimum.default", "maximum.default", "min.other", "max.other", "neg.default", "abs.default"),
        *("clamp.default", "clamp_min.default", "clamp_max.default"),
    )
)
"""Operators whose result is marked in each element in which an argument is marked."""


_SHAPES_ONLY = frozenset(f"aten.{name}_like.default" for name in ("full", "zeros", "ones", "empty"))
"""Operators that read no element."""


class Alarm(StrEnum):
    """Why a call must run eagerly."""

    BEYOND_INT32 = "a value is beyond the int32 range in which OpenVINO computes"
    OUT_OF_RANGE = "an index is out of range"
    NAN_LOST = "NaN or infinity arises before a kernel that loses it"


class Alarms:
    """The alarms of one model, as built so far."""

    def __init__(self) -> None:
        self._conditions: list[Output] = []
        self._kinds: set[Alarm] = set()
        self._marks: dict[fx.Node, Output] = {}

    @property
    def kinds(self) -> tuple[Alarm, ...]:
        """What can raise an alarm, in the order of the enum. Empty if nothing can."""
        return tuple(kind for kind in Alarm if kind in self._kinds)

    def raise_where(self, condition: Output, kind: Alarm) -> None:
        """Make a call run eagerly if any element of the condition, a boolean value, is true."""
        self._kinds.add(kind)
        rank = condition.get_partial_shape().rank.get_length()
        self._conditions.append(
            output(ops.reduce_logical_or(condition, indices(range(rank)), False)) if rank else condition
        )

    def mark(self, node: fx.Node, elements: Output) -> None:
        """Mark elements of a node's result that 0 replaces, by a boolean value."""
        self._marks[node] = elements

    def follow(self, node: fx.Node, condition: Callable[[], Output]) -> None:
        """Propagate the marks of a node's arguments to its result, or raise the alarm. `condition` is a `where`'s own."""
        found = {source: self._marks[source] for source in node.all_input_nodes if source in self._marks}
        name = operator_name(node)
        if not found or name in _SHAPES_ONLY:
            return
        if name in _FOLLOWED:
            self._marks[node] = reduce(lambda left, right: output(ops.logical_or(left, right)), found.values())
        elif name.startswith("aten.where.") and argument(node, "condition") not in found:
            nothing = constant(False, torch.bool)
            yes, no = (found.get(argument(node, side), nothing) for side in ("self", "other"))
            self._marks[node] = output(ops.select(condition(), yes, no))
        else:
            self.close(found)

    def close(self, nodes: Iterable[fx.Node]) -> None:
        """Raise the alarm if elements of these nodes' results are marked."""
        for node in nodes:
            if node in self._marks:
                self.raise_where(self._marks[node], Alarm.BEYOND_INT32)

    def whole(self) -> Output | None:
        """Return one bool that is true if the call must run eagerly; None if no call has to."""
        if not self._conditions:
            return None
        return reduce(lambda left, right: output(ops.logical_or(left, right)), self._conditions)
