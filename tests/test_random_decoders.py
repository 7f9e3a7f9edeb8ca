"""Random decoders, whose caches grow and are cropped, reordered and cut, match eager on each backend."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry
from hub.testing.random_decoders import check, decoder

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")  # Inductor's own imports
DECODERS = 1000
SHARE = 4
"""Decoders of one run by one backend; each commit takes others."""


def commits() -> int:
    """Return the number of commits, 0 without a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


SLICE = int(os.environ.get("DECODERS_SLICE") or commits())
"""The share of decoders; a failure names its decoder."""


def check_alone(backend: str, number: int) -> None:
    """Raise AssertionError if one backend differs from eager, alone or caught by verification, or fails."""
    torch.compiler.reset()
    options: dict[str, Any] = {"tune": "off", "backends": (backend,), "isolate": False}
    made: list[Callable[..., Any]] = []

    def compiled(model: nn.Module, is_dynamic: bool | None) -> Callable[..., Any]:
        result: Any = torch.compile(model, backend="hub", dynamic=is_dynamic, options=options)
        made.append(result)
        return result

    found = decoder(number)
    check(found, compiled)
    plans = hub.plans(made[0])
    events = [f"{event.kind} at {event.stage}: {event.message}" for plan in plans for event in plan.events]
    events = [text for text in events if text.startswith(("failed", "fallback"))]
    assert not events, f"{found}: {events}"
    assert any(cluster.backend == backend for plan in plans for cluster in plan.clusters), f"{found}: {backend} did not run"


@pytest.mark.slow
@pytest.mark.parametrize("backend", registry().available())
@pytest.mark.parametrize("place", range(SHARE))
def test_some_decoders(backend: str, place: int) -> None:
    """Some decoders, different ones in each commit, match eager at every length on each backend alone."""
    check_alone(backend, (SLICE * SHARE + place) % DECODERS)


def test_decoders_agree_with_themselves() -> None:
    """A drawn decoder runs through all its calls, the same way each time."""
    for number in range(4):
        assert decoder(number) == decoder(number)
        check(decoder(number), lambda model, _: model)


def test_decoders_are_of_all_kinds() -> None:
    """Among all decoders, each kind of cache, mask and change is drawn."""
    drawn = [decoder(number) for number in range(DECODERS)]
    changes = {step.change for each in drawn for step in each.steps}
    assert changes >= {"crop", "front", "reorder", "repeat", "part", "step", "copy", "fresh"}
    assert {each.config.mask for each in drawn} == {"none", "bool", "float", "row", "window"}
    assert {each.config.starts for each in drawn} == {"none", "empty", "zero"}
    assert {each.config.dtype for each in drawn} == {torch.float32, torch.float64, torch.bfloat16, torch.float16}


def test_a_wrong_row_is_seen() -> None:
    """A decoder that reads one row too early is refused."""

    def one_row_off(model: nn.Module, _: bool | None) -> Callable[..., Any]:
        def run(ids: torch.Tensor, caches: Any, kept: int) -> Any:
            logits, found = model(ids, caches, kept)
            return logits, [(keys.roll(1, -1), values) for keys, values in found]

        return run

    with pytest.raises(AssertionError, match="keys of layer 0: off by"):
        check(decoder(1), one_row_off)
