"""Operations on sizes and shapes: those of the dialects shape, tensor and arith, done before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from hub.toolkit.builders import cast, pointwise, reshaped
from hub.toolkit.sizes import Size, floor_div, plus, product, settled, times

from .values import Op, Rule, Sizes, Value, constant_values, same_size

SMALL = 32
"""Maximum number of integers in a constant that may be a shape."""


def _constant(op: Op) -> Value:
    values = constant_values(op)
    if values.dtype.is_floating_point or values.dim() > 1 or values.numel() > SMALL or not values.numel():
        return op.given.tensor(values)
    return Sizes(tuple(int(value) for value in values.reshape(-1)), tuple(values.shape), op.kind)


def _const_shape(op: Op) -> Value:
    sizes = tuple(int(value) for value in op.attribute("shape"))
    return Sizes(sizes, (len(sizes),))


def _shape_of(op: Op) -> Value:
    shape = tuple(op.tensor(0).shape)
    return Sizes(shape, (len(shape),))


def _dim(op: Op) -> Value:
    return Sizes((op.tensor(0).shape[int(op.shape(1)[0])],), ())


def _dimension_size(op: Op) -> Value:
    return Sizes((op.tensor(0).shape[int(op.attribute("dimension"))],), (), "i32")


def _from_elements(op: Op) -> Value:
    if not all(isinstance(each, Sizes) for each in op.operands):
        pieces = [reshaped(each, (1,)) for each in op.tensors()]
        if len(pieces) == 1:
            return reshaped(pieces[0], op.sizes)
        raise op.refused("a tensor of several numbers that are computed")
    values = tuple(op.shape(place)[0] for place in range(len(op.operands)))
    return Sizes(values, tuple(size for size in op.sizes if size is not None), op.kind)


def _extract(op: Op) -> Value:
    value = op.operands[0]
    if isinstance(value, Sizes):
        place = int(op.shape(1)[0]) if len(op.operands) > 1 else 0
        return Sizes((value.values[place],), (), value.kind)
    if value in op.given.held and len(op.operands) == 1:
        return Sizes((op.given.held[value],), ())
    return reshaped(value, ())


def _broadcast(op: Op) -> Value:
    """Return the sizes of shapes broadcast together; two dynamic sizes then have to be equal."""
    shapes = [op.shape(place) for place in range(len(op.operands))]
    rank = max(len(shape) for shape in shapes)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if result[place] == 1:
                result[place] = size
            elif size != 1:
                result[place] = same_size(result[place], size)
    return Sizes(tuple(result), (rank,))


def _count(op: Op) -> Value:
    return Sizes((product(op.shape(0)),), ())


def _same(op: Op) -> Value:
    value = op.operands[0]
    if isinstance(value, Sizes):
        return Sizes(value.values, value.shape, op.kind)
    return cast(value, op.kind)


def _two(function: Callable[[Size, Size], Size], name: str) -> Rule:
    """Return the rule for arithmetic on sizes; on tensors it is elementwise."""

    def rule(op: Op) -> Value:
        if all(isinstance(each, Sizes) for each in op.operands):
            (one,), (other,) = op.shape(0), op.shape(1)
            return Sizes((function(one, other),), (), op.kind)
        if not name:
            raise op.refused("a size that depends on data")
        return pointwise(name, op.tensor(0), op.tensor(1))

    return rule


def _largest(one: Size, other: Size) -> Size:
    return settled(sympy.Max(one, other))


def _smallest(one: Size, other: Size) -> Size:
    return settled(sympy.Min(one, other))


_RELATIONS: dict[str, Any] = {
    "eq": sympy.Eq,
    "ne": sympy.Ne,
    "lt": sympy.Lt,
    "le": sympy.Le,
    "gt": sympy.Gt,
    "ge": sympy.Ge,
}
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def _compared(op: Op) -> Value:
    """Return a comparison, which may be true for some sizes only."""
    predicate = _PREDICATES[int(op.attribute("predicate"))]
    (one,), (other,) = op.shape(0), op.shape(1)
    return Sizes((_RELATIONS[predicate[-2:]](one, other),), (), "i1")


def _chosen(op: Op) -> Value:
    """Return one of two sizes, if the condition is known or makes no difference."""
    (condition,) = op.shape(0)
    (yes,), (no,) = op.shape(1), op.shape(2)
    if condition in (True, False):
        return op.operands[1 if condition else 2]
    is_equality = isinstance(condition, sympy.Eq) and isinstance(condition.lhs, sympy.Symbol)
    if yes == no or (is_equality and _at(yes, condition) == _at(no, condition)):
        return op.operands[2]
    raise op.refused(f"whether {condition} is known at the call only")


def _at(size: Size, equality: sympy.Eq) -> Size:
    return size if isinstance(size, int) else settled(size.subs(equality.lhs, equality.rhs))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("stablehlo.constant", "arith.constant", "chlo.constant"), _constant),
    "shape.const_shape": _const_shape,
    "shape.shape_of": _shape_of,
    "shape.broadcast": _broadcast,
    "shape.num_elements": _count,
    "tensor.dim": _dim,
    "stablehlo.get_dimension_size": _dimension_size,
    "tensor.from_elements": _from_elements,
    "tensor.extract": _extract,
    **{f"arith.{name}": _same for name in ("index_cast", "index_castui", "extsi", "extui", "trunci")},
    "tensor.cast": _same,
    "arith.addi": _two(plus, "add"),
    "arith.subi": _two(lambda one, other: plus(one, times(other, -1)), "sub"),
    "arith.muli": _two(times, "mul"),
    **{f"arith.{name}": _two(floor_div, "") for name in ("divsi", "divui", "floordivsi")},
    "arith.ceildivsi": _two(lambda one, other: times(floor_div(times(one, -1), other), -1), ""),
    "arith.maxsi": _two(_largest, "max"),
    "arith.minsi": _two(_smallest, "min"),
    "arith.cmpi": _compared,
    "arith.select": _chosen,
}
