"""Prices learned from measurements; the samples are those that the hub ships."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from hub.pricing.features import EAGER_S
from hub.pricing.learned import MIN_SAMPLES, LearnedPrices, Sample
from hub.pricing.shipped import shipped_table


def samples_of(backend: str, *, without: Sequence[str] = ()) -> list[Sample]:
    rows = (row for row in shipped_table().rows if row.backend == backend)
    return [Sample(row.features, row.run_s) for row in rows if row.model.partition("@")[0] not in without]


def fitted(samples: Sequence[Sample]) -> LearnedPrices:
    prices = LearnedPrices.fit(samples)
    assert prices is not None
    return prices


@pytest.fixture(scope="module")
def prices() -> LearnedPrices:
    return fitted(samples_of("onnxruntime"))


def width(prices: LearnedPrices, features: dict[str, float]) -> float:
    """Return half of the 95 % interval, relative to the price."""
    cost = prices.price(features)
    return cost.spread_s / cost.run_s


def typical() -> dict[str, float]:
    return dict(samples_of("onnxruntime")[0].features)


def test_a_price_says_where_it_comes_from(prices: LearnedPrices) -> None:
    """Source, number of measurements and typical error are given with every price."""
    cost = prices.price(typical())
    assert cost.source == "learned"
    assert cost.detail == (
        f"learned from {len(samples_of('onnxruntime'))} measurements, "
        f"typical error {math.expm1(prices.typical_error):.0%}".replace("%", " %")
    )
    assert cost.transfer_bytes == typical()["read_bytes"] + typical()["written_bytes"]


def test_too_few_samples_teach_nothing() -> None:
    """With fewer samples than the least there is no model, and the caller keeps its roofline."""
    assert LearnedPrices.fit(samples_of("onnxruntime")[: MIN_SAMPLES - 1]) is None
    assert LearnedPrices.fit([]) is None


def test_samples_of_another_version_teach_nothing() -> None:
    """Features that were taken by other rules are left out, and cannot be priced."""
    old = [Sample({**sample.features, "version": 0.0}, sample.run_s) for sample in samples_of("onnxruntime")]
    assert LearnedPrices.fit(old) is None
    with pytest.raises(ValueError, match="version"):
        fitted(samples_of("onnxruntime")).price(old[0].features)


def test_an_accelerator_teaches_nothing_of_the_cpu() -> None:
    """Samples of both are kept side by side; each kind of device has a model, and prices only its own."""
    of_cpu = samples_of("onnxruntime")
    of_cuda = [Sample({**sample.features, "device": 1.0}, sample.run_s / 100) for sample in of_cpu]
    mixed = [sample for pair in zip(of_cpu, of_cuda, strict=True) for sample in pair]
    cuda = LearnedPrices.fit(mixed, 1.0)
    assert LearnedPrices.fit(of_cuda) is None
    assert fitted(mixed).price(typical()) == fitted(of_cpu).price(typical())
    assert cuda is not None
    assert cuda.n_samples == len(of_cuda)
    assert cuda.price({**typical(), "device": 1.0}).run_s < fitted(of_cpu).price(typical()).run_s / 20
    with pytest.raises(ValueError, match="device"):
        cuda.price(typical())


def test_measurements_that_follow_no_rule_make_prices_unsure() -> None:
    """Where a backend's times have nothing to do with anything that is known, no price claims to be sure."""
    draw = random.Random(0)
    noisy = [
        Sample(one.features, 3 * one.features[EAGER_S] * math.exp(draw.gauss(0, 1.5))) for one in samples_of("openvino")
    ]
    prices = fitted(noisy)
    unsure = [one for one in noisy if width(prices, dict(one.features)) > 1.5]
    assert len(unsure) >= 0.9 * len(noisy)


def test_what_is_slow_in_eager_is_expected_to_be_slow(prices: LearnedPrices) -> None:
    """A machine on which all of eager takes twice as long is expected to take about twice as long with a backend, too."""
    slow = {**typical(), EAGER_S: 2 * typical()[EAGER_S]}
    assert 1.4 < prices.price(slow).run_s / prices.price(typical()).run_s < 2.6


def test_doubtful_samples_count_less() -> None:
    """Measurements of this machine take precedence over those of another one."""
    samples = samples_of("onnxruntime")
    elsewhere = [Sample(one.features, 3 * one.run_s, doubt=1.0) for one in samples]
    both = fitted([*elsewhere, *samples][-290:])
    alone = fitted(samples)
    error = [abs(math.log(both.price(one.features).run_s / alone.price(one.features).run_s)) for one in samples]
    assert sorted(error)[len(error) // 2] < math.log(2.0)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_intervals_hold_what_is_measured_on_other_models(backend: str) -> None:
    """Of clusters of models that it never saw, at least 80 % fall into the 95 % interval (the machine was busy)."""
    unseen = ("vit", "resnet50", "llama", "convnext")
    prices = fitted(samples_of(backend, without=unseen))
    held = [sample for sample in samples_of(backend) if sample not in samples_of(backend, without=unseen)]
    inside = [
        abs(math.log(price.run_s / sample.run_s)) <= math.asinh(price.spread_s / price.run_s)
        for sample in held
        for price in (prices.price(sample.features),)
    ]
    assert len(held) >= 15
    assert sum(inside) >= 0.8 * len(held)


def test_far_from_all_samples_a_price_is_unsure(prices: LearnedPrices) -> None:
    """A cluster thousands of times larger than any measured has a wider interval than one like those measured."""
    far = {name: value if name == "version" else value * 3000 for name, value in typical().items()}
    assert width(prices, far) > 1.5 * width(prices, typical())
    assert width(prices, far) > 1.0


def test_an_operator_that_was_never_measured_makes_a_price_unsure() -> None:
    """Work of a kind that no sample had widens the interval."""
    samples = [sample for sample in samples_of("openvino") if not sample.features["count_depthwise"]]
    new = {**samples[0].features, "flops_depthwise": 1e10, "count_depthwise": 1.0}
    prices = fitted(samples)
    assert width(prices, new) > 1.3 * width(prices, dict(samples[0].features))


def test_twice_the_work_does_not_get_cheaper(prices: LearnedPrices) -> None:
    """Doubling the operations of a measured cluster, and eager's time, lowers its price by no more than 10 %."""
    for sample in samples_of("onnxruntime"):
        twice = {name: value * (2 if "flops" in name or name == EAGER_S else 1) for name, value in sample.features.items()}
        assert prices.price(twice).run_s >= 0.9 * prices.price(sample.features).run_s


def test_prices_of_anything_are_positive_numbers(prices: LearnedPrices) -> None:
    """No features, however odd, give a price that is negative or no number."""
    nothing = dict.fromkeys(typical(), 0.0) | {"version": typical()["version"]}
    for odd in (nothing, {**nothing, "flops": 1e18, "flops_product": 1e18}, {**nothing, "weight_bytes": 1e14}):
        cost = prices.price(odd)
        assert 0.0 < cost.run_s < math.inf
        assert 0.0 < cost.spread_s < math.inf


def test_equal_samples_give_equal_prices(prices: LearnedPrices) -> None:
    """Fitting again gives the very same price."""
    assert fitted(samples_of("onnxruntime")).price(typical()) == prices.price(typical())


def test_learning_is_imported_only_to_learn() -> None:
    """Importing the module does not import what is slow to import."""
    program = "import sys, hub.pricing.learned; print('scipy.optimize' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"
