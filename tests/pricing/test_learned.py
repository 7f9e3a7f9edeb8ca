"""Prices learned from measurements; the samples are real ones, see `provenance` in samples.json."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hub.pricing.features import features_of
from hub.pricing.learned import LEAST_SAMPLES, LearnedPrices, Sample
from hub.testing.single import capture

RECORDED: Any = json.loads((Path(__file__).parent / "samples.json").read_text())


def samples_of(backend: str, *, without: Sequence[str] = ()) -> list[Sample]:
    return [
        Sample(dict.fromkeys(RECORDED["names"], 0.0) | item["features"], item["run_s"][backend])
        for item in RECORDED["samples"]
        if backend in item["run_s"] and item["model"] not in without
    ]


def fitted(samples: Sequence[Sample]) -> LearnedPrices:
    prices = LearnedPrices.fit(samples)
    assert prices is not None
    return prices


@pytest.fixture(scope="module")
def prices() -> LearnedPrices:
    return fitted(samples_of("onnxruntime"))


def width(prices: LearnedPrices, features: dict[str, float]) -> float:
    """Half of the 95 % interval, relative to the price."""
    cost = prices.price(features)
    return cost.spread_s / cost.run_s


def typical() -> dict[str, float]:
    return dict(samples_of("onnxruntime")[0].features)


def test_the_recorded_features_are_those_of_today() -> None:
    """The recorded samples have the features that are taken now."""
    import torch

    captured = capture(torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    assert features_of(captured.graph.nodes).keys() == set(RECORDED["names"])


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
    assert LearnedPrices.fit(samples_of("onnxruntime")[: LEAST_SAMPLES - 1]) is None
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


def test_measurements_that_follow_no_rule_teach_nothing() -> None:
    """Where unseen samples are predicted no better than by a roofline, there is no model."""
    draw = random.Random(0)
    roofline = [
        Sample(sample.features, roofline_s(sample) * math.exp(draw.gauss(0, 1.5))) for sample in samples_of("openvino")
    ]
    assert LearnedPrices.fit(roofline) is None


def roofline_s(sample: Sample) -> float:
    moved = sum(sample.features[name] for name in ("read_bytes", "written_bytes", "weight_bytes"))
    return max(sample.features["flops"] / 80e9, moved / 15e9) + 15e-6


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


def test_prices_of_anything_are_positive_numbers(prices: LearnedPrices) -> None:
    """No features, however odd, give a price that is negative or no number."""
    nothing = dict.fromkeys(typical(), 0.0) | {"version": typical()["version"]}
    for odd in (nothing, {**nothing, "flops": 1e18, "flops_product": 1e18}, {**nothing, "weight_bytes": 1e14}):
        cost = prices.price(odd)
        assert 0.0 < cost.run_s < math.inf
        assert 0.0 < cost.spread_s < math.inf


def test_twice_the_work_does_not_get_cheaper(prices: LearnedPrices) -> None:
    """Doubling the operations of a measured cluster lowers its price by no more than 10 %."""
    for sample in samples_of("onnxruntime"):
        twice = {name: value * (2 if "flops" in name else 1) for name, value in sample.features.items()}
        assert prices.price(twice).run_s >= 0.9 * prices.price(sample.features).run_s


def test_equal_samples_give_equal_prices(prices: LearnedPrices) -> None:
    """Fitting again gives the very same price."""
    assert fitted(samples_of("onnxruntime")).price(typical()) == prices.price(typical())


def test_learning_is_imported_only_to_learn() -> None:
    """Importing the module does not import the library that fits."""
    program = "import sys, hub.pricing.learned; print('sklearn' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"
