"""Rules of backward graphs, computed by both code generators."""

from __future__ import annotations

from typing import Any

import pytest

from hub.plugin.backend import CompileSettings
from hub.testing.operators import SAMPLES, case_cluster, check_close, expected, references
from hub.toolkit.rules.gradients import RULES
from plugin_disc.backend import create as create_disc
from plugin_triton.backend import create as create_triton
from plugin_triton.settings import Settings

BACKENDS = {"disc": create_disc(), "triton": create_triton(Settings(interpret=True))}
CASES = [(name, place) for name in RULES for place in range(len(SAMPLES[name]))]
REFUSED = {False: 1, True: 6}
"""A slice in steps; and, where sizes are symbols, attention whose head size or heads that share keys are."""


def executable_of(backend: Any, cluster: Any) -> Any:
    """Compile a cluster if the backend supports all its nodes; return None if it refuses one."""
    nodes = [node for node in cluster.nodes if "getitem" not in str(node.target)]
    return backend.compile(cluster, CompileSettings(threads=1)) if all(map(_taken_by(backend), nodes)) else None


def _taken_by(backend: Any) -> Any:
    return lambda node: backend.supports(node).accepted


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", BACKENDS)
def test_samples_of_gradients(name: str, *, dynamic: bool) -> None:
    """As exact as eager, at fixed and at symbolic sizes; what is refused is counted."""
    taken = 0
    for operator, place in CASES:
        sample = SAMPLES[operator][place]
        cluster, inputs = case_cluster(operator, sample, dynamic=dynamic)
        if executable := executable_of(BACKENDS[name], cluster):
            taken += 1
            found = executable(*inputs)
            check_close(found, expected(operator, sample), references(operator, sample))
    assert taken == len(CASES) - REFUSED[dynamic]
