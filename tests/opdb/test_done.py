"""What a run of every call leaves out: only what passed before with the same PyTorch, and it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.opdb import every_call
from tests.opdb.done import note, passed_before
from tests.opdb.tally import Tally


def test_what_passed_is_left_out_with_the_same_torch_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version gives other samples and other results; so do lines without any."""
    file = tmp_path / "done"
    assert passed_before(file) == passed_before(None) == frozenset()
    file.write_text("old-inference\ntorch 1.0: older-inference\n")
    note(file, "abs-inference")
    assert passed_before(file) == {"abs-inference"}
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert passed_before(file) == frozenset()


def test_what_is_left_out_is_skipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run tells it from what it tried."""
    case = next(iter(every_call.CASES))
    monkeypatch.setattr(every_call, "PASSED", frozenset({case}))
    with pytest.raises(pytest.skip.Exception, match="passed before: OPDB_DONE"):
        every_call.test_every_call_is_eagers(case, Tally(), tmp_path_factory, monkeypatch)


def test_a_backend_that_cannot_be_used_ends_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls would all go to eager, and all be right."""
    monkeypatch.setattr(every_call, "BACKENDS", ("triton",))
    monkeypatch.setenv("HUB_TRITON_INTERPRET", "1")
    every_call.check_backends()
    monkeypatch.setattr(every_call, "BACKENDS", ("tritn",))
    with pytest.raises(AssertionError, match="there is no backend 'tritn'"):
        every_call.check_backends()


def test_a_backends_own_variables_hold_in_a_run_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture that keeps the user's variables out of tests takes them away."""
    monkeypatch.setattr(every_call, "BACKENDS", ("triton",))
    monkeypatch.setattr(every_call, "VARIABLES", {"HUB_TRITON_INTERPRET": "1"})
    monkeypatch.setattr(every_call, "DONE", None)
    bought: list[int] = []
    findings = every_call.Examination.findings

    def counted(self: every_call.Examination, calls: Any) -> Any:
        yield from findings(self, calls)
        bought.append(self.bought)

    monkeypatch.setattr(every_call.Examination, "findings", counted)
    every_call.test_every_call_is_eagers("tanh-inference", Tally(), tmp_path_factory, monkeypatch)
    assert bought[0] > 0
