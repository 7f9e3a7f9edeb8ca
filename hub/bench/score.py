"""GraphNet's scores: speed-up over eager that accounts for wrong and failed results, at a tolerance t.

Source: Li et al., "GraphNet: A Large-Scale Computational Graph Dataset for Tensor Compiler Research", arXiv 2510.24035,
section 3.2 and appendices B and C; github.com/PaddlePaddle/GraphNet, graph_net_bench/analysis_util.py. Of all samples, a
share lambda is correct at t, with speed-ups of geometric mean alpha; a share eta of these is slower than eager, with mean
beta:

    S_t  = alpha^lambda * beta^(lambda eta p) * b^(1 - lambda)
    ES_t = alpha^lambda * beta^(lambda eta p) * gamma_t^(1 - lambda),  gamma_t = b^(sum of pi_c over classes c > t)

where pi_c is the share of class c among the samples that are not correct: 1 a wrong result, 2 an error while running, 3 an
error while compiling. Both equal the geometric mean over samples that is computed here (appendices B and C). Below t = 1
they are equal; from t = 1 on, correctness is that at t = 1, and errors are forgiven class by class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub.bench.result import FailureKind, Result

TOLERANCES = tuple(range(-10, 6))
"""All values of t in the paper's figures."""
SLOWDOWN_PENALTY = 0.0
"""p: how much more a slowdown counts than a speed-up. The value in GraphNet's scripts."""
FAILURE_SPEEDUP = 0.1
"""b: the speed-up that stands for a failure. The value in GraphNet's scripts."""

_CLASSES = {"accuracy": 1, "runtime": 2, "compile": 3}
_LAST = 1
"""The t whose correctness applies to all larger ones."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One contender on one model."""

    speedup: float | None
    """Speed-up over eager; None if it could not be timed."""
    tolerance: int | None
    """Least t at which the result is correct; None if there is none."""
    error: FailureKind = FailureKind.NONE

    def is_correct(self, t: int) -> bool:
        """Return whether it ran and its result is within tolerance `t`."""
        return not self.error and self.speedup is not None and self.tolerance is not None and self.tolerance <= t


def sample(result: Result, eager_s: float) -> Sample | None:
    """Return the sample of a result; None if its contender was unavailable."""
    if result.failure_kind in (FailureKind.COMPILE, FailureKind.RUNTIME):
        return Sample(None, None, result.failure_kind)
    if result.failure_kind is FailureKind.ACCURACY:
        speedup = None if result.wrong_call_s is None else eager_s / result.wrong_call_s
        return Sample(speedup, result.tolerance)
    return None if result.call_s is None else Sample(eager_s / result.call_s.median, result.tolerance)


def speedup_score(
    samples: Iterable[Sample], t: int, *, p: float = SLOWDOWN_PENALTY, b: float = FAILURE_SPEEDUP
) -> float | None:
    """Return S_t, with S_1 for all larger t; None without samples."""
    return geometric_mean([_rectified(one, p) if one.is_correct(min(t, _LAST)) else b for one in samples])


def error_aware_score(
    samples: Iterable[Sample], t: int, *, p: float = SLOWDOWN_PENALTY, b: float = FAILURE_SPEEDUP
) -> float | None:
    """Return ES_t; None without samples."""
    return geometric_mean([_error_aware(one, t, p, b) for one in samples])


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean of positive numbers; None for no numbers."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def _error_aware(one: Sample, t: int, p: float, b: float) -> float:
    if one.is_correct(min(t, _LAST)):
        return _rectified(one, p)
    return 1.0 if t >= _CLASSES[one.error or "accuracy"] else b


def _rectified(one: Sample, p: float) -> float:
    assert one.speedup is not None, "a correct sample was timed"
    return one.speedup ** (p + 1.0) if one.speedup < 1.0 else one.speedup
