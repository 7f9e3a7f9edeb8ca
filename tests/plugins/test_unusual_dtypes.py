"""Operands of other dtypes than the result, and values at the ends of a dtype: the answer is eager's to the last bit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import hub
from hub.plan import Event, EventKind, Stage
from hub.toolkit.builders import cast, fill
from hub.toolkit.functions import halved
from hub.toolkit.rules.call import DTYPES, Call
from hub.toolkit.rules.elementwise import RULES
from hub.toolkit.tensors import Fill, Source

pytestmark = pytest.mark.filterwarnings("ignore:.*::torch", "ignore:`torch.jit.:DeprecationWarning")

aten = torch.ops.aten
Case = tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]


def of(*values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor of one dim."""
    return torch.tensor(values, dtype=dtype)


def bf16(*values: Any) -> torch.Tensor:
    """Return numbers of eight bits of mantissa."""
    return of(*values, dtype=torch.bfloat16)


def f16(*values: Any) -> torch.Tensor:
    """Return numbers of eleven bits of mantissa."""
    return of(*values, dtype=torch.float16)


def i64(*values: Any) -> torch.Tensor:
    """Return integers."""
    return of(*values, dtype=torch.int64)


def usual(like: torch.Tensor) -> torch.Tensor:
    """Return numbers of the same shape and dtype with which no rounding is in doubt."""
    return torch.arange(1, like.numel() + 1).reshape(like.shape).to(like.dtype)


SCALARS: Mapping[str, Case] = {
    "bf16 equals": (lambda x: x == 0.1, [bf16(0.1, 0.2)]),
    "bf16 greater": (lambda x: x > 0.3, [bf16(0.3, 0.1)]),
    "f16 not less": (lambda x: x >= 0.1, [f16(0.1, 0.2)]),
    "bf16 not equal": (lambda x: x != 257, [bf16(256.0, 257.0)]),
    "bf16 fmod": (lambda x: torch.fmod(x, 0.1), [bf16(5.0, 3.0)]),
    "bf16 remainder": (lambda x: torch.remainder(x, 0.1), [bf16(5.0, -3.0)]),
    "bf16 minus": (lambda x: x - 0.3, [bf16(0.3, 0.5)]),
    "bf16 plus": (lambda x: x + 257, [bf16(1.0, 2.0)]),
    "bf16 from": (lambda x: 0.3 - x, [bf16(0.3, 0.5)]),
    "f16 plus": (lambda x: x + 2049, [f16(1.0, 2.0)]),
    "f16 beyond": (lambda x: x - 70000, [f16(1.0, 2.0)]),
    "bf16 times": (lambda x: x * 0.3, [bf16(61.0, 1.0)]),
    "f16 times": (lambda x: x * 70000, [f16(0.5, 0.25)]),
    "bf16 over": (lambda x: x / 0.3, [bf16(*range(1, 40))]),
    "bf16 floor": (lambda x: x // 0.3, [bf16(*range(1, 80))]),
    "bf16 trunc": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), [bf16(*range(1, 80))]),
    "bf16 hardshrink": (lambda x: F.hardshrink(x, 0.1), [bf16(0.1, -0.1, 0.2)]),
    "bf16 threshold": (lambda x: F.threshold(x, 0.1, 9.0), [bf16(0.1, -0.1, 0.2)]),
    "bf16 power": (lambda x: x**1.001, [bf16(1e30, 2.0)]),
}
TENSORS: Mapping[str, Case] = {
    "bf16 equals": (lambda x, y: x == y, [bf16(0.1, 0.2), torch.tensor(0.1)]),
    "f16 equals": (lambda x, y: x == y, [f16(2048.0, 1.0), i64(2049, 1)]),
    "f16 times": (lambda x, y: x * y, [f16(0.5, 0.25), i64(70000, 1)]),
    "f16 times one": (lambda x, y: x * y, [f16(0.5, 0.25), i64(70000)]),
    "f16 times a number": (lambda x, y: x * y, [f16(0.5, 0.25), torch.tensor(70000)]),
    "one times f16": (lambda x, y: y * x, [f16(0.5, 0.25), i64(70000)]),
    "bf16 plus": (lambda x, y: x + y, [bf16(1.0, 2.0), i64(257, 2)]),
    "bf16 plus one": (lambda x, y: x + y, [bf16(1.0, 2.0), i64(257)]),
    "bf16 minus": (lambda x, y: x - y, [bf16(0.3, 0.5), torch.tensor(0.3)]),
    "bf16 over": (lambda x, y: x / y, [bf16(*range(1, 40)), torch.tensor(0.3)]),
    "bf16 floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), [bf16(*range(1, 80)), torch.tensor(0.3)]),
    "bf16 fmod": (lambda x, y: torch.fmod(x, y), [bf16(5.0, 3.0), torch.tensor(0.1)]),
    "bf16 trunc of bf16": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        [bf16(*range(160, 200)), bf16(*range(1, 41))],
    ),
    "bf16 floor of bf16": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        [bf16(100, 100, 102, 103), bf16(6, -1, -2, 1) / 7],
    ),
    "f16 floor of f16": (lambda x, y: x // y, [f16(295, 293, 299), f16(1, -3, 1) / 7]),
    "bf16 addcmul": (lambda x, y: torch.addcmul(x, y, x), [bf16(-256.0, 1.0), torch.tensor(257)]),
    "bf16 lerp": (lambda x, y: torch.lerp(x, x * 256, y), [bf16(1.0, 2.0), torch.tensor(0.3)]),
}
PROMOTED: Mapping[str, Case] = {
    "prepended": (lambda x, end: torch.diff(x, prepend=end), [torch.arange(4), of(0.5)]),
    "appended": (lambda x, end: torch.diff(x, append=end), [torch.arange(4), of(0.5)]),
    "both ends": (lambda x, end: torch.diff(x, prepend=end, append=end.double()), [torch.arange(4), of(0.5)]),
}
CONSTANTS: Mapping[str, Case] = {
    "fraction": (lambda x: x.double() + torch.full_like(x, 0.1).double(), [of(0.0, 1.0)]),
    "integer": (lambda x: x.long() + torch.full_like(x, 16777217.0).long(), [of(0.0, 1.0)]),
    "bf16 fraction": (lambda x: x.float() + torch.full_like(x, 0.1).float(), [bf16(0.0, 1.0)]),
    "infinity": (lambda x: x + torch.full((2,), inf).int(), [of(0, 1, dtype=torch.int32)]),
    "not a number": (lambda x: x + torch.full((2,), nan).long(), [i64(0, 1)]),
    "beyond": (lambda x: x + torch.full((2,), 3e9).to(torch.uint8), [of(0, 1, dtype=torch.uint8)]),
}
REDUCED: Mapping[str, Case] = {
    "norm": (lambda x: torch.linalg.vector_norm(x, dtype=torch.float64), [torch.full((4,), 1e30)]),
    "bf16 norm": (lambda x: torch.linalg.vector_norm(x, dtype=torch.float32), [bf16(1e30, 1e30)]),
    "sum": (lambda x: x.sum(dtype=torch.float16), [of(70000.0, -70000.0)]),
    "bf16 sum": (lambda x: x.sum(dtype=torch.float16), [bf16(70000.0, -70000.0)]),
    "mean": (lambda x: x.mean(dtype=torch.float16), [of(70000.0, -70000.0)]),
    "product": (lambda x: x.prod(dtype=torch.float16), [of(70000.0, 0.0)]),
    "running sum": (lambda x: x.cumsum(0, dtype=torch.float16), [of(70000.0, -70000.0)]),
    "softmax": (lambda x: x.softmax(0, dtype=torch.float16), [of(70000.0, 70001.0)]),
    "log_softmax": (lambda x: x.log_softmax(0, dtype=torch.float16), [of(2049.0, 0.0)]),
    "any": (lambda x: aten.any.dims(x > 1, ()), [of(0.0, 2.0)]),
    "all": (lambda x: aten.all.dims(x > 1, ()), [of(0.0, 2.0)]),
}
RESIZED: Mapping[str, Case] = {
    f"by {factor}": (
        lambda x, factor=factor: F.interpolate(x, scale_factor=factor) * 2,
        [torch.arange(8.0).view(1, 2, 4)],
    )
    for factor in (1.2, 2.1, 3.1, 2.0)
}
VALUES: Mapping[str, Case] = {
    "f16 root": (lambda x: x**0.5, [f16(-inf, 4.0)]),
    "f16 root below": (lambda x: x**-0.5, [f16(-inf, 4.0)]),
    "bf16 root": (lambda x: x**0.5, [bf16(-inf, 4.0)]),
    "f32 root": (lambda x: x**0.5, [of(-inf, 4.0)]),
    "relu": (lambda x: 1 / F.relu(x), [of(-0.0, 0.0, 2.0, nan)]),
    "relu6": (lambda x: 1 / F.relu6(x), [of(-0.0, 0.0, 2.0, nan)]),
    "hardtanh": (lambda x: 1 / F.hardtanh(x, 0.0, 4.0), [of(-0.0, 0.0, 2.0, nan)]),
    "clamped above": (lambda x: 1 / F.hardtanh(x, -4.0, -0.0), [of(-0.0, 0.0, -2.0, nan)]),
    "clamp_min": (lambda x: 1 / x.clamp_min(0.0), [of(-0.0, 0.0, 2.0, nan)]),
    "clamp": (lambda x: 1 / x.clamp(0.0, 1.0), [of(-0.0, 0.0, 2.0, nan)]),
}
LOGIC: Mapping[str, Case] = {
    "not greater": (lambda x: ~(x > 0), [of(nan, 1.0, -1.0)]),
    "logical not": (lambda x: torch.logical_not(x > 0), [of(nan, 1.0, -1.0)]),
    "not equal": (lambda x, y: ~(x == y), [of(nan, 1.0, -1.0), of(1.0, 1.0, 1.0)]),
    "not unequal": (lambda x, y: ~(x != y), [of(nan, 1.0, -1.0), of(1.0, 1.0, 1.0)]),
    "either": (lambda x, y: (x <= y) | (y < x), [of(nan, 1.0, -1.0), of(1.0, 1.0, 1.0)]),
    "neither": (lambda x, y: ~((x < y) | (y < x)), [of(nan, 1.0, -1.0), of(1.0, 1.0, 1.0)]),
    "one of two": (lambda x: (x > 0) ^ torch.ones_like(x, dtype=torch.bool), [of(nan, 1.0, -1.0)]),
    "chosen": (lambda x, y: torch.where(~(x > y), x, y), [of(nan, 1.0, -1.0), of(1.0, 1.0, 1.0)]),
    "next": (lambda x: (x + 1) > x, [i64(2**63 - 1, 1)]),
    "before": (lambda x: (x - 1) < x, [i64(-(2**63), 1)]),
    "doubled": (lambda x, y: (x * 2) < (y * 2), [i64(2**62, 1), i64(2**62 + 2**61, 2)]),
    "smaller of two": (lambda x: torch.minimum(x + 1, x), [i64(2**63 - 1, 1)]),
    "quotient": (lambda x: (x * 6) // 3, [i64(2**62, 1)]),
    "size": (lambda x: x.abs() >= 0, [i64(-(2**63), 1)]),
    "other sign": (lambda x: (-x) > 0, [i64(-(2**63), 1)]),
    "shifted": (lambda x: (x << 1) > x, [i64(2**62, 1)]),
    "minus one": (lambda x: (x + -1) < x, [i64(-(2**63), 1)]),
    "neither below nor above": (
        lambda x: torch.where(x < 0, 1, torch.where(x >= 0, 2, 3)),
        [of(nan, 1.0, -1.0)],
    ),
    "narrow next": (lambda x: (x + 1) > x, [of(2**31 - 1, 1, dtype=torch.int32)]),
    "narrow quotient": (lambda x: (x * 6) // 3, [of(2**30, 1, dtype=torch.int32)]),
}
CASES: Mapping[str, Mapping[str, Case]] = {
    "operands that are numbers": SCALARS,
    "operands of other dtypes": TENSORS,
    "ends of other dtypes": PROMOTED,
    "constants that are cast": CONSTANTS,
    "reductions in another dtype": REDUCED,
    "factors between sizes": RESIZED,
    "roots and signs of zero": VALUES,
    "comparisons with no order": LOGIC,
}


def _is_of_time(event: Event) -> bool:
    """Return whether an event says what was slow to load, or is to be verified later: not what a backend did."""
    return event.kind is EventKind.NOTE and event.stage in (Stage.LOAD, Stage.LATER)


@pytest.mark.parametrize("backend", ["disc", "iree", "triton", "tvm", "xla"])
@pytest.mark.parametrize("kind", CASES)
def test_results_are_eagers(kind: str, backend: str) -> None:
    """Each is refused by the backend's table, or served by a program that nothing has to guard, and has no other bits."""
    own = {"triton": {"interpret": True}, "isolate": False} if backend == "triton" else {}
    served = 0
    wrong: list[str] = []
    # Triton's interpreter cuts off what does not fit into bfloat16, which compiled kernels round.
    cases = {name: case for name, case in CASES[kind].items() if backend != "triton" or not name.startswith("bf16")}
    for name, (function, given) in cases.items():
        torch._dynamo.reset()
        options = {"backends": [backend], "tune": "off", "start": "wait", **own}
        run: Any = torch.compile(function, backend="hub", options=options)
        with torch.no_grad():
            run(*map(usual, given))
            found, expected = run(*given), function(*given)
        (plan,) = hub.plans(run)
        served += backend in plan.backends
        wrong += [f"{name}: {event}" for event in plan.events if not _is_of_time(event)]
        try:
            torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0, equal_nan=True)
        except AssertionError as error:
            wrong.append(f"{name}: {found.tolist()}, not {expected.tolist()}: {error}")
    assert not wrong, "\n".join(wrong)
    assert served > len(cases) // 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_halved_as_in_pytorch(dtype: torch.dtype) -> None:
    """To nearest, ties to even, beyond the largest number to infinity."""
    numbers = [0.0, -0.0, 0.1, 257.0, 259.0, 2049.0, 65519.9, 65520.0, -70000.0, 1e-8, 3.4e38, 1e300, inf, -inf]
    for number in numbers:
        assert str(halved(number, DTYPES[dtype])) == str(torch.tensor(number, dtype=dtype).item())
    assert math.isnan(halved(nan, DTYPES[dtype]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_constants_are_cast_as_in_pytorch(dtype: torch.dtype) -> None:
    """Also what is beyond the integers, for which eager has what processors give."""
    for number in (inf, -inf, nan, 3e9, -3e9, 1e19, 70000.0, 300.0, -1.0, -129.0, 16777217.0, 0.1, 2**63, -(2**63)):
        for kind in (torch.float32, torch.float64):
            constant = cast(fill(number, DTYPES[kind]), DTYPES[dtype])
            assert isinstance(constant, Fill)
            assert constant.value == torch.full((20,), number, dtype=kind).to(dtype)[0].item(), (number, kind)


@pytest.mark.parametrize(
    ("function", "on_cpu", "on_gpu"),
    [
        (lambda x: x + 0.3, "0.300048828125", "0.3"),
        (lambda x: x * 0.3, "0.3", "0.3"),
        (lambda x: x == 0.3, "0.300048828125", "0.300048828125"),
        (torch.relu, "select", "max"),
        (lambda x: x**0.5, "pow", "sqrt"),
    ],
)
def test_kernels_of_gpus_round_and_choose_otherwise(function: Callable[..., Any], on_cpu: str, on_gpu: str) -> None:
    """What is written for a GPU follows PyTorch's kernels there, of which no comparison on a CPU knows."""
    for device, wanted in (("cpu", on_cpu), ("cuda", on_gpu)):
        with FakeTensorMode():
            graph = make_fx(function)(torch.empty(4, dtype=torch.float16, device=device)).graph
        source, node, _ = graph.nodes
        written = RULES[str(node.target)](Call(node, {source: Source((4,), "f16", "x")}))
        assert re.search(rf"(function='|value=){wanted}\b", repr(written)), (device, written)
