"""GraphNet's scores, as the paper defines them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hub.bench.closeness import least_tolerance
from hub.bench.result import Interval, Result
from hub.bench.score import TOLERANCES, Sample, error_aware_score, geometric_mean, sample, speedup_score

SAMPLES = st.one_of(
    st.builds(Sample, st.floats(0.05, 20.0), st.one_of(st.none(), st.integers(-10, 1))),
    st.builds(Sample, st.none(), st.none(), st.sampled_from(["compile", "runtime"])),
)


def by_formula(samples: list[Sample], t: int, p: float, b: float, *, is_error_aware: bool) -> float:
    """Return the paper's formula over all samples: alpha^lambda * beta^(lambda eta p) * gamma^(1 - lambda)."""
    correct = [one.speedup for one in samples if one.is_correct(min(t, 1)) and one.speedup is not None]
    slow = [speed for speed in correct if speed < 1]
    share = len(correct) / len(samples)
    wrong = [one for one in samples if not one.is_correct(min(t, 1))]
    classes = [{"compile": 3, "runtime": 2, "": 1}[one.error] for one in wrong]
    exponent = sum(t < number for number in classes) / len(wrong) if wrong and is_error_aware else 1.0
    alpha, beta = geometric_mean(correct) or 1.0, geometric_mean(slow) or 1.0
    eta = len(slow) / len(correct) if correct else 0.0
    return alpha**share * beta ** (share * eta * p) * (b**exponent) ** (1 - share)


@given(st.lists(SAMPLES, min_size=1, max_size=8), st.sampled_from(TOLERANCES), st.floats(0.0, 2.0))
def test_both_scores_equal_the_formula_of_the_paper(samples: list[Sample], t: int, p: float) -> None:
    """The mean over samples and the formula over shares are the same number (appendices B and C)."""
    for score, is_error_aware in ((speedup_score, False), (error_aware_score, True)):
        found = score(samples, t, p=p, b=0.1)
        assert found is not None
        assert found == pytest.approx(by_formula(samples, t, p, 0.1, is_error_aware=is_error_aware))


def test_errors_are_forgiven_class_by_class() -> None:
    """A wrong result counts as no speed-up from t = 1 on, an error while running from 2, one while compiling from 3."""
    for one, first in ((Sample(2.0, None), 1), (Sample(None, None, "runtime"), 2), (Sample(None, None, "compile"), 3)):
        assert [t for t in TOLERANCES if error_aware_score([one], t) == 1.0] == list(range(first, 6))
        assert error_aware_score([one], first - 1) == pytest.approx(0.1)


def test_a_result_counts_from_its_tolerance_on() -> None:
    """Below it the result is wrong; above it the speed-up counts."""
    one = Sample(4.0, -5)
    assert speedup_score([one], -6) == pytest.approx(0.1)
    assert speedup_score([one], -5) == pytest.approx(4.0)


def test_no_samples_have_no_score() -> None:
    """Nothing is made up where nothing was measured."""
    assert speedup_score([], 0) is None
    assert geometric_mean([]) is None


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Result(name="a", call_s=Interval.of([0.5]), tolerance=-6), Sample(2.0, -6)),
        (Result(name="a", failure="boom", failure_kind="runtime"), Sample(None, None, "runtime")),
        (Result(name="a", failure="far off", failure_kind="accuracy", wrong_call_s=0.25, tolerance=0), Sample(4.0, 0)),
        (Result(name="a", failure="no such library", failure_kind="unavailable"), None),
    ],
)
def test_a_sample_says_how_its_contender_fared(result: Result, expected: Sample | None) -> None:
    """Who was not there is not scored."""
    assert sample(result, 1.0) == expected


def test_tolerances_are_those_of_graphnet() -> None:
    """At t = -5 they are the defaults of `torch.testing`; equal results pass at every t, whole numbers only if equal."""
    ones = torch.ones(3)
    assert least_tolerance(ones, ones) == -10
    assert least_tolerance(ones + 1.1e-5, ones) == -5
    assert least_tolerance(ones + 1.4e-5, ones) == -4
    assert least_tolerance((ones, torch.tensor([1])), (ones, torch.tensor([2]))) is None
    assert least_tolerance(ones.double() + 1.9e-7, ones.double()) == -5
    assert least_tolerance(ones * math.inf, ones * math.inf) == -10
