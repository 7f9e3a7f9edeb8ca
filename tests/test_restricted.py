"""Backends of `torch.compile` that are the hub with one backend alone, under names that PyTorch no longer runs."""

from __future__ import annotations

from importlib import metadata

import pytest
import torch
from torch import nn

import hub
from hub.discovery import registry as registry_module
from hub.errors import HubWarning, OptionError

NAMES = {"hub-tvm": "tvm", "hub-openxla": "xla", "hub-onnxrt": "onnxruntime", "hub-iree": "iree"}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval()


@pytest.mark.parametrize("name", NAMES)
def test_an_old_name_runs_on_its_backend_alone(name: str) -> None:
    """`torch.compile` lists the name, and what the backend supports runs there."""
    assert name in torch.compiler.list_backends()
    module, x = model(), torch.randn(3, 8)
    compiled = torch.compile(module, backend=name, options={"tune": "off"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    (plan,) = hub.plans(compiled)
    assert {cluster.backend for cluster in plan.clusters} == {NAMES[name]}


def test_what_a_backend_does_not_take_runs_in_eager() -> None:
    """A restricted backend has eager as its fallback, and nothing else."""
    compiled = torch.compile(lambda x: torch.sort(x.exp()).values + 1, backend="hub-openxla", options={"tune": "off"})
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), torch.sort(x.exp()).values + 1)
    (plan,) = hub.plans(compiled)
    assert {cluster.backend for cluster in plan.clusters} == {"xla", "eager"}


def test_other_backends_contradict_the_name() -> None:
    """A restricted backend takes the hub's options, but no other backends."""
    compiled = torch.compile(model(), backend="hub-tvm", options={"backends": ["openvino"]})
    with pytest.raises(OptionError, match="is tvm alone"):
        compiled(torch.randn(3, 8))


def test_a_missing_library_is_named_and_eager_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the model runs in eager, with a warning that says what to install."""
    real = metadata.version

    def version(name: str) -> str:
        if name == "apache-tvm":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    registry_module.registry.cache_clear()
    module, x = model(), torch.randn(3, 8)
    compiled = torch.compile(module, backend="hub-tvm", options={"tune": "off"})
    with torch.no_grad(), pytest.warns(HubWarning, match="apache-tvm is not installed"):
        torch.testing.assert_close(compiled(x), module(x))
    registry_module.registry.cache_clear()
