"""Programs that switch gradients on or off: what they compute, and the mode that they leave behind, are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hub


def leaves_off(x: torch.Tensor) -> torch.Tensor:
    """Return twice the values, and turn gradients off."""
    torch.set_grad_enabled(False)
    return x * 2


def leaves_on(x: torch.Tensor) -> torch.Tensor:
    """Return twice the values, and turn gradients on."""
    torch.set_grad_enabled(True)
    return x * 2


def puts_back(x: torch.Tensor) -> torch.Tensor:
    """Return values that were computed in both modes, and restore the previous mode."""
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        return y + 1


@pytest.mark.parametrize("begins_on", [True, False])
@pytest.mark.parametrize("program", [leaves_off, leaves_on, puts_back])
@pytest.mark.parametrize("way", ["torch.compile", "hub.compile"])
def test_a_program_leaves_the_mode_that_eager_leaves(
    way: str, program: Callable[[torch.Tensor], torch.Tensor], begins_on: bool
) -> None:
    """In the first call, which is captured, and in later ones."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"tune": "off", "start": "wait", "backends": ()}
    by_torch = torch.compile(program, backend="hub", options=options)
    compiled = by_torch if way == "torch.compile" else hub.compile(program, options=options)
    x = torch.linspace(-1, 1, 5)
    for _ in range(4):
        found = []
        for call in (program, compiled):
            with torch.set_grad_enabled(begins_on):
                result = call(x)
                found.append((result.tolist(), result.requires_grad, torch.is_grad_enabled()))
        assert found[0] == found[1]
    assert hub.plans(compiled)
