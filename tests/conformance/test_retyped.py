"""Sample calls in a dtype: converted where that makes sense, and only then."""

from __future__ import annotations

import pytest
import torch

from hub.testing.conformance.cases import Case, is_captured
from hub.testing.conformance.pairs import calls_of_each
from hub.testing.conformance.retyped import Role, calls_in, is_in, retyped
from hub.testing.operators import SAMPLES
from hub.testing.operators.sample import Sample, at, b, call, distinct, f, f16, i64, lit, pos, u8

DTYPES = (torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)

CASES: dict[str, tuple[Sample, Role, torch.dtype, str | None]] = {
    "floats": (call(f(3, 4), f(4)), "values", torch.bfloat16, "bfloat16[3,4], bfloat16[4]"),
    "integers beside floats stay": (call(f(4, 3), 0, at(2, below=4)), "values", torch.float64, "float64[4,3], 0, int64[2]"),
    "indices alone": (call(f(4, 3), 0, at(2, below=4)), "indices", torch.int32, "float32[4,3], 0, int32[2]"),
    "indices are no floats": (call(f(4, 3), 0, at(2, below=4)), "indices", torch.float64, None),
    "no indices": (call(f(4, 3)), "indices", torch.int32, None),
    "integers": (call(i64(3), i64(3)), "values", torch.int8, "int8[3], int8[3]"),
    "booleans beside floats stay": (call(b(3), f(3), f(3)), "values", torch.int64, "bool[3], int64[3], int64[3]"),
    "the dtype that is asked for": (call(f(3), torch.float64), "result", torch.float16, "float32[3], float16"),
    "none is asked for": (call(f(3)), "result", torch.float16, None),
    "literals": (call(lit(1, 2, 9)), "values", torch.float16, "float16[1,2,9]"),
    "literals that do not fit": (call(lit(1, 300)), "values", torch.int8, None),
    "infinities are no integers": (call(lit(float("inf"), 1.0)), "values", torch.int64, None),
    "limits stand for themselves": (call(lit(2**31 - 1, 1, dtype=torch.int32)), "values", torch.int64, None),
    "numbers without ties": (call(distinct(30, 30)), "values", torch.bfloat16, None),
}


@pytest.mark.parametrize("case", CASES)
def test_samples_are_converted(case: str) -> None:
    """What a sample has in a role gets the dtype, the rest stays; None where it has nothing there that would fit."""
    sample, role, dtype, wanted = CASES[case]
    found = retyped(sample, role, dtype)
    assert (None if found is None else str(found)) == wanted
    assert found is None or is_in(found, role, dtype)


def test_divisors_stay_positive() -> None:
    """Positive floats become positive integers."""
    found = retyped(call(pos(50)), "values", torch.int64)
    assert found is not None
    assert int(found.build()[0][0].min()) > 0


def test_bytes_are_large_numbers_too() -> None:
    """Negative integers become bytes from 128 on, which some compilers take for negative."""
    found = retyped(call(i64(50)), "values", torch.uint8)
    assert found is not None
    assert int(found.build()[0][0].max()) >= 128


def test_no_negative_float_is_asked_to_be_a_byte() -> None:
    """What that gives is the machine's choice."""
    found = retyped(call(f(50), torch.float64), "result", torch.uint8)
    assert found is not None
    assert float(found.build()[0][0].min()) > 0


def test_written_calls_are_not_converted_ones() -> None:
    """A call that already exists in the dtype is not repeated, nor is any call."""
    for dtype in DTYPES:
        written = {str(sample) for sample in SAMPLES["aten.add.Tensor"] if is_in(sample, "values", dtype)}
        found = [str(sample) for sample in calls_in("aten.add.Tensor", "values", dtype)]
        assert len(found) == len(set(found)) > 0
        assert not written & set(found)


def test_the_same_kind_comes_first() -> None:
    """int8 is tried on integers before it is tried on floats made integers."""
    assert str(next(calls_in("aten.add.Tensor", "values", torch.int8))) == "int8[3,4], int8[4]"


def test_what_eager_refuses_is_no_call() -> None:
    """Eager says which dtypes an operator has, and PyTorch's fake tensors must foretell them."""
    assert is_captured(Case("aten.bitwise_and.Tensor", call(u8(3), u8(3))))
    assert not is_captured(Case("aten.bitwise_and.Tensor", call(f(3), f(3))))
    assert is_captured(Case("aten.add.Tensor", call(f16(3), f16(3))))


def test_each_operator_has_one_call_a_dtype() -> None:
    """Backends without a table are asked about an operator once in each dtype that it has in eager."""
    found = list(calls_of_each(("aten.relu.default", "aten.bitwise_not.default"), ("float32", "int8", "bool")))
    assert [str(case) for case in found] == [
        "aten.relu.default(float32[3,4])",
        "aten.relu.default(int8[3,4])",
        "aten.bitwise_not.default(int8[5])",
        "aten.bitwise_not.default(bool[3,4])",
    ]
