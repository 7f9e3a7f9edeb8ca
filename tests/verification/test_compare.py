"""What is forgiven where eager itself is no standard, on generated inputs and on live ones, and what never is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hub.errors import AccuracyError
from hub.graph import Cluster
from hub.testing.single import whole_cluster
from hub.verification.compare import Judge, check_values, real_error
from hub.verification.reference import MANY_NUDGES, Reference

LARGEST = torch.finfo(torch.float32).max


def compared(cluster: Cluster, x: torch.Tensor, got: torch.Tensor) -> float:
    """Compares an output with eager's, forgivingly."""
    return check_values(Judge.of(cluster, "backend", None), [got], Reference(cluster, (x,)), "these inputs")


class Lossy(nn.Module):
    """Eager loses all digits of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1e8) - 1e8


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_lost_digits_excuse_no_infinities_and_no_nan(number: float) -> None:
    """Where eager has lost its digits any number may be right, but one it must be."""
    x = torch.randn(8, 8)
    cluster, _ = whole_cluster(Lossy(), (x,))
    got = x + 1
    compared(cluster, x, got)
    got[2, 1] = number
    with pytest.raises(AccuracyError, match=rf"at \[2, 1\]: expected .* got {number}; error inf"):
        compared(cluster, x, got)


def test_sums_may_overflow_near_the_largest_number_but_not_to_nan() -> None:
    """Parts of a sum may be too large then: an infinity of the right sign is one that adds up in another order."""
    x = torch.tensor([[3e38, 1.0], [-3e38, 2.0]])
    cluster, _ = whole_cluster(nn.Tanhshrink(), (x,))
    got = cluster.module(x)[0].clone()
    got[:, 0] *= torch.inf
    compared(cluster, x, got)
    for number in (math.nan, -math.inf):
        got[0, 0] = number
        with pytest.raises(AccuracyError, match=r"at \[0, 0\]: expected .*, got"):
            compared(cluster, x, got)


class Stretched(nn.Module):
    """In float64, more than float32 can hold; in float32, the largest number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 2e-8)


def test_a_number_that_only_float32_can_hold_is_no_nan() -> None:
    """There is no right number to compare with, on real inputs either, but eager has one."""
    x = torch.full((4,), LARGEST)
    cluster, _ = whole_cluster(Stretched(), (x,))
    reference = Reference(cluster, (x,))
    assert reference.outputs[0].isfinite().all()
    judge = Judge.of(cluster, "backend", None)
    for number in (LARGEST, math.inf):
        check_values(judge, [torch.full((4,), number)], reference, "these inputs")
    for check in (check_values, real_error):
        with pytest.raises(AccuracyError, match="got nan"):
            check(judge, [torch.full((4,), math.nan)], reference, "these inputs")


class Pole(nn.Module):
    """Infinite at 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / (x - 1)


def test_an_infinity_is_excused_by_a_rounding_of_the_inputs_that_makes_one_and_nan_is_not() -> None:
    """Beside a pole eager jumps to an infinity; to NaN it does not."""
    x = torch.full((64,), 1 + torch.finfo(torch.float32).eps)
    cluster, _ = whole_cluster(Pole(), (x,))
    reference = Reference(cluster, (x,))
    jumps = torch.stack([outputs[0] for outputs in reference.nudged(0.0)]).isinf().any(0)
    assert jumps.any()
    compared(cluster, x, torch.where(jumps, torch.inf, reference.outputs[0]))
    with pytest.raises(AccuracyError, match="got nan"):
        compared(cluster, x, torch.where(jumps, torch.nan, reference.outputs[0]))


class Spread(nn.Module):
    """A standard deviation as it should not be computed: what is left of equal values may be less than nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.square().mean(-1) - x.mean(-1).square()).sqrt()


def test_nan_is_excused_by_a_rounding_of_the_inputs_that_makes_one() -> None:
    """Half of the roundings do here: nobody is accused before many of them were tried."""
    x = (torch.rand(400, 1) + 1).expand(400, 33).clone()
    cluster, _ = whole_cluster(Spread(), (x,))
    reference = Reference(cluster, (x,))
    few = torch.stack([outputs[0] for outputs in reference.nudged(0.0)]).isnan().any(0)
    many = torch.stack([outputs[0] for outputs in reference.nudges(0.0, MANY_NUDGES)]).isnan().any(0)
    excused = many & (reference.outputs[0] > 1e-5)
    assert (excused & ~few).any()
    compared(cluster, x, torch.where(excused, torch.nan, reference.outputs[0]))
    accused = ~many & (reference.outputs[0] > 1e-5)
    with pytest.raises(AccuracyError, match="got nan"):
        compared(cluster, x, torch.where(accused, torch.nan, reference.outputs[0]))
