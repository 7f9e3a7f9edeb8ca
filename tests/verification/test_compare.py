"""What is forgiven where eager itself is no standard, on generated inputs and on live ones, and what never is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hub.errors import AccuracyError
from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from hub.verification.compare import Judge, Snapshot, check_values, real_error
from hub.verification.reference import MANY_NUDGES, Reference

LARGEST = torch.finfo(torch.float32).max


def compared(cluster: Cluster, x: torch.Tensor, got: torch.Tensor) -> float:
    """Compare an output with eager's, forgivingly."""
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
    with pytest.raises(AccuracyError, match=rf"at \[2, 1\]: expected .* got {number}; error inf") as raised:
        compared(cluster, x, got)
    assert "no error budget covers this" in raised.value.hint, "a budget would not help"


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
    """Near a pole eager jumps to an infinity; to NaN it does not."""
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
    """Half of the roundings do here: no backend is accused before many of them were tried."""
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


# --- Real inputs ------------------------------------------------------------------------------------------------------


def compared_strictly(cluster: Cluster, x: torch.Tensor, got: torch.Tensor, accuracy: float | None = None) -> float:
    """Compare an output with eager's as on the user's own inputs."""
    return real_error(Judge.of(cluster, "backend", accuracy), [got], Reference(cluster, (x,)), "these inputs")


class Cancelled(nn.Module):
    """A module that sums what has no mean: nothing but roundings."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)).sum(0)


class CancelledBySaved(nn.Module):
    """The same with a mean that was rounded before, as a normalization saves it for its backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(0)
        saved = mean + mean * 2**-32  # which moves it in float64 alone, and by less than eager errs
        return ((x - saved) * 8).sum(0)


class Branched(nn.Module):
    """Nothing in float64, and 100 wherever roundings make a sum larger than itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x + 1e8) - 1e8 > x + 0.25, 100.0, 0.0)


@pytest.mark.parametrize("program", [Cancelled, CancelledBySaved])
def test_other_roundings_than_eagers_are_as_good_where_there_is_nothing_else(program: type[nn.Module]) -> None:
    """A bias before a normalization has no gradient, and every program another one: as large as eager's, and no larger."""
    x = 8 + torch.randn(64, 16)
    cluster, _ = whole_cluster(program(), (x,))
    want = cluster.module(x)[0]
    compared_strictly(cluster, x, -want)
    compared_strictly(cluster, x, torch.zeros_like(want))
    with pytest.raises(AccuracyError):
        compared_strictly(cluster, x, want + 10 * want.abs().max())


def test_a_branch_that_eager_takes_is_no_rounding() -> None:
    """Where float64 takes the other one, eager's elements are something, however little float64 has."""
    x = torch.randn(64)
    cluster, _ = whole_cluster(Branched(), (x,))
    want = cluster.module(x)[0]
    assert (want == 0).any()
    assert (want > 0).any()
    with pytest.raises(AccuracyError):
        compared_strictly(cluster, x, torch.where(want > 0, 0.0, want))


class Chosen(nn.Module):
    """The row with the highest score, and scores that a rounding of `x` puts in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.arange(8.0)[:, None] + torch.rand(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows[x.topk(1)[1]]


def test_another_choice_is_another_answer_on_real_inputs_however_close() -> None:
    """That eager jumps where the inputs move by a rounding excuses a jump on generated inputs, not in the user's answer."""
    x = 1 + torch.arange(8) % 2 * torch.finfo(torch.float32).eps / 2 + torch.zeros(8)
    cluster, _ = whole_cluster(Chosen(), (x,))
    (right,) = cluster.module(x)
    other = next(outputs[0] for outputs in Reference(cluster, (x,)).nudges(0.0, 24) if not torch.equal(outputs[0], right))
    compared_strictly(cluster, x, right)
    compared(cluster, x, other)
    with pytest.raises(AccuracyError):
        compared_strictly(cluster, x, other)


class Step(nn.Module):
    """A module that decides by a sum that float64 finds on the other side of 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.sum(-1, keepdim=True) >= 1, x + 5, x)


def test_what_float64_decides_otherwise_is_no_standard_on_real_inputs() -> None:
    """Eager's own decision is; and its distance from float64 excuses no other element."""
    x = torch.tensor([[1, -1e-9], [0.1, 0.2], [0.3, 0.4]])
    cluster, _ = whole_cluster(Step(), (x,))
    reference = Reference(cluster, (x,))
    (right,) = reference.outputs
    assert reference.wide is not None
    assert float((reference.wide[0] - right).abs().max()) > 4
    compared_strictly(cluster, x, right)
    elsewhere = right + torch.tensor([[0.0], [1.0], [0.0]])
    for wrong in (reference.wide[0].float(), right + 1, elsewhere):
        with pytest.raises(AccuracyError):
            compared_strictly(cluster, x, wrong)
    with pytest.raises(AccuracyError):
        compared(cluster, x, elsewhere)


class Overflowing(nn.Module):
    """Infinite in float32 on the way, and 1 in float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x / x / x


def test_where_eager_overflows_only_overflow_or_the_right_number_passes() -> None:
    """On generated inputs a program may be more exact than eager; on real ones, what eager gives is right."""
    x = torch.full((4,), 1e30)
    cluster, _ = whole_cluster(Overflowing(), (x,))
    assert bool(cluster.module(x)[0].isinf().all())
    for number in (math.inf, math.nan, 1.0):
        compared(cluster, x, torch.full((4,), number))
    with pytest.raises(AccuracyError):
        compared(cluster, x, torch.full((4,), 57.0))
    compared_strictly(cluster, x, torch.full((4,), math.inf))
    for number in (math.nan, 1.0, 57.0, -math.inf):
        with pytest.raises(AccuracyError):
            compared_strictly(cluster, x, torch.full((4,), number))


def test_lost_digits_excuse_four_times_eagers_own_error_and_no_more() -> None:
    """A number that neither eager nor float64 is near to is garbage, whatever is left of eager's digits."""
    x = torch.randn(8, 8)
    cluster, _ = whole_cluster(Lossy(), (x,))
    compared(cluster, x, x + 8)
    with pytest.raises(AccuracyError):
        compared(cluster, x, x + 57)


def test_numbers_near_the_largest_one_are_compared_as_others_are() -> None:
    """Only an infinity of the right sign may stand there for a sum in another order, no other number."""
    x = torch.tensor([[3e38, 1.0], [-3e38, 2.0]])
    cluster, _ = whole_cluster(nn.Tanhshrink(), (x,))
    got = cluster.module(x)[0].clone()
    got[0, 0] = 5.0
    with pytest.raises(AccuracyError):
        compared(cluster, x, got)


class Edge(nn.Module):
    """A module that jumps in its first elements, and is smooth in all others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.where(x[:8] > 1, 1e3, 0.0), x[8:]))


def test_a_few_elements_that_jump_excuse_no_others() -> None:
    """What the others may differ by is what half of all elements move by, which some that jump do not raise."""
    x = torch.cat((torch.ones(8), torch.rand(92)))
    cluster, _ = whole_cluster(Edge(), (x,))
    (right,) = cluster.module(x)
    jumped = Reference(cluster, (x,)).nudged(0.0)[0][0]
    assert not torch.equal(jumped[:8], right[:8])
    compared(cluster, x, jumped)
    with pytest.raises(AccuracyError, match=r"at \[50\]"):
        compared(cluster, x, right + 2 * (torch.arange(100) == 50))


class Steep(nn.Module):
    """An error of one part in a hundred of `x` becomes one of a half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.pow(50)


def test_a_granted_error_is_one_of_the_results_on_real_inputs() -> None:
    """One of the inputs, as large as the granted one, may amplify the results: that is not granted."""
    x = torch.full((64,), 1.5)
    cluster, _ = whole_cluster(Steep(), (x,))
    (right,) = cluster.module(x)
    compared_strictly(cluster, x, right * 1.009, accuracy=0.01)
    with pytest.raises(AccuracyError):
        compared_strictly(cluster, x, right * 1.5, accuracy=0.01)
    compared(cluster, x, right)


@pytest.mark.parametrize("expanded", ["first", "last", "none"])
def test_writes_to_an_expanded_input_are_undone(expanded: str) -> None:
    """Its elements share memory, which PyTorch does not write to at once; other inputs stay as they are."""
    plain = torch.arange(12.0).reshape(3, 4)
    value = {"first": plain[:1].expand(3, 4), "last": plain[:, :1].expand(3, 4), "none": plain.t()}[expanded]
    was, kept = value.clone(), Snapshot((value, 1))
    version = value._version
    value.detach().as_strided((2,), (1,), value.storage_offset()).add_(1)
    assert kept.written() == (0,)
    kept.restore((0,))
    assert torch.equal(value, was)
    assert value._version == version
    assert kept.written() == ()
