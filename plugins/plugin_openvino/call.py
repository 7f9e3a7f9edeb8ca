"""One ATen call in the form that rules use: arguments by name, as OpenVINO values of the requested type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openvino import Output
from torch import fx

from hub.plugin import argument, elements, is_symbolic, value_of
from plugin_openvino.alarms import Alarm, Alarms
from plugin_openvino.library import ops
from plugin_openvino.operands import Value, constant, convert, indices, output


class Call:
    """A node to lower, with the OpenVINO values of the nodes before it."""

    def __init__(self, node: fx.Node, values: Mapping[fx.Node, Value], alarms: Alarms) -> None:
        self.node = node
        self._values, self._alarms = values, alarms

    @property
    def result(self) -> Any:
        """The fake tensor of the result; the first one if there are several."""
        return elements(self.node.meta["val"])[0]

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the result."""
        return self.result.dtype

    def raw(self, name: str) -> Any:
        """Return an argument as it is in the graph: node, number, list, or None."""
        return argument(self.node, name)

    def fake(self, name: str) -> Any:
        """Return the fake tensor behind an argument."""
        return value_of(self.raw(name))

    def dim(self, name: str, *, rank: int | None = None) -> int:
        """Return an argument that is a dim of `self`, counted from the front."""
        return int(self.raw(name)) % max(1, self.fake("self").dim() if rank is None else rank)

    def dims(self, name: str) -> list[int]:
        """Return an argument that lists dims of `self`, counted from the front; all dims if it is None or empty."""
        rank, given = self.fake("self").dim(), self.raw(name)
        dims = () if given is None else elements(given)
        return [int(dim) % max(1, rank) for dim in dims] if dims else list(range(rank))

    def raise_alarm_where(self, condition: Any, kind: Alarm) -> None:
        """Make a call run eagerly if any element of the condition, a boolean value, is true."""
        self._alarms.raise_where(output(condition), kind)

    def mark(self, places: Any) -> None:
        """Mark elements of the result, by a boolean value, that 0 replaces because OpenVINO cannot represent them."""
        self._alarms.mark(self.node, output(places))

    def value(self, raw: Any, dtype: torch.dtype | None = None) -> Output:
        """Return a raw argument (node or number) as an OpenVINO value; a number needs `dtype`."""
        if not isinstance(raw, fx.Node):
            return constant(raw, dtype or _dtype_of_number(raw))
        found = self._values[raw]
        assert isinstance(found, Output), f"{raw.name} is a tuple"
        return found if dtype is None else convert(found, dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Output:
        """Return an argument as an OpenVINO value, in `dtype` if one is named."""
        return self.value(self.raw(name), dtype)

    def optional(self, name: str, dtype: torch.dtype | None = None) -> Output | None:
        """Return an argument as an OpenVINO value, or None if it is not given."""
        return None if self.raw(name) is None else self.tensor(name, dtype)

    def vector(self, raw: Sequence[Any]) -> Output:
        """Return a list of ints, some of which may be nodes, as one int64 vector."""
        if not any(isinstance(item, fx.Node) for item in raw):
            return indices(raw)
        parts = [self._element(item) for item in raw]
        return output(ops.concat(parts, 0)) if len(parts) > 1 else parts[0]

    def _element(self, item: Any) -> Output:
        if not isinstance(item, fx.Node):
            return indices([item])
        return output(ops.reshape(self.value(item, torch.int64), indices([1]), False))

    def reshaped(self, value: Output, sizes: Sequence[Any]) -> Output:
        """Return the value in the shape of the result; `sizes` are those in the graph, for sizes unknown until run time.

        One unknown size becomes -1, so that OpenVINO can infer the others at compile time.
        """
        known = [size if is_symbolic(size) else int(size) for size in self.result.shape]
        unknown = [index for index, size in enumerate(known) if is_symbolic(size)]
        if len(unknown) <= 1:
            target = indices([-1 if is_symbolic(size) else size for size in known])
        else:
            target = self.vector([sizes[index] if index in unknown else size for index, size in enumerate(known)])
        return output(ops.reshape(value, target, False))


def _dtype_of_number(number: Any) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    return torch.int64 if isinstance(number, int) else torch.float32
