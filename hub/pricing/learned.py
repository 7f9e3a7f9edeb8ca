"""Costs learned from measurements of other clusters: ratios to eager's time, by a Gaussian process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from hub.plugin.cost import Cost
from hub.pricing.features import EAGER_S, VERSION

MIN_SAMPLES = 8
MAX_SAMPLES = 300
"""Maximum number of samples; fitting takes cubic time."""
FOLDS = 5
REACH = 1.96
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""
CPU = 0.0
"""Value of the feature `device` for the CPU."""

Vector = NDArray[np.float64]
_LINALG: Any = linalg
"""Untyped alias: SciPy ships no types."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a cluster: its features (`features_of`), and the time of a warm call."""

    features: Mapping[str, float]
    """Features, with `EAGER_S`, the seconds that its operators take in eager, if known."""
    run_s: float
    doubt: float = 0.0
    """Variance of log(run_s) beyond that of a measurement on this machine."""


_AMPLITUDES, _LENGTHS, _NOISES = (0.1, 0.3, 1.0), (2.0, 4.0, 8.0, 16.0), (0.01, 0.05, 0.2)
"""Candidate variances and lengths (in standard deviations of the features) of the Gaussian process.

The least amplitude keeps the 95 % interval far from all samples at a factor of 1.9 or more, however well they agree.
"""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Squared exponential kernel with noise: the covariance of two samples by their distance."""

    amplitude: float
    length: float
    noise: float

    def __call__(self, squared_distances: Vector) -> Vector:
        return self.amplitude * np.exp(squared_distances / (-2.0 * self.length**2))


@dataclass(frozen=True, slots=True)
class _Process:
    """Gaussian process of mean zero, conditioned on samples.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1.
    """

    kernel: _Kernel
    positions: Vector
    factor: Any
    """Cholesky factor of the samples' covariance."""
    weights: Vector
    """Inverse of the covariance, times the samples' values."""
    log_likelihood: float

    @classmethod
    def fit(cls, kernel: _Kernel, positions: Vector, values: Vector, doubts: Vector, squared: Vector) -> _Process:
        """Fit samples at some positions; `squared` are their squared distances."""
        covariance = kernel(squared)
        covariance[np.diag_indices_from(covariance)] += kernel.noise + doubts
        factor: Any = _LINALG.cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
        weights: Vector = _LINALG.cho_solve(factor, values, check_finite=False)
        determinant = 2.0 * float(np.log(np.diag(factor[0])).sum())
        likelihood = -0.5 * (float(values @ weights) + determinant + len(values) * math.log(2.0 * math.pi))
        return cls(kernel, positions, factor, weights, likelihood)

    def predict(self, positions: Vector) -> tuple[Vector, Vector]:
        """Return mean and variance at some positions, [points, features], noise included."""
        near = self.kernel(_squared_distances(positions, self.positions))
        known: Vector = np.einsum("ij,ji->i", near, _LINALG.cho_solve(self.factor, near.T, check_finite=False))
        variance = np.maximum(self.kernel.amplitude - known, 0.0) + self.kernel.noise
        return near @ self.weights, variance


def _squared_distances(ones: Vector, others: Vector) -> Vector:
    squares = (ones**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :] - 2.0 * ones @ others.T
    return np.maximum(squares, 0.0)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Standardization of features: mean 0 and deviation 1; constant features are only centered."""

    mean: Vector
    deviation: Vector

    @classmethod
    def of(cls, values: Vector) -> _Scale:
        deviation = values.std(axis=0)
        return cls(values.mean(axis=0), np.where(deviation > 0.0, deviation, 1.0))

    def __call__(self, values: Vector) -> Vector:
        return (values - self.mean) / self.deviation


@dataclass(frozen=True, slots=True)
class _Model:
    """The fitted model, which predicts mean and standard deviation of log(run_s)."""

    names: tuple[str, ...]
    log_ratio: float
    """Logarithm of the typical ratio of the time to its basis (`_log_basis_s`)."""
    scale: _Scale
    process: _Process

    def predict(self, features: Sequence[Mapping[str, float]]) -> tuple[Vector, Vector]:
        mean, variance = self.process.predict(self.scale(_logs(features, self.names)))
        return _log_basis_s(features) + self.log_ratio + mean, np.sqrt(variance)


@dataclass(frozen=True, slots=True)
class _Constant:
    """Fallback model if features teach nothing: one ratio for everything."""

    log_ratio: float
    deviation: float

    def predict(self, features: Sequence[Mapping[str, float]]) -> tuple[Vector, Vector]:
        return _log_basis_s(features) + self.log_ratio, np.full(len(features), self.deviation)


def teaches(features: Mapping[str, float], device: float) -> bool:
    """Return whether a measurement has features of this version, on this kind of device."""
    return features.get("version") == VERSION and features.get("device") == device


@dataclass(frozen=True, slots=True)
class LearnedPrices:
    """Cost model for one backend, machine, kind of device and number of threads; each estimate has its uncertainty.

    Immutable once fitted.
    """

    n_samples: int
    device: float
    """Value of the feature `device` in all samples."""
    typical_error: float
    """Median of |log(predicted / measured)| over samples that the model had not seen."""
    _widening: float
    """Factor for standard deviations such that 95 % of unseen samples fall into their intervals."""
    _model: _Model | _Constant

    @classmethod
    def fit(cls, samples: Sequence[Sample], device: float = CPU) -> LearnedPrices | None:
        """Fit a model to the newest samples; `samples` are ordered from oldest to newest.

        Samples of other feature versions or kinds of devices are left out: an accelerator says nothing about CPU times.

        Return None for fewer than `MIN_SAMPLES`. If features score no better on unseen samples than one ratio for
        everything, that ratio is the model. Folds are runs of samples adjacent in time, which often come from the same
        model, so errors are those on other models. Equal samples give equal costs.
        """
        usable = [sample for sample in samples if teaches(sample.features, device) and sample.run_s > 0.0][-MAX_SAMPLES:]
        if len(usable) < MIN_SAMPLES:
            return None
        start = _Start.of(usable)
        kernel = _best_kernel(start)
        trials = _trials(usable, kernel)
        widening = max(1.0, float(np.quantile([trial.error / trial.deviation for trial in trials], 0.95)) / REACH)
        if not _beats_constant(trials, widening):
            return cls(len(usable), device, median([trial.plain_error for trial in trials]), 1.0, _constant(start, trials))
        return cls(len(usable), device, median([trial.error for trial in trials]), widening, start.model(kernel))

    def price(self, features: Mapping[str, float]) -> Cost:
        """Predict one warm call, as median and half the width of the 95 % interval; far from all samples it is wide.

        Raise ValueError for features of another version or kind of device.
        """
        if features.get("version") != VERSION:
            raise ValueError(f"features of version {features.get('version')}, learned from version {VERSION}")
        if features["device"] != self.device:
            raise ValueError(f"features of device {features['device']:.0f}, learned from device {self.device:.0f}")
        mean, deviation = self._model.predict((features,))
        run_s = math.exp(float(mean[0]))
        spread_s = run_s * math.sinh(REACH * self._widening * float(deviation[0]))
        moved = int(features["read_bytes"] + features["written_bytes"])
        error = math.expm1(self.typical_error)
        detail = f"learned from {self.n_samples} measurements, typical error {error:.0%}".replace("%", " %")
        return Cost(run_s, spread_s, moved, "learned", detail)


def _log_basis_s(features: Sequence[Mapping[str, float]]) -> Vector:
    """Return the logarithm of the reference time: eager's, or if unknown the roofline of a typical machine.

    Clusters slow in eager are mostly slow on every backend.
    """
    return np.log([item.get(EAGER_S) or _roofline_s(item) for item in features])


def _roofline_s(features: Mapping[str, float]) -> float:
    """Return max(flops / peak, bytes / bandwidth) plus a call, for one core with AVX-512 (a shared Xeon, 2026-11)."""
    moved = features["read_bytes"] + features["written_bytes"] + features["weight_bytes"]
    return max(features["flops"] / 80e9, moved / 15e9) + 15e-6


def _logs(features: Iterable[Mapping[str, float]], names: Sequence[str]) -> Vector:
    """Return logarithms of features, [samples, features], with eager's time in microseconds last."""
    rows = ([*(item[name] for name in names), 1e6 * item.get(EAGER_S, 0.0)] for item in features)
    return np.log1p(np.array(list(rows)))


def _log_run_s(samples: Sequence[Sample]) -> Vector:
    return np.log([sample.run_s for sample in samples])


@dataclass(frozen=True, slots=True)
class _Start:
    """State before a kernel is chosen: the typical ratio, scaled features, and the residuals of that ratio."""

    names: tuple[str, ...]
    log_ratio: float
    scale: _Scale
    positions: Vector
    residuals: Vector
    doubts: Vector
    squared_distances: Vector

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Start:
        features = [sample.features for sample in samples]
        names = tuple(name for name in sorted(features[0]) if name not in ("version", "device", EAGER_S))
        logs = _logs(features, names)
        scale = _Scale.of(logs)
        positions = scale(logs)
        log_ratios = _log_run_s(samples) - _log_basis_s(features)
        log_ratio = float(np.median(log_ratios))
        doubts = np.array([sample.doubt for sample in samples])
        distances = _squared_distances(positions, positions)
        return cls(names, log_ratio, scale, positions, log_ratios - log_ratio, doubts, distances)

    def process(self, kernel: _Kernel) -> _Process:
        """Return the Gaussian process with this kernel over the residuals."""
        return _Process.fit(kernel, self.positions, self.residuals, self.doubts, self.squared_distances)

    def model(self, kernel: _Kernel) -> _Model:
        return _Model(self.names, self.log_ratio, self.scale, self.process(kernel))


def _best_kernel(start: _Start) -> _Kernel:
    """Return the kernel with the largest marginal likelihood on a grid, which, unlike a search, needs no start."""
    kernels = itertools.starmap(_Kernel, itertools.product(_AMPLITUDES, _LENGTHS, _NOISES))
    return max(kernels, key=lambda kernel: start.process(kernel).log_likelihood)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Prediction error for one unseen sample."""

    error: float
    """|log(predicted / measured)|."""
    deviation: float
    """Standard deviation that the model predicted."""
    plain_error: float
    """Error of one ratio for everything."""


def _constant(start: _Start, trials: Sequence[_Trial]) -> _Constant:
    variance = sum(trial.plain_error**2 for trial in trials) / len(trials)
    return _Constant(start.log_ratio, math.sqrt(variance))


def _beats_constant(trials: Sequence[_Trial], widening: float) -> bool:
    """Return whether the model has the better logarithmic score, which rates predictions and their claimed uncertainty.

    A constant ratio claims the same spread everywhere, its own root mean square error: the best that it can claim.
    Source: Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007, section 4.
    """
    variance = sum(trial.plain_error**2 for trial in trials) / len(trials)
    learned = sum(_log_score(trial.error, widening * trial.deviation) for trial in trials)
    return learned > sum(_log_score(trial.plain_error, math.sqrt(variance)) for trial in trials)


def _log_score(error: float, deviation: float) -> float:
    """Return the logarithm of a normal density, without its constant; larger is better."""
    return -math.log(max(deviation, 1e-9)) - (error / max(deviation, 1e-9)) ** 2 / 2


def _trials(samples: Sequence[Sample], kernel: _Kernel) -> tuple[_Trial, ...]:
    """Predict each sample from the other folds."""
    edges = [len(samples) * number // FOLDS for number in range(FOLDS + 1)]
    found: list[_Trial] = []
    for start, end in itertools.pairwise(edges):
        found += _fold([*samples[:start], *samples[end:]], samples[start:end], kernel)
    return tuple(found)


def _fold(seen: Sequence[Sample], unseen: Sequence[Sample], kernel: _Kernel) -> Iterator[_Trial]:
    start = _Start.of(seen)
    features = [sample.features for sample in unseen]
    mean, deviation = start.model(kernel).predict(features)
    plain = _log_basis_s(features) + start.log_ratio
    for number, measured in enumerate(_log_run_s(unseen)):
        error = abs(float(mean[number] - measured))
        yield _Trial(error, float(deviation[number]), abs(float(plain[number] - measured)))
