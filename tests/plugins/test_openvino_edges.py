"""Operators where OpenVINO's own arithmetic is not eager's, on inputs that verification does not draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional

import hub

pytest.importorskip("openvino")

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
    torch.testing.assert_close(found, expected, rtol=1e-6 if expected.is_floating_point() else 0.0, atol=0.0)
    assert hub.plans(run)[0].backends == ("openvino",)


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
