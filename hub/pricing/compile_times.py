"""Expected compile time of a cluster, learned from a backend's earlier compilations: a ridge regression of logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hub.pricing.features import KINDS, VERSION

UNKNOWN_S = 5.0
"""Seconds assumed for a backend of which nothing is known."""
DOUBLING_S = 300.0
"""Seconds of compilation that weigh as much as calls that take twice as long, if a choice has nothing but predictions.

Predicted times are off by a factor of 1.25 in the median, so a few percent do not decide for a minute of compilation. For
the models of the shipped table, each left out in turn, 60 to 600 s all give plans as fast as without it, and the compile
time of the chosen plans falls by 40 %.
"""
_PULL = 1.0
"""Ridge penalty, which pulls estimates from few samples to the typical time."""
_NAMES = ("nodes", "weight_bytes", *(f"count_{kind}" for kind in KINDS))

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compilation: the cluster's features (`features_of`), and the seconds it took, verification included."""

    features: Mapping[str, float]
    compile_s: float


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """Model of one backend's compile times on this machine."""

    mean: float
    center: Vector
    slopes: Vector
    max_log: float
    """Logarithm of twice the longest known time, which caps every estimate."""

    @classmethod
    def fit(cls, samples: Sequence[Compiled]) -> CompileTimes | None:
        """Return the model fitted to the samples; None if there are none."""
        usable = [one for one in samples if one.features.get("version") == VERSION and one.compile_s > 0.0]
        if not usable:
            return None
        rows = _rows([one.features for one in usable])
        logs = np.log([one.compile_s for one in usable])
        center = rows.mean(axis=0)
        centered = rows - center
        precision = centered.T @ centered + _PULL * np.eye(len(center))
        slopes = np.asarray(np.linalg.solve(precision, centered.T @ (logs - logs.mean())), dtype=np.float64)
        return cls(float(logs.mean()), center, slopes, float(logs.max()) + math.log(2.0))

    def seconds(self, features: Mapping[str, float]) -> float:
        """Return the expected seconds to compile a cluster with these features."""
        log = self.mean + float((_rows([features])[0] - self.center) @ self.slopes)
        return math.exp(min(log, self.max_log))


def weighed(run_s: float, compile_s: float) -> float:
    """Return the seconds that a plan with these predicted times counts with, in a choice between predictions."""
    return run_s * (1.0 + compile_s / DOUBLING_S)


def _rows(features: Sequence[Mapping[str, float]]) -> Vector:
    return np.log1p(np.array([[item[name] for name in _NAMES] for item in features]))
