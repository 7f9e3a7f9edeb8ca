"""What the model itself finds out of a call: that OpenVINO, which computes int64 as int32, cannot give eager's numbers.

Elements that are beyond int32 are marked, and 0 stands in for them. Their marks follow them through sums and extremes, and
end where a `where` leaves them out: T5 takes logarithms of distances, 0 among them, and selects others there. Marks that
reach anything else, or leave the cluster, raise the alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
"""Operators whose result is marked in the elements in which one of their arguments is."""


_SHAPES_ONLY = frozenset(f"aten.{name}_like.default" for name in ("full", "zeros", "ones", "empty"))
"""Operators that read no element."""


class Alarms:
    """The alarms of one model, as far as it is built."""

    def __init__(self) -> None:
        self._conditions: list[Output] = []
        self._marks: dict[fx.Node, Output] = {}

    def raise_where(self, condition: Output) -> None:
        """Make a call run eagerly in which any element of the condition, a value of bools, is true."""
        rank = condition.get_partial_shape().rank.get_length()
        self._conditions.append(
            output(ops.reduce_logical_or(condition, indices(range(rank)), False)) if rank else condition
        )

    def mark(self, node: fx.Node, elements: Output) -> None:
        """Note elements of a node's result, as a value of bools, for which 0 stands in."""
        self._marks[node] = elements

    def follow(self, node: fx.Node, condition: Callable[[], Output]) -> None:
        """Follow the marks of a node's arguments into its result, or raise the alarm. `condition` gives a `where`'s own."""
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
        """Raise the alarm where elements of these nodes' results are marked."""
        for node in nodes:
            if node in self._marks:
                self.raise_where(self._marks[node])

    def whole(self) -> Output | None:
        """Return one bool that is true where the call must run eagerly; None where none can have to."""
        if not self._conditions:
            return None
        return reduce(lambda left, right: output(ops.logical_or(left, right)), self._conditions)
