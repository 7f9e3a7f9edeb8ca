"""Lowers comparisons, logic and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from hub.plugin import value_of

from .call import Call, lowers

_COMPARE = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}


def _compare(kind: str, negated: bool = False) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        dtype = common_dtype(call, "self", "other")
        if dtype == torch.bool and kind != "Equal":
            dtype = torch.int32
        answer = call.op(kind, call.typed("self", dtype), call.typed("other", dtype))
        return call.op("Not", answer) if negated else answer

    return rule


def common_dtype(call: Call, *names: str) -> torch.dtype:
    """Return the dtype in which PyTorch computes with these arguments; tensors take precedence over numbers."""
    values = [value_of(call[name]) for name in names]
    plain = [value if isinstance(value, torch.Tensor) else _number_like(value) for value in values]
    return torch.result_type(*cast("list[Any]", plain)) if len(plain) > 1 else plain[0].dtype


def _number_like(value: Any) -> Any:
    """Return a number that promotes as this one does, which may be known only at run time."""
    if isinstance(value, (bool, torch.SymBool)):
        return True
    return 1.0 if isinstance(value, (float, torch.SymFloat)) else 1


for _name, _kind in _COMPARE.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_compare(_kind))
lowers("ne.Tensor", "ne.Scalar")(_compare("Equal", negated=True))


def _logical(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        return call.op(kind, call.typed("self", torch.bool), call.typed("other", torch.bool))

    return rule


def _bitwise(word: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        kind = _LOGICAL[word] if call.out_dtype == torch.bool else f"Bitwise{_LOGICAL[word]}"
        return call.op(kind, call.typed("self"), call.typed("other"))

    return rule


for _name, _kind in _LOGICAL.items():
    lowers(f"logical_{_name}.default")(_logical(_kind))
    lowers(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"__{_name}__.Tensor", f"__{_name}__.Scalar")(
        _bitwise(_name)
    )


@lowers("logical_not.default")
def logical_not(call: Call) -> str:
    """Return a mask of the elements that are zero."""
    return call.op("Not", call.typed("self", torch.bool))


@lowers("bitwise_not.default")
def bitwise_not(call: Call) -> str:
    """Return every bit flipped; for booleans: not."""
    return call.op("Not" if call.out_dtype == torch.bool else "BitwiseNot", call.input("self"))


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: Call) -> str:
    """Return self where the condition holds, else other."""
    return select_where(call, call.typed("condition", torch.bool), call.typed("self"), call.typed("other"))


def select_where(call: Call, condition: str, one: str, other: str) -> str:
    """Return a Where for the first output's dtype; ORT has no kernel for booleans, which are computed as uint8."""
    if call.out_dtype != torch.bool:
        return call.op("Where", condition, one, other)
    bytes_ = [call.builder.cast(value, torch.bool, torch.uint8) for value in (one, other)]
    return call.builder.cast(call.op("Where", condition, *bytes_), torch.uint8, torch.bool)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: Call) -> str:
    """Return value where the mask holds, else self."""
    return select_where(call, call.input("mask"), call.typed("value"), call.typed("self"))
