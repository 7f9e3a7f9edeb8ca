"""Sample calls of every operator in PyTorch's own database give through the hub what they give in eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.opdb.allowed import is_listed, not_allowed
from tests.opdb.calls import Mode
from tests.opdb.chosen import chosen
from tests.opdb.findings import Examination
from tests.slices import drawn

GROUPS = 48
COMPILED_SLOWLY = ("inductor", "iree")
"""Backends that start a compiler for each program: they may bid in the first group only."""


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("group", drawn(range(GROUPS), one_in=3))
def test_chosen_calls_are_eagers(group: int, mode: Mode, tmp_path: Path) -> None:
    """Results, strides, shared memory, written arguments, gradients and errors are eager's."""
    calls = list(chosen(group, GROUPS, mode))
    options: dict[str, Any] = {"tune": "off", "cache_dir": str(tmp_path)}
    if (group, mode) != (0, "inference"):
        options["exclude"] = COMPILED_SLOWLY
    examination = Examination(options, alone=is_listed)
    wrong = not_allowed(calls, examination.findings(calls))
    assert not wrong, "\n".join(wrong)
    assert not examination.fallbacks, "\n".join(examination.fallbacks)
    assert examination.bought > examination.calls / 20, f"{examination.bought} operators for {examination.calls} calls"
