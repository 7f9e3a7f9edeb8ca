"""Prices learned from measurements of other clusters: a calibrated roofline, and a Gaussian process over what it misses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # pyright: ignore[reportUnknownVariableType] - untyped

from hub.cost import Cost
from hub.pricing.features import VERSION
from hub.pricing.timing import median

LEAST_SAMPLES = 8
MOST_SAMPLES = 300
"""Fitting takes cubic time: one to six seconds for 250 samples, by how busy the machine is."""
FOLDS = 5
REACH = 1.96
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a cluster: what it looks like (`features_of`), and what a warm call took."""

    features: Mapping[str, float]
    run_s: float


@dataclass(frozen=True, slots=True)
class _Term:
    """One part of the calibrated roofline: a sum of features, at so many seconds a unit before anything is known."""

    names: tuple[str, ...]
    unit_s: float
    side: str = ""
    """"compute" or "memory": of the two sides only the slower counts. Empty: comes on top."""
    speedup: float = 50.0
    """How many times as fast an accelerator starts."""


_TERMS = (
    _Term((), 15e-6, speedup=1.0),  # entering and leaving
    _Term(("nodes",), 0.5e-6, speedup=1.0),
    _Term(("flops_product", "flops_convolution", "flops_attention", "flops_recurrent"), 1 / 100e9, "compute", 200.0),
    _Term(("flops_depthwise",), 1 / 80e9, "compute"),
    _Term(("read_bytes", "written_bytes"), 1 / 30e9, "memory"),
    _Term(("weight_bytes",), 1 / 40e9, "memory"),
    _Term(("inner_bytes",), 1 / 60e9),
    _Term(("elements_transcendental",), 0.7e-9),
    _Term(("elements_normalisation", "elements_reduction"), 0.3e-9),
    _Term(("elements_movement", "elements_gather"), 0.15e-9),
)
"""Typical of one core with AVX-512 (measured on a shared Xeon, 2026-11): a start, from which measurements pull each away.
An accelerator's are those of NVIDIA's A100 40 GB (datasheet): 19.5 Tflop/s in float32, 1555 GB/s."""
_CPU = 0.0
"""The feature `device` of what the CPU computes."""
_PRIOR = 0.5
"""Standard deviation of the logarithm of a term's rate, before anything is measured: a factor of 2.7 either way, 95 %."""
_NOISE = 0.3
"""Standard deviation of log(run_s) around a calibrated roofline, for weighing measurements against `_PRIOR`."""
_AMPLITUDES, _LENGTHS, _NOISES = (0.1, 0.3, 1.0), (2.0, 4.0, 8.0, 16.0), (0.01, 0.05, 0.2)
"""Variances and lengths (in standard deviations of the features) that the process may choose from. The least amplitude
keeps the 95 % interval far from all samples at a factor of 1.9 or more, however well the samples agree."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """The calibrated roofline: logarithms of seconds a unit, by term, and how uncertain they are."""

    logs: Vector
    covariance: Vector

    @classmethod
    def fit(cls, amounts: Vector, log_run_s: Vector, *, is_accelerated: bool) -> _Rates:
        """Gives the most likely rates; a few outliers count little. `amounts` are [samples, terms]."""
        start = np.log([term.unit_s / (term.speedup if is_accelerated else 1.0) for term in _TERMS])

        def residuals(logs: Vector) -> Vector:
            errors = (np.log(_seconds(amounts, logs).sum(axis=1)) - log_run_s) / _NOISE
            return np.concatenate([errors, (logs - start) / _PRIOR])

        logs = cast("Vector", cast("Any", least_squares(residuals, start, loss="soft_l1")).x)
        shares = _shares(amounts, logs)
        precision = shares.T @ shares / _NOISE**2 + np.eye(len(logs)) / _PRIOR**2
        return cls(logs, np.asarray(np.linalg.inv(precision), dtype=np.float64))

    def log_run_s(self, amounts: Vector) -> Vector:
        return np.log(_seconds(amounts, self.logs).sum(axis=1))

    def variance(self, amounts: Vector) -> Vector:
        """Variance of log(run_s) from not knowing the rates: large where a term counts that no sample had."""
        shares = _shares(amounts, self.logs)
        return np.einsum("ij,jk,ik->i", shares, self.covariance, shares)


@dataclass(frozen=True, slots=True)
class _Model:
    """Everything fitted: gives mean and standard deviation of log(run_s)."""

    names: tuple[str, ...]
    rates: _Rates
    scaler: Any
    process: Any

    def predict(self, features: Sequence[Mapping[str, float]]) -> tuple[Vector, Vector]:
        amounts = _amounts(features)
        found: Any = self.process.predict(self.scaler.transform(_logs(features, self.names)), return_std=True)
        mean: Vector = self.rates.log_run_s(amounts) + found[0]
        deviation: Vector = np.sqrt(found[1] ** 2 + self.rates.variance(amounts))
        return mean, deviation


@dataclass(frozen=True, slots=True)
class LearnedPrices:
    """Prices for one backend, machine, kind of device and number of threads, each with how sure it is.

    Never changed once fitted.
    """

    n_samples: int
    device: float
    """The feature `device` of all samples."""
    typical_error: float
    """Median of |log(predicted / measured)| over samples that the model had not seen."""
    _widening: float
    """What standard deviations are multiplied with, so that 95 % of unseen samples fall into their intervals."""
    _model: _Model

    @classmethod
    def fit(cls, samples: Sequence[Sample], device: float = _CPU) -> LearnedPrices | None:
        """Learns from the newest samples; they come oldest first.

        Those of another feature version are left out, and those of other kinds of devices: an accelerator says nothing of
        what the CPU takes.

        Gives None for fewer than `LEAST_SAMPLES`, and where it scores no better on samples it has not seen than a roofline
        with one constant efficiency. Folds are runs of neighbours in time, which often come from the same model: errors
        are then those on other models. Equal samples give equal prices.
        """
        alike = {"version": VERSION, "device": device}.items()
        usable = [sample for sample in samples if alike <= sample.features.items() and sample.run_s > 0.0]
        usable = usable[-MOST_SAMPLES:]
        if len(usable) < LEAST_SAMPLES:
            return None
        start = _Start.of(usable)
        kernel = _best_kernel(start)
        trials = _trials(usable, kernel)
        widening = max(1.0, float(np.quantile([trial.error / trial.deviation for trial in trials], 0.95)) / REACH)
        if not _beats_roofline(trials, widening):
            return None
        return cls(len(usable), device, median([trial.error for trial in trials]), widening, start.model(kernel))

    def price(self, features: Mapping[str, float]) -> Cost:
        """Predicts one warm call, as median and half the width of the 95 % interval; far from all samples it is wide.

        Raises ValueError for features of another version, or kind of device.
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


def _amounts(features: Iterable[Mapping[str, float]]) -> Vector:
    """Gives [samples, terms]: how much of each term a sample has."""
    return np.array(
        [[sum(item[name] for name in term.names) if term.names else 1.0 for term in _TERMS] for item in features]
    )


def _seconds(amounts: Vector, logs: Vector) -> Vector:
    """Gives [samples, terms]: seconds that each term takes; 0 for those of the faster side."""
    seconds: Vector = amounts * np.exp(logs)
    compute, memory = (np.array([term.side == side for term in _TERMS]) for side in ("compute", "memory"))
    is_bound = seconds[:, compute].sum(axis=1) >= seconds[:, memory].sum(axis=1)
    hidden = np.where(is_bound[:, None], memory, compute)
    return np.where(hidden, 0.0, seconds)


def _shares(amounts: Vector, logs: Vector) -> Vector:
    """Gives [samples, terms]: the share of its seconds that each term takes, the gradient of log(run_s) by log(rate)."""
    seconds = _seconds(amounts, logs)
    return seconds / seconds.sum(axis=1, keepdims=True)


def _logs(features: Iterable[Mapping[str, float]], names: Sequence[str]) -> Vector:
    return np.log1p(np.array([[item[name] for name in names] for item in features]))


def _log_run_s(samples: Sequence[Sample]) -> Vector:
    return np.log([sample.run_s for sample in samples])


@dataclass(frozen=True, slots=True)
class _Start:
    """What is known before a kernel is chosen: the calibrated roofline, scaled features, and what the roofline misses."""

    names: tuple[str, ...]
    rates: _Rates
    scaler: Any
    positions: Any
    residuals: Vector

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Start:
        from sklearn.preprocessing import StandardScaler  # a second to import, and only fitting needs it

        features = [sample.features for sample in samples]
        names = tuple(name for name in sorted(features[0]) if name not in ("version", "device"))
        amounts, log_run_s = _amounts(features), _log_run_s(samples)
        rates = _Rates.fit(amounts, log_run_s, is_accelerated=features[0]["device"] != _CPU)
        scaler: Any = StandardScaler()
        positions = scaler.fit_transform(_logs(features, names))
        return cls(names, rates, scaler, positions, log_run_s - rates.log_run_s(amounts))

    def process(self, kernel: Any) -> Any:
        """Gives the Gaussian process with this kernel, as it is, over the residuals."""
        from sklearn.gaussian_process import GaussianProcessRegressor  # as above

        regressor: Any = GaussianProcessRegressor
        return regressor(kernel, optimizer=None, random_state=0).fit(self.positions, self.residuals)

    def model(self, kernel: Any) -> _Model:
        return _Model(self.names, self.rates, self.scaler, self.process(kernel))


def _best_kernel(start: _Start) -> Any:
    """Gives the kernel of largest marginal likelihood from a grid, which unlike a search has no start to depend on."""
    return max(_kernels(), key=lambda kernel: start.process(kernel).log_marginal_likelihood_value_)


def _kernels() -> Iterator[Any]:
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel  # as above

    for amplitude, length, noise in itertools.product(_AMPLITUDES, _LENGTHS, _NOISES):
        kernel: Any = ConstantKernel(amplitude) * RBF(length) + WhiteKernel(noise)
        yield kernel


@dataclass(frozen=True, slots=True)
class _Trial:
    """How well one unseen sample was predicted."""

    error: float
    """|log(predicted / measured)|."""
    deviation: float
    """The standard deviation that the model gave with its prediction."""
    roofline_error: float
    """What a roofline with one efficiency for everything misses by."""


def _beats_roofline(trials: Sequence[_Trial], widening: float) -> bool:
    """Compares logarithmic scores, which judge a prediction and how sure it claims to be in one number.

    A roofline claims the same spread everywhere, its own root mean square error: the best that it can claim.
    Source: Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007, section 4.
    """
    roofline_variance = sum(trial.roofline_error**2 for trial in trials) / len(trials)
    learned = sum(_log_score(trial.error, widening * trial.deviation) for trial in trials)
    return learned > sum(_log_score(trial.roofline_error, math.sqrt(roofline_variance)) for trial in trials)


def _log_score(error: float, deviation: float) -> float:
    """The logarithm of a normal density, without its constant; the larger, the better."""
    return -math.log(max(deviation, 1e-9)) - (error / max(deviation, 1e-9)) ** 2 / 2


def _trials(samples: Sequence[Sample], kernel: Any) -> tuple[_Trial, ...]:
    """Predicts each sample from the other folds."""
    edges = [len(samples) * number // FOLDS for number in range(FOLDS + 1)]
    found: list[_Trial] = []
    for start, end in itertools.pairwise(edges):
        found += _fold([*samples[:start], *samples[end:]], samples[start:end], kernel)
    return tuple(found)


def _fold(seen: Sequence[Sample], unseen: Sequence[Sample], kernel: Any) -> Iterator[_Trial]:
    mean, deviation = _Start.of(seen).model(kernel).predict([sample.features for sample in unseen])
    log_efficiency = float(np.median(_log_run_s(seen) - _log_roofline_s(seen)))
    roofline = _log_roofline_s(unseen) + log_efficiency
    for number, measured in enumerate(_log_run_s(unseen)):
        error = abs(float(mean[number] - measured))
        yield _Trial(error, float(deviation[number]), abs(float(roofline[number] - measured)))


def _log_roofline_s(samples: Sequence[Sample]) -> Vector:
    """The logarithm of max(flops / peak, bytes / bandwidth) and a call, for the typical machine of `_TERMS`."""
    return np.log([_roofline_s(sample.features) for sample in samples])


def _roofline_s(features: Mapping[str, float]) -> float:
    moved = features["read_bytes"] + features["written_bytes"] + features["weight_bytes"]
    return max(features["flops"] / 80e9, moved / 15e9) + 15e-6
