"""Operators where OpenVINO's own arithmetic is not eager's, on inputs that verification does not draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hub

ov: Any = pytest.importorskip("openvino")
from plugin_openvino.fused import MAX_ROWS, has_fatal_chain  # noqa: E402 - needs the library
from plugin_openvino.library import ops  # noqa: E402

MULTIPLES = torch.arange(4000)
INTS = torch.tensor([[2001, 1500, 900], [33, 1999, 2000]])
SMALL = torch.tensor([[3, 2, 7], [1, 2, 3]])
Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]
"""A function, the inputs of its first call, and those of the call that counts."""
CASES: Mapping[str, Case] = {
    "floor of a quotient": (lambda i: (i / 82).floor() * 1, (torch.randint(1, 80, (4000,)),), (MULTIPLES,)),
    "floor of a decimal": (lambda x: (x / 0.3).floor() * 1, (torch.rand(4000),), (MULTIPLES * 0.3,)),
    "quotient as integer": (lambda x: (x / 41).long() + 1, (torch.rand(4000),), (MULTIPLES * 41.0,)),
    "truncated quotient": (lambda x: torch.div(x, 41, rounding_mode="trunc") + 1, (torch.rand(9),), (MULTIPLES * 41.0,)),
    "integers selected by integers": (
        lambda a, b: torch.where(b > a, a * 1000003, -(b * 1000003)), (SMALL, SMALL.flip(1)), (INTS, INTS.flip(1))
    ),
    "filled integers": (lambda a, b: (a + b).masked_fill(b > 5, 16777219), (SMALL, SMALL * 0), (SMALL, INTS)),
    "counted": (lambda x: (x > 0).sum() + 1, (torch.randn(17_000_000),), (torch.ones(17_000_000),)),
    "interpolated to the end": (
        lambda a, b: torch.lerp(a, b, 1.0) + 0, (torch.rand(64), torch.rand(64)), (torch.rand(64) * 1e8, torch.rand(64))
    ),
    "interpolated by a tensor": (
        lambda a, b, w: torch.lerp(a, b, w) + 0,
        (torch.rand(64), torch.rand(64), torch.rand(64)),
        (torch.rand(64) * 1e8, torch.rand(64), torch.ones(64)),
    ),
    "weights normed over a dim from the end": (
        lambda v, g: torch._weight_norm(v, g, -2) * 1, (torch.rand(3, 4, 5), torch.rand(1, 4, 1)),
        (torch.rand(3, 4, 5), torch.rand(1, 4, 1)),
    ),
    "log of nearly one": (lambda x: torch.log1p(x) * 1, (torch.rand(64),), (torch.logspace(-12, 4, 64),)),
    "log of nearly one, from below": (lambda x: torch.log1p(x) * 1, (torch.rand(64),), (-torch.logspace(-12, 0, 64),)),
    "inverse functions": (
        lambda x: torch.asin(x) + torch.acos(x) + torch.asinh(x) + torch.atanh(x) + torch.acosh(x + 1),
        (torch.rand(64),), (torch.rand(64) * 2 - 0.5,),
    ),
    "numbers for infinities": (
        lambda x, n: torch.nan_to_num(x * n, 3.0, 5.0), (torch.rand(3), torch.ones(3)),
        (torch.tensor([nan, inf, -inf]), torch.ones(3)),
    ),
    "slopes of channels": (
        lambda x, w: functional.prelu(x, w) * 1,
        (torch.randn(2, 3, 3), torch.rand(3)), (torch.randn(2, 3, 3), -torch.rand(3)),
    ),
    "floor of log2": (
        lambda x: torch.log2(x).floor().long() + 1, (torch.arange(1, 100),), (torch.tensor([2**15, 2**27, 8] * 33),)
    ),
    "floor of log10": (
        lambda x: torch.log10(x).floor() + 0, (torch.rand(50),), (torch.tensor([10.0**k for k in range(-20, 30)]),)
    ),
    "halved image": (
        lambda x: functional.interpolate(x, scale_factor=0.5, mode="bilinear") * 1,
        (torch.rand(1, 2, 9, 7),), (torch.rand(1, 2, 9, 7),),
    ),
    "normed by running numbers": (
        lambda x, m, v: functional.instance_norm(x, m, v, use_input_stats=False) * 1,
        (torch.rand(2, 3, 8), torch.rand(3), torch.rand(3)), (torch.rand(2, 3, 8) * 9, torch.rand(3), torch.rand(3) + 5),
    ),
    "repeated beside": (
        lambda x: x.repeat_interleave(3, -1) + x.repeat_interleave(3, 0).mT, (torch.rand(4, 4),), (torch.rand(4, 4),)
    ),
    "ones at positions": (
        lambda i: functional.one_hot(i + 0, 5) * 2, (torch.tensor([[1, 2], [3, 4]]),), (torch.tensor([[0, 0], [4, 1]]),)
    ),
    "softplus far from 0": (
        lambda x: functional.softplus(x) * 1, (torch.rand(64),),
        (torch.tensor([-75.0, -40.0, -20.0, -16.5, -11.0, -3.0, 0.0, 19.9, 20.1, 60.0, -inf, inf, nan] * 5),),
    ),
    "log of a sigmoid far from 0": (
        lambda x: functional.logsigmoid(x) * 1, (torch.rand(64),),
        (torch.tensor([-75.0, -3.0, 0.0, 9.0, 19.9, 20.1, 60.0, -inf, inf, nan] * 5),),
    ),
    "squeezed number": (lambda x: functional.relu(x).sum().squeeze(0) * 2, (torch.rand(3),), (torch.rand(3),)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:openvino failed")  # on one call, which runs in eager
@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name: str) -> None:
    """In a later call, too, whose values the first one's do not resemble; wherever it runs."""
    function, first, later = CASES[name]
    run: Any = torch.compile(function, backend="hub", options={"backends": ["openvino"], "tune": "off", "start": "wait"})
    with torch.no_grad():
        run(*first)
        found, expected = run(*later), function(*later)
    rtol = 1e-6 if expected.is_floating_point() else 0.0
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0.0, equal_nan=True)
    assert hub.plans(run)[0].backends == ("openvino",)


def test_a_position_beyond_the_classes_is_eagers_error() -> None:
    options = {"backends": ["openvino"], "tune": "off", "start": "wait"}
    run: Any = torch.compile(lambda i: functional.one_hot(i + 0, 5) * 2, backend="hub", options=options)
    run(torch.tensor([1, 2, 3]))
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        run(torch.tensor([1, 2, 5]))
    assert run(torch.tensor([4, 2, 0])).tolist()[0] == [0, 0, 0, 0, 2]


def test_a_written_slice_with_open_bounds_crashes_nothing() -> None:
    """OpenVINO ended the process that compiled it; the rest of the program is compiled."""

    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.slice_scatter(y * 2, 1, 0, y.shape[1]) + x)

    options = {"backends": ["openvino"], "tune": "off", "start": "wait"}
    run: Any = torch.compile(write, backend="hub", options=options, dynamic=True)
    for size in (3, 5):
        x, y = torch.rand(5, 8, 4), torch.rand(5, size, 4)
        torch.testing.assert_close(run(x, y), write(x, y))
    assert not [event for plan in hub.plans(run) for event in plan.events if "SIGSEGV" in event.message]


@pytest.mark.parametrize("threads", [1, 2])
def test_products_of_few_rows_beside_another_tensor_crash_nothing(threads: int) -> None:
    """OpenVINO fuses them, and ended the process that compiled the model: it depends on rows and threads."""
    torch.manual_seed(0)
    first, second = nn.Linear(16, 20), nn.Linear(20, 16)

    def residual(x: torch.Tensor) -> torch.Tensor:
        stream = torch.relu(x)
        inner = torch.tanh(stream)
        return stream + second(functional.gelu(first(inner)))

    for rows in (1, 4, 6, 8, 9):
        options = {"backends": ["openvino"], "tune": "off", "start": "wait", "threads": threads}
        run: Any = torch.compile(residual, backend="hub", options=options, dynamic=False)
        with torch.no_grad():
            x = torch.randn(rows, 16)
            torch.testing.assert_close(run(x), residual(x))
        assert hub.plans(run)[-1].backends == ("openvino",)


@pytest.mark.parametrize(
    ("build", "is_fatal"),
    [
        (lambda x, fc: ops.add(ops.tanh(x), fc(fc(x))), True),
        (lambda x, fc: ops.multiply(ops.relu(fc(ops.relu(fc(x)))), x), True),
        (lambda x, fc: fc(ops.add(x, fc(x))), False),
        (lambda x, fc: ops.add(x, fc(x)), False),
        (lambda x, fc: ops.relu(fc(ops.softmax(fc(x), 1))), False),
    ],
)
def test_only_chains_that_may_crash_are_left_apart(build: Callable[..., Any], is_fatal: bool) -> None:
    weight = ops.constant(torch.randn(6, 6).numpy())
    for rows, expected in ((MAX_ROWS, is_fatal), (MAX_ROWS + 1, False)):
        x = ops.parameter([rows, 6], ov.Type.f32)
        model = ov.Model([build(x, lambda value: ops.matmul(value, weight, False, True))], [x])
        assert has_fatal_chain(model) is expected
