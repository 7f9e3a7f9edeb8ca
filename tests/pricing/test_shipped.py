"""The prices that the hub ships: what they hold, and what is made of them on another machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from hub.partition.group import EAGER
from hub.pricing.compile_times import Compiled, CompileTimes
from hub.pricing.features import EAGER_S, NAMES, VERSION, features_of
from hub.pricing.learned import LearnedPrices
from hub.pricing.roofline import Peaks
from hub.pricing.shipped import TABLE, read_table, shipped_table
from hub.testing.single import capture

OWN = ("disc", "inductor", "iree", "onnxruntime", "openvino", "tvm", "xla")


def test_the_table_is_of_the_features_of_today() -> None:
    """A change of features has the table measured again."""
    assert json.loads(TABLE.read_text())["features_version"] == VERSION
    captured = capture(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    assert features_of(captured.graph.nodes).keys() == set(NAMES)
    known = {*NAMES, EAGER_S}
    assert all(row.features.keys() <= known for row in shipped_table().rows)


@pytest.mark.parametrize("backend", OWN)
def test_every_backend_for_the_cpu_has_prices(backend: str) -> None:
    """Of each, enough models to learn from: prices, and how long compiling takes."""
    rows = [row for row in shipped_table().rows if row.backend == backend]
    assert len({row.model.partition("@")[0] for row in rows}) >= 10
    assert all(row.features[EAGER_S] > 0 for row in rows)
    assert LearnedPrices.fit(shipped_table().samples(backend, Peaks(1e11, 1e10))) is not None
    assert shipped_table().starts_s[backend] > 0


def test_eager_is_scaled_to_the_machine() -> None:
    """On a machine of half the peaks, large operators take about twice as long, and ratios to eager stay."""
    table = shipped_table()
    half = Peaks(table.peaks.flops_s / 2, table.peaks.bytes_s / 2)
    here, there = table.samples(EAGER, half), table.samples(EAGER, table.peaks)
    ratios = [one.run_s / other.run_s for one, other in zip(here, there, strict=True) if other.run_s > 1e-3]
    assert ratios
    assert all(1.5 < ratio <= 2.0 for ratio in ratios)
    assert table.samples("openvino", half) == table.samples("openvino", table.peaks)


def test_a_table_of_other_features_teaches_nothing(tmp_path: Path) -> None:
    """Rows that were taken by other rules are left out."""
    said = json.loads(TABLE.read_text())
    (tmp_path / "old.json").write_text(json.dumps({**said, "features_version": 0}))
    assert read_table(tmp_path / "old.json").rows == ()


def test_compile_times_of_models_that_it_never_saw() -> None:
    """Expected compile times are within a factor of three of what was measured, in the median; none beyond reason."""
    rows = [row for row in shipped_table().rows if row.backend == "inductor" and row.compile_s]
    for model in ("bert", "resnet50", "vit"):
        held = [row for row in rows if row.model.partition("@")[0] == model]
        rest = [row for row in rows if row not in held]
        times = CompileTimes.fit([Compiled(row.features, row.compile_s) for row in rest])
        assert times is not None
        errors = sorted(abs(math.log(times.seconds(row.features) / row.compile_s)) for row in held)
        assert errors[len(errors) // 2] < math.log(3.0)
        huge = {name: 1e6 * value if name != "version" else value for name, value in held[0].features.items()}
        assert times.seconds(huge) <= 2 * max(row.compile_s for row in rest) * 1.001


def test_nothing_compiled_teaches_nothing() -> None:
    """Without samples, or with those of other features alone, there is no expectation."""
    assert CompileTimes.fit([]) is None
    assert CompileTimes.fit([Compiled({"version": 0.0}, 1.0)]) is None
