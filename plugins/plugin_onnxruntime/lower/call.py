"""One operator call during lowering, and the registry of the functions that lower them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from hub.plugin import CompileError, argument, declared_arguments, elements, value_of
from hub.toolkit.intervals import Hazards

from .builder import Builder, expression

Result = str | tuple[str, ...]
"""Name of the only output, or names of all outputs ("" for outputs that are not read)."""
Rule = Callable[["Call"], Result]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[str, Rule] = {}
"""The function that lowers each operator, by overload name; its keys equal the rows of the support table."""


def lowers(*operators: str) -> Callable[[AnyRule], AnyRule]:
    """Register a function as the lowering of operators, named without "aten."."""

    def register(rule: AnyRule) -> AnyRule:
        for operator in operators:
            name = f"aten.{operator}"
            if name in RULES:
                raise ValueError(f"{name} is lowered twice")
            RULES[name] = rule
        return rule

    return register


class Call:
    """One FX node with its arguments by schema name, and the builder it is lowered into."""

    def __init__(self, builder: Builder, node: fx.Node, names: dict[fx.Node, Result], hazards: Hazards) -> None:
        self.builder = builder
        self.node = node
        self.hazards = hazards
        self._names = names
        self.op = builder.op
        self.ops = builder.ops
        self.ints = builder.ints

    # --- Arguments ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """Return the raw argument: an FX node, a list of nodes, or a plain value; defaults are filled in."""
        return argument(self.node, name)

    @property
    def declared(self) -> tuple[str, ...]:
        """Names of the operator's arguments, in order."""
        return tuple(declared.name for declared in declared_arguments(self.node))

    def name_of(self, node: fx.Node) -> str:
        """Return the ONNX name of a node with one output."""
        found = self._names[node]
        if isinstance(found, tuple):
            raise CompileError(f"{node.name} has several outputs, one is expected", node=self.node.name)
        return found

    def input(self, name: str) -> str:
        """Return the ONNX name of a tensor argument in its own dtype; "" if an optional one is not given."""
        return "" if self[name] is None else self.name_of(self[name])

    def inputs(self, name: str) -> tuple[str, ...]:
        """Return the ONNX names of a list of tensors."""
        return tuple(self.name_of(node) for node in self[name])

    def typed(self, name: str, dtype: torch.dtype | None = None) -> str:
        """Return a tensor or number argument as `dtype`, by default the dtype of the first output."""
        return self.as_dtype(self[name], self.out_dtype if dtype is None else dtype)

    def as_dtype(self, value: Any, dtype: torch.dtype) -> str:
        """Return an FX node or a plain number as a value of `dtype`."""
        if not isinstance(value, fx.Node):
            return self.builder.constant(value, dtype)
        meta = value.meta["val"]
        source = meta.dtype if isinstance(meta, torch.Tensor) else number_dtype(meta)
        return self.builder.cast(self.name_of(value), source, dtype)

    def number(self, name: str) -> int | float | bool:
        """Return an argument that must be a plain number. Raise CompileError if it is symbolic."""
        value = self[name]
        if isinstance(value, fx.Node):
            raise CompileError(f"argument {name} is known only at run time", node=self.node.name)
        return value

    def size(self, value: Any) -> Any:
        """Return an int argument as an int or SymInt, even if it is a node."""
        return value_of(value)

    # --- Facts --------------------------------------------------------------------------------------------------------

    def meta(self, name: str) -> Any:
        """Return the fake value of an argument."""
        return value_of(self[name])

    def shape(self, name: str) -> tuple[Any, ...]:
        """Return the sizes of a tensor argument."""
        return tuple(self.meta(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor argument."""
        return self.meta(name).dtype

    def rank(self, name: str) -> int:
        """Return the number of dims of a tensor argument."""
        return self.meta(name).dim()

    def dim(self, name: str, of: str = "self") -> int:
        """Return a dim argument, counted from the front of tensor `of`."""
        return self[name] % max(self.rank(of), 1)

    def dims(self, name: str, of: str = "self") -> list[int]:
        """Return a list of dims, counted from the front; all dims if it is None or empty."""
        value = self[name]
        rank = self.rank(of)
        if isinstance(value, int):
            value = [value]
        return [dim % max(rank, 1) for dim in value] if value else list(range(rank))

    @property
    def outs(self) -> tuple[Any, ...]:
        """Fake values of all outputs."""
        return elements(self.node.meta["val"])

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of the first output."""
        return self.outs[0].dtype

    @property
    def out_shape(self) -> tuple[Any, ...]:
        """Sizes of the first output."""
        return tuple(self.outs[0].shape)

    # --- Shapes -------------------------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Return a small constant, by default of the first output's dtype."""
        return self.builder.constant(value, self.out_dtype if dtype is None else dtype)

    def reshape(self, value: str, source: Sequence[Any], target: Sequence[Any]) -> str:
        """Return `value` with sizes `target`; symbolic sizes that can be copied (0) or inferred (-1) cost no arithmetic."""
        if same_sizes(source, target):
            return value
        return self.op("Reshape", value, self._reshape_sizes(source, target), allowzero=None if _copies_zero(target) else 1)

    def _reshape_sizes(self, source: Sequence[Any], target: Sequence[Any]) -> str:
        if not _copies_zero(target):
            return self.builder.sizes(target)
        copied = [0 if _is_copied(source, target, dim) else size for dim, size in enumerate(target)]
        unknown = [dim for dim, size in enumerate(copied) if not isinstance(size, int)]
        if unknown:
            copied[unknown[-1]] = -1
        return self.builder.sizes(copied)

    def expand(self, value: str, source: Sequence[Any], target: Sequence[Any]) -> str:
        """Return `value` broadcast from sizes `source` to sizes `target`."""
        if same_sizes(source, target):
            return value
        padded = [1] * (len(target) - len(source)) + list(source)
        wanted = [1 if same_size(old, new) else new for old, new in zip(padded, target, strict=True)]
        return self.op("Expand", value, self.builder.sizes(wanted))

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Return `value` with its dims in `order`; the value itself if the order is unchanged."""
        return value if list(order) == sorted(order) else self.op("Transpose", value, perm=list(order))

    def unsqueeze(self, value: str, *dims: int) -> str:
        """Return `value` with dims of size 1 inserted, `dims` counted in the result."""
        return self.op("Unsqueeze", value, self.ints(*dims)) if dims else value

    def squeeze(self, value: str, *dims: int) -> str:
        """Return `value` without the named dims."""
        return self.op("Squeeze", value, self.ints(*dims)) if dims else value

    def slice(self, value: str, dim: int, start: Any, end: Any, step: int = 1) -> str:
        """Return elements `start` to `end` (ints or SymInts, as ONNX counts) of one dim."""
        return self.op("Slice", value, self.builder.size(start), self.builder.size(end), self.ints(dim), self.ints(step))


def same_size(one: Any, other: Any) -> bool:
    """Return whether two sizes are known to be equal for every input."""
    return expression(one) == expression(other)


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes are known to be equal for every input."""
    return len(one) == len(other) and all(map(same_size, one, other))


def number_dtype(value: Any) -> torch.dtype:
    """Return the dtype in which a number enters ONNX: int64, float64 or bool."""
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.float64


def used_outputs(node: fx.Node) -> set[int]:
    """Return the positions of the outputs that are read, for a node with several outputs."""
    return {user.args[1] for user in node.users if len(user.args) == 2}  # pyright: ignore[reportReturnType, reportUnhashable] - of getitem


def all_static(sizes: Iterable[Any]) -> bool:
    """Return whether every size is a plain int."""
    return all(isinstance(size, int) for size in sizes)


def _copies_zero(target: Sequence[Any]) -> bool:
    """Return False if a size is 0, which Reshape would read as "copy": it then needs allowzero, which forbids -1."""
    return not any(isinstance(size, int) and size == 0 for size in target)


def _is_copied(source: Sequence[Any], target: Sequence[Any], dim: int) -> bool:
    return not isinstance(target[dim], int) and dim < len(source) and same_size(source[dim], target[dim])
