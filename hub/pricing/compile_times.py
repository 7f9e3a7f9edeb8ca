"""How long a backend will compile a cluster, learned from what it compiled before: a ridge regression of logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hub.pricing.features import KINDS, VERSION

UNKNOWN_S = 5.0
"""Seconds for a backend of which nothing is known."""
_PULL = 1.0
"""How strongly few samples are pulled to the typical time."""
_NAMES = ("nodes", "weight_bytes", *(f"count_{kind}" for kind in KINDS))

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compilation: what the cluster looked like (`features_of`), and the seconds, verification included."""

    features: Mapping[str, float]
    compile_s: float


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """What one backend's compilations take on this machine."""

    mean: float
    center: Vector
    slopes: Vector
    max_log: float
    """Logarithm of twice the longest known: nothing is expected to take longer."""

    @classmethod
    def fit(cls, samples: Sequence[Compiled]) -> CompileTimes | None:
        """Return what the samples teach; None where there are none."""
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
        """Return how long a cluster of such features is expected to compile."""
        log = self.mean + float((_rows([features])[0] - self.center) @ self.slopes)
        return math.exp(min(log, self.max_log))


def _rows(features: Sequence[Mapping[str, float]]) -> Vector:
    return np.log1p(np.array([[item[name] for name in _NAMES] for item in features]))
