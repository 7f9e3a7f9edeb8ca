"""Calls that tables promised and libraries got wrong: NaN in order, integers beyond floats, ends of convolutions.

One operator at a time, without a planner: what a table accepts is eager's to the last element, refused values included.
"""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from hub.testing.conformance.cases import wanted_of
from hub.testing.conformance.judge import run
from hub.testing.conformance.target import Target, load_target
from hub.testing.operators import case_cluster, check_close
from hub.testing.operators.sample import Made, Sample, call, f, i64, lit

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:var\\(\\). degrees of freedom is <= 0"),  # PyTorch 2.15 warns once in a process
]

_FLOATS = lit(0.5, nan, 4.0, -1.0, 9.0, inf, 3.0, -inf)
_ROW = Made((1, 1, 6), torch.float32, "values", values=([[0.5, nan, 4.0, -1.0, inf, 3.0]],))
_STEPS = tuple(
    Made((2, 1, 2), torch.float32, "values", values=([[0.5, number]], [[1.0, -1.0]])) for number in (0.25, nan, inf, -inf)
)
_INT32 = lit(812345679, 2000000011, -1987654321, 33554433, 16777217, -16777219, 2**31 - 1, -(2**31), dtype=torch.int32)
_NEAR = lit(16777216, 2000000012, -1987654320, 33554432, 16777216, -16777220, 2**31 - 2, -(2**31), dtype=torch.int32)
_INT64 = lit(2**53 + 1, -(2**53) - 1, 2**31, 2**32 + 5, -(2**31) - 1, 2**62 + 1, -(2**63), 2**63 - 1)

CALLS: dict[str, tuple[Sample, ...]] = {
    "topk.default": tuple(call(_FLOATS, 5, -1, largest) for largest in (True, False)),
    "sort.default": tuple(call(_FLOATS, -1, descending) for descending in (True, False)),
    "argsort.stable": tuple(call(_FLOATS, stable=True, dim=0, descending=descending) for descending in (True, False)),
    "sign.default": (call(_FLOATS), call(_INT32), call(_INT64)),
    "clamp_min.default": (call(_FLOATS, 1.0), call(_INT64, 3), call(_INT32, 13)),
    "clamp_max.default": (call(_FLOATS, 1.0), call(_INT64, 3), call(_INT32, 13)),
    "clamp.default": (call(_INT32, -16777217, 16777217), call(_INT64, -1, 1)),
    "linalg_vector_norm.default": (call(_FLOATS, inf),),
    "div.Tensor_mode": (
        call(lit(-7.0, 7.0, -7.5, 5.0), lit(inf, -inf, inf, -inf), rounding_mode="floor"),
        *(call(_INT32, 13, rounding_mode=mode) for mode in ("floor", "trunc")),
        *(call(_INT64, 1000000007, rounding_mode=mode) for mode in ("floor", "trunc")),
    ),
    "floor_divide.default": (call(_INT32, 13), call(_INT32, -7), call(_INT64, 13)),
    "remainder.Scalar": (call(_INT32, 13), call(_INT32, -7), call(_INT64, 13)),
    "fmod.Scalar": (call(_INT64, 13), call(_INT32, 13)),
    "pow.Tensor_Scalar": tuple(call(_INT64, exponent) for exponent in (2, 3, 5)),
    "eq.Tensor": (call(_INT32, _NEAR),),
    "le.Tensor": (call(_INT32, _NEAR),),
    "gt.Tensor": (call(_INT32, _NEAR),),
    "add.Scalar": (call(_INT32, 5), call(lit(2**31 - 1, -5), 100)),
    "sum.default": (call(_INT32), call(_INT64)),
    "prod.default": (call(lit(2000000011, 2000000012, 5)),),
    "cumsum.default": (call(_INT32, 0),),
    "amax.default": (call(_INT32),),
    "any.dims": (call(i64(3, 4), []),),
    "full.default": (call([2], 2**31 + 5),),
    "arange.start_step": (call(2**31 - 4, 2**31 + 9, 3, dtype=torch.int64),),
    "var.correction": (call(f(3, 4), [1], correction=4),),
    "roll.default": (call(f(3, 4), [-1, 5], [0, 1]),),
    "softmax.int": (call(_FLOATS, 0), call(lit(inf, 1.0, inf), 0), call(lit(-inf, 1.0), 0)),
    "log_softmax.int": (call(_FLOATS, 0), call(lit(inf, 1.0, 2.0), 0), call(lit(-inf, 1.0), 0)),
    "gru.input": tuple(call(steps, f(1, 1, 2), [f(6, 2), f(6, 2)], False, 1, 0.0, False, False, False) for steps in _STEPS),
    "lstm.input": tuple(
        call(steps, [f(1, 1, 2), f(1, 1, 2)], [f(8, 2), f(8, 2)], False, 1, 0.0, False, False, False) for steps in _STEPS
    ),
    "max_pool1d.default": (call(_ROW, [2]),),
    "conv2d.default": (
        call(f(2, 1, 9, 4), f(2, 1, 3, 3), None, [1, 2]),
        call(f(1, 1, 18, 2), f(1, 1, 3, 4), f(1), [1, 3], [0, 1], [5, 1]),
        call(f(1, 1, 9, 3), f(2, 1, 1, 3), None, [1, 2]),
        call(f(1, 1, 9, 5), f(2, 1, 3, 3), None, [1, 2]),
        call(f(2, 4, 9, 4), f(8, 1, 3, 3), None, [1, 2], [0, 0], [1, 1], 4),
    ),
    "conv3d.default": (call(f(1, 1, 4, 5, 4), f(2, 1, 2, 2, 3), None, [2, 1, 2]),),
    "convolution.default": (call(f(1, 1, 9, 4), f(2, 1, 3, 3), None, [1, 2], [0, 0], [1, 1], False, [0, 0], 1),),
    "conv_transpose1d.default": (
        call(f(2, 4, 5), f(4, 2, 2), None, [1], [2], [1], 2, [2]),
        call(f(2, 4, 5), f(4, 2, 2), None, [1], [1], [2], 2, [3]),
    ),
    "conv_transpose2d.input": (
        call(f(2, 4, 5, 6), f(4, 3, 2, 2), f(6), [1, 1], [2, 2], [1, 1], 2, [2, 2]),
        call(f(1, 4, 4, 3), f(4, 1, 3, 2), None, [2, 3], [1, 0], [1, 2], 4),
    ),
    "conv_transpose3d.input": (
        call(f(1, 1, 3, 4, 2), f(1, 1, 1, 2, 2), f(1), [3, 1, 2], [0, 1, 0], [2, 1, 2], 1, [2, 2, 3]),
    ),
}

RUN = {
    "onnxruntime": [
        "argsort.stable",
        "sign.default",
        "clamp_min.default",
        "clamp_max.default",
        "sum.default",
        "any.dims",
        "div.Tensor_mode",
        "floor_divide.default",
        "fmod.Scalar",
        "conv_transpose1d.default",
        "conv_transpose2d.input",
        "max_pool1d.default",
        "gru.input",
        "lstm.input",
    ],
    "openvino": [
        "clamp.default",
        "floor_divide.default",
        "remainder.Scalar",
        "eq.Tensor",
        "sum.default",
        "cumsum.default",
        "amax.default",
        "conv2d.default",
        "softmax.int",
        "log_softmax.int",
        "max_pool1d.default",
    ],
}
"""Operators of which each of these accepts a call, so that refusing everything does not pass."""


def _problems(target: Target, name: str, *, dynamic: bool) -> tuple[list[str], int]:
    found: list[str] = []
    taken = 0
    for sample in CALLS[name]:
        cluster, inputs = case_cluster(f"aten.{name}", sample, dynamic=dynamic)
        if target.refusal(cluster):
            continue
        taken += 1
        outputs = run(target.compile(cluster), cluster, inputs)
        try:
            check_close(outputs, *wanted_of(f"aten.{name}", sample))
        except AssertionError as error:
            found.append(f"{name}({sample}): {error}")
    return found, taken


@pytest.mark.parametrize("backend", RUN)
def test_what_a_table_accepts_is_eagers(backend: str) -> None:
    """Each call is refused, or gives what eager gives, with fixed sizes and with symbolic ones."""
    target = load_target(backend, 600.0)
    found: list[str] = []
    for name in CALLS:
        if target.table is not None and f"aten.{name}" not in target.table:
            continue
        for dynamic in (False, True):
            problems, taken = _problems(target, name, dynamic=dynamic)
            found += problems
            assert taken or dynamic or name not in RUN[backend], f"every call of {name} is refused"
    assert not found, "\n".join(found)
