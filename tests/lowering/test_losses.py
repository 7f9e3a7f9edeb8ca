"""Rules of losses, computed by both code generators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hub.errors import InputRefused
from hub.plugin.backend import CompileSettings
from hub.testing.conformance.cases import Case, joined, joined_answer
from hub.testing.conformance.judge import value_problem
from hub.testing.operators import SAMPLES
from hub.testing.single import whole_cluster
from hub.toolkit.rules.losses import RULES
from plugin_disc.backend import create as create_disc
from plugin_triton.backend import create as create_triton
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import Wrapped

BACKENDS: dict[str, Any] = {"disc": create_disc(), "triton": create_triton(Settings(interpret=True))}
ONE = CompileSettings(threads=1)


@pytest.mark.parametrize("name", BACKENDS)
def test_samples_of_losses(name: str) -> None:
    """Each is taken, and as exact as eager: classes that are ignored, weights, shares, halves, every reduction."""
    for operator in RULES:
        cases = [Case(operator, sample) for sample in SAMPLES[operator]]
        cluster, inputs = joined(cases)
        refusals = [BACKENDS[name].supports(node).reason for node in cluster.nodes if "getitem" not in str(node.target)]
        assert [reason for reason in refusals if reason] == []
        found = BACKENDS[name].compile(cluster, ONE)(*inputs)
        assert value_problem(found, *joined_answer(cases)) == "", operator


@pytest.mark.parametrize("name", BACKENDS)
def test_a_class_that_is_not_there_is_eagers_to_refuse(name: str) -> None:
    """Nothing is read outside of the classes."""
    source, target = torch.randn(4, 5), torch.tensor([0, 4, -100, 2])
    cluster, inputs = whole_cluster(Wrapped(F.cross_entropy), (source, target))
    executable = BACKENDS[name].compile(cluster, ONE)
    torch.testing.assert_close(executable(*inputs)[0], F.cross_entropy(source, target))
    wrong = [torch.full_like(value, 5) if value.dtype is torch.int64 else value for value in inputs]
    with pytest.raises(InputRefused, match="out of range"):
        executable(*wrong)


@pytest.mark.parametrize("name", BACKENDS)
def test_halves_overflow_as_in_eager(name: str) -> None:
    """Squares beyond float16 are infinite before they are averaged."""
    source, target = torch.tensor([300.0, 0.0, 0.0], dtype=torch.float16), torch.zeros(3, dtype=torch.float16)
    cluster, inputs = whole_cluster(Wrapped(F.mse_loss), (source, target))
    (found,) = BACKENDS[name].compile(cluster, ONE)(*inputs)
    assert found.item() == F.mse_loss(source, target).item() == float("inf")
