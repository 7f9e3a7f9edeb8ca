"""Hard values: what verification tries on whole clusters is tried on each operator of a table too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hub.errors import InputRefused
from hub.testing.conformance.hard import HARD, hard_problems
from hub.testing.conformance.target import load_target
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import call, f, i64


def problems(name: str, sample: Any, executable: Any) -> tuple[str, ...]:
    """Return the problems of an executable that stands for a sample call's."""
    cluster, inputs = case_cluster(name, sample)
    return hard_problems(load_target("onnxruntime", 60.0), cluster, executable, inputs)


def _clips(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.where(x > 0, x, 0.0)]


def _in_float(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [torch.maximum(x.float(), y.float()).long()]


def test_a_kernel_that_loses_nan_is_found() -> None:
    """An executable that is right on ordinary values and makes NaN 0 is reported, by the kind of value."""
    (problem,) = problems("aten.relu.default", call(f(3, 4)), _clips)
    assert "(NaN)" in problem


def test_integers_computed_in_float_are_found() -> None:
    """Extreme integers show that an executable computes them in float32."""
    found = problems("aten.maximum.default", call(i64(3, 4), i64(3, 4)), _in_float)
    assert any("extreme integers" in problem for problem in found)


def test_an_executable_that_refuses_hard_values_keeps_its_promise() -> None:
    """Values that are refused run in eager, so nothing is wrong."""

    def careful(x: torch.Tensor) -> list[torch.Tensor]:
        if not bool(x.isfinite().all()):
            raise InputRefused("not finite")
        return _clips(x)

    assert problems("aten.relu.default", call(f(3, 4)), careful) == ()


@pytest.mark.parametrize("name", ["NaN", "infinities", "negative zeros", "all equal", "extreme integers", "denormal"])
def test_the_kinds_are_those_of_verification(name: str) -> None:
    """Each kind of hard value is among those that are tried."""
    assert name in [kind.name for kind in HARD]
