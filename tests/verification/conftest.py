"""Small clusters, and executables that compute them with one fault each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hub.plugin.graph import Cluster
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import call, f

Fault = Callable[[list[torch.Tensor], Sequence[Any]], Any]


@pytest.fixture
def softmax() -> tuple[Cluster, tuple[Any, ...]]:
    """Return a cluster of one softmax over rows of 16, and its input."""
    return case_cluster("aten.softmax.int", call(f(8, 16), -1))


@pytest.fixture
def faulty() -> Callable[[Cluster, Fault], Callable[..., list[torch.Tensor]]]:
    """Return `faulty(cluster, fault)`: eager, whose outputs the fault may change in place, given the inputs."""

    def make(cluster: Cluster, fault: Fault) -> Callable[..., list[torch.Tensor]]:
        def run(*inputs: Any) -> list[torch.Tensor]:
            outputs = [value.clone() for value in cluster.module(*inputs)]
            changed = fault(outputs, inputs)
            return outputs if changed is None else changed

        return run

    return make
