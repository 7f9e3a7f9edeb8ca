"""Products of float32 are as exact as float32, unless the user asked for less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hub.cache.keys import artifact_parts
from hub.discovery.registry import registry
from hub.plugin.backend import CompileSettings
from hub.process.modes import modes, set_modes
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton import backend
from plugin_triton.backend import create
from plugin_triton.kernel import IEEE, TF32
from plugin_triton.precision import TF32_ERROR, precision_of
from plugin_triton.settings import Settings
from plugin_triton.source import File, file_of
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.real import REAL, SINGLE, heads, linear, of, plain

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
CASES = {
    "product": (linear, (of(4096, 4096), of(4096, 4096), of(4096))),
    "ragged product": (linear, (of(1000, 1001), of(3001, 1001), of(3001))),
    **{f"attention {width}": (plain, heads(width, SINGLE)) for width in (64, 128, 256)},
    "causal attention": REAL["attention: causal 64 torch.float32"],
}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = modes()  # to ask for "highest" again would leave the settings beneath changed
    yield
    set_modes(before)


def file_for(name: str, precision: str) -> File:
    """Return a case's file for a GPU."""
    function, inputs = CASES[name]
    cluster, _ = whole_cluster(Wrapped(function), inputs)
    return file_of(cluster, lower(cluster), is_interpreted=False, precision=precision)


@pytest.mark.parametrize(("asked", "found"), [("highest", IEEE), ("high", TF32), ("medium", TF32)])
def test_pytorchs_own_setting_is_meant(asked: str, found: str) -> None:
    """Eager computes so on a GPU, too."""
    torch.set_float32_matmul_precision(asked)
    assert precision_of(GPU, None) == found


@pytest.mark.parametrize(("granted", "found"), [(None, IEEE), (TF32_ERROR / 2, IEEE), (TF32_ERROR, TF32), (0.1, TF32)])
def test_an_error_budget_allows_it_where_it_is_large_enough(granted: float | None, found: str) -> None:
    """As `accuracy` says what results may be off by."""
    assert precision_of(GPU, granted) == found


def test_where_there_is_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, which is a reference, and on AMD's GPUs."""
    assert precision_of(CPU, 0.1) == IEEE
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert precision_of(GPU, 0.1) == IEEE


def test_the_backend_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it compiles, of the settings that it is given."""
    asked: list[Any] = []
    monkeypatch.setattr(backend, "device_of", lambda _: GPU)
    monkeypatch.setattr(backend, "build", lambda *_, precision, **__: asked.append(precision))
    monkeypatch.setattr(backend.Triton, "_choose", lambda *_: None)
    cluster, _ = whole_cluster(Wrapped(torch.matmul), (torch.randn(4, 4), torch.randn(4, 4)))
    for accuracy in (None, 0.01):
        create(Settings()).compile(cluster, CompileSettings(threads=1, accuracy=accuracy))
    assert asked == [IEEE, TF32]


def test_what_was_compiled_so_has_another_key() -> None:
    """Both what PyTorch is set to and what the user granted are parts of it."""
    entry = registry().entries["triton"]
    plain_settings, granted = CompileSettings(threads=1), CompileSettings(threads=1, accuracy=0.01)
    before = artifact_parts("", entry, plain_settings)
    assert artifact_parts("", entry, granted) != before
    torch.set_float32_matmul_precision("high")
    assert artifact_parts("", entry, plain_settings) != before


@pytest.mark.parametrize(
    "name", ["product", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "product")]
)
def test_tensor_cores_compute_it(name: str) -> None:
    """And nothing spills; float32 as it is stays off them."""
    (found,) = compiled(file_for(name, TF32), Target.parse("cuda:90"))
    assert "tf32" in str(found.stages["ptx"])
    assert found.needs.spilled == 0
    (found,) = compiled(file_for(name, IEEE), Target.parse("cuda:90"))
    assert "tf32" not in str(found.stages["ptx"])
