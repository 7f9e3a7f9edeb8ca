"""Sample calls of every operator in PyTorch's own database give through the hub what they give in eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hub.discovery.registry import registry
from tests.opdb.allowed import is_listed, not_allowed
from tests.opdb.calls import Mode
from tests.opdb.chosen import chosen
from tests.opdb.findings import Examination
from tests.slices import drawn

GROUPS = 48
COMPILED_SLOWLY = ("inductor", "iree")
"""Backends that start a compiler for each program: they may bid in the first group only."""
MIN_SHARE, MIN_SHARE_ALONE = 1 / 20, 1 / 40
"""Operators that backends run for each call at least, all together and alone: TVM takes 5 in 133 calls of a group."""
ALONE = tuple(name for name in registry().available() if name not in COMPILED_SLOWLY)
"""Backends that have a group to themselves by turns: of all, the cheapest by estimate takes nearly all.

Without gradients only: with them a group is a dozen calls, of which one backend may take none.
"""


def cases() -> Iterator[Any]:
    """Yield each group in each mode, with the backend that receives whatever it supports of it; with none, all may bid."""
    for group in range(GROUPS):
        backend = ALONE[group // 2 % len(ALONE)] if group % 2 else None
        yield pytest.param(group, "inference", backend, id=f"{group}-inference-{backend or 'all'}")
    for group in range(GROUPS):
        yield pytest.param(group, "training", None, id=f"{group}-training-all")


@pytest.mark.parametrize(("group", "mode", "backend"), drawn(cases(), one_in=8))
def test_chosen_calls_are_eagers(group: int, mode: Mode, backend: str | None) -> None:
    """Results, strides, shared memory, written arguments, gradients and errors are eager's, and the backend ran some."""
    calls = list(chosen(group, GROUPS, mode))
    options: dict[str, Any] = {"tune": "off"}
    if backend is not None:
        options["backends"] = (backend,)
    elif (group, mode) != (0, "inference"):
        options["exclude"] = COMPILED_SLOWLY
    examination = Examination(options, alone=is_listed)
    wrong = not_allowed(calls, examination.findings(calls))
    assert not wrong, "\n".join(wrong)
    assert not examination.fallbacks, "\n".join(examination.fallbacks)
    least = examination.calls * (MIN_SHARE if backend is None else MIN_SHARE_ALONE)
    assert examination.bought > least, f"{dict(examination.ran)} operators for {examination.calls} calls"
    assert backend is None or set(examination.ran) == {backend}
