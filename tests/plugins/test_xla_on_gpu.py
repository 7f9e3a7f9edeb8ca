"""XLA on a GPU, against eager there: tensors go in and out over their own memory, in the order of PyTorch's launches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hub.bench.zoo import build
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import SETTINGS, whole_cluster

pytest.importorskip("jaxlib")
pytest.importorskip("torch_mlir")

from plugin_xla.backend import Xla, create
from plugin_xla.settings import Settings

CHOSEN = Settings(target="cuda")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
    pytest.mark.skipif(bool(CHOSEN.missing), reason="XLA's client for CUDA is not installed"),
]


@pytest.fixture(scope="module")
def backend() -> Xla:
    return create(CHOSEN)


def test_probe(backend: Xla) -> None:
    """The probe compiles and runs one operator."""
    assert backend.probe().accepted


@pytest.mark.parametrize("name", ["mlp", "bert", "gpt2", "resnet18"])
def test_models(backend: Xla, name: str) -> None:
    """The whole is taken, and results are as exact as plugins' have to be, also of later calls."""
    module, inputs = build(name, small=True)
    module, inputs = module.eval().cuda(), tuple(value.cuda() for value in inputs)
    with torch.no_grad():
        module(*inputs)
    cluster, given = whole_cluster(module, inputs)
    assert [reason for node in cluster.nodes if (reason := backend.supports(node).reason)] == []
    executable = backend.compile(cluster, SETTINGS)
    wanted, references = eager(cluster, given), exact(cluster, given)
    for _ in range(3):
        assert value_problem(executable(*given), wanted, references) == ""


def test_memory_is_shared_and_launches_are_in_order(backend: Xla) -> None:
    """What PyTorch launched before a call is read by it, and what it launches afterwards reads the call's results."""
    cluster, _ = whole_cluster(nn.Linear(2048, 2048).cuda(), (torch.zeros(2048, 2048, device="cuda"),))
    executable = backend.compile(cluster, SETTINGS)
    for step in range(20):
        x = torch.full((2048, 2048), float(step), device="cuda")
        (result,) = executable(x)
        del x  # its memory is PyTorch's again
        torch.full((2048, 2048), -1.0, device="cuda")
        expected = cluster.module(torch.full((2048, 2048), float(step), device="cuda"))[0]
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)
