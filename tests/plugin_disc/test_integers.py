"""Integers of every width, bit for bit as eager has them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import pytest
import torch

from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from plugin_disc.support import OPERATORS
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
KINDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NARROW = (torch.uint8, torch.int8, torch.int16)
Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def everything(dtype: torch.dtype, count: int = 300) -> torch.Tensor:
    """Return values over the whole range, including its ends."""
    limits = torch.iinfo(dtype)
    value = torch.linspace(limits.min / 2, limits.max / 2, count, dtype=torch.float64).mul(2.0)
    ends = torch.tensor([limits.min, limits.max, limits.min + 1, 0, 1], dtype=dtype)
    return torch.cat((value[1:-1].to(torch.int64).to(dtype), ends))


def check(function: Function, *inputs: torch.Tensor) -> None:
    """Check that the compiled function returns eager's bits, and that every operator of it is declared."""
    cluster, values = whole_cluster(Wrapped(function), inputs)
    for node in cluster.module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            verdict = OPERATORS.supports(node)
            assert verdict.accepted, verdict.reason
    wanted: Sequence[torch.Tensor] = cluster.module(*values)
    for found, right in zip(create().compile(cluster, ONE)(*values), wanted, strict=True):
        assert found.dtype is right.dtype
        assert torch.equal(found, right)


def arithmetic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + y, x - y, x * y, x * 3 - 1, -x, x.abs(), torch.maximum(x, y), x.clamp(3, 90), x.sign(), x**3


def divided(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x // 7, x % 7, torch.fmod(x, 5), torch.div(x, 3, rounding_mode="trunc"), x / 4


def compared(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x < y, x >= y, x == y, x > 100, torch.where(x <= y, x, y), x & y, x | y, x ^ y, ~x


def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x.view(5, -1)
    return rows.sum(-1), rows.sum(0), rows.amax(-1), rows.amin(0), rows.argmax(-1), rows.cumsum(0), rows.prod(1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
def test_what_overflows_wraps(dtype: torch.dtype) -> None:
    """Sums, products and powers keep their low bits; extremes and comparisons know unsigned bytes."""
    x = everything(dtype)
    y = x.flip(0)
    check(lambda x, y: (*arithmetic(x, y), *compared(x, y)), x, y)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16], ids=str)
def test_quotients_and_reductions(dtype: torch.dtype) -> None:
    """Rounded as eager does, and summed up in int64."""
    check(lambda x: (*divided(x), *reduced(x)), everything(dtype)[:-3])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64], ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    """By as many bits as there are, by more, and by fewer than none."""
    bits = torch.iinfo(dtype).bits
    x = everything(dtype)
    by = torch.arange(len(x)).remainder(bits + 4).to(dtype) - (0 if dtype is torch.uint8 else 2)
    check(lambda x, y: (x << y, x >> y, x << 1, x >> 3, x >> bits), x, by)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_out_of_range_become_what_eager_makes_of_them(source: torch.dtype) -> None:
    """On their way to narrow integers they are 32 bits wide; infinities and NaN give 0."""
    inf, nan = float("inf"), float("nan")
    values = [
        300.7,
        -300.7,
        130.0,
        255.9,
        -1.5,
        3e9,
        -3e9,
        1e20,
        inf,
        -inf,
        nan,
        7e4,
        -4e4,
        2147483648.0,
        -2147483648.0,
        0.5,
    ]
    check(lambda x: tuple(x.to(kind) for kind in NARROW), torch.tensor(values * 3, dtype=source)[:45])


@pytest.mark.parametrize("source", [torch.uint8, torch.int16, torch.bool], ids=str)
def test_integers_become_any_number(source: torch.dtype) -> None:
    """Wider, narrower, unsigned, floats, and booleans; and numbers that do not fit are wrapped where eager wraps them."""
    x = everything(torch.int8).to(source)
    check(lambda x: tuple(x.to(kind) for kind in (*KINDS, torch.bool, torch.float32, torch.float16, torch.float64)), x)


def test_movements_keep_bytes() -> None:
    """Joins, padding, gathers and new tensors."""
    x = everything(torch.uint8, 48).view(-1, 3)[:16]
    places = torch.tensor([[2, 0], [1, 1]])

    def moved(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat((x, x.flip(0)), 1)
        return joined, torch.nn.functional.pad(x, (1, 2), value=7), x[:, at], torch.full_like(x, 200), x.T.contiguous()

    check(moved, x, places)
