"""A run of every call fails where backends ran next to nothing of it: eager would have been compared with itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.opdb import every_call
from tests.opdb.findings import Examination
from tests.opdb.tally import ENOUGH_CALLS, ENOUGH_OPERATORS, Tally


def examination(calls: int, bought: int) -> Examination:
    """Return an examination that has run."""
    found = Examination({})
    found.calls, found.ran = calls, Counter({"disc": bought})
    return found


def tally_of(operators: int, *, calls: int, bought: int) -> Tally:
    """Return the tally over so many operators of so many calls each."""
    tally = Tally()
    for number in range(operators):
        tally.add(f"operator {number}", examination(calls, bought))
    return tally


def test_a_run_in_eager_is_complained_about() -> None:
    """Backends run at least an operator in four calls, over all operators together."""
    tally = tally_of(ENOUGH_OPERATORS, calls=8, bought=0)
    assert tally.calls >= ENOUGH_CALLS
    assert tally.complaint() == f"backends ran 0 operators in {tally.calls} calls: most of eager was compared with itself"
    tally.add("a large one", examination(0, tally.calls // 4))
    assert tally.complaint() == ""


def test_of_one_backend_an_operator_is_enough() -> None:
    """It may take few, but one that takes none was not tried."""
    tally = Tally(0.0)
    for number in range(ENOUGH_OPERATORS):
        tally.add(f"operator {number}", examination(8, 0))
    assert tally.complaint() != ""
    tally.add("another", examination(8, 1))
    assert tally.complaint() == ""


def test_each_backend_that_was_named_has_to_run() -> None:
    """One that refuses everything is reported, however much the others run."""
    tally = Tally(0.0, backends=("disc", "tvm"))
    for number in range(ENOUGH_OPERATORS):
        tally.add(f"operator {number}", examination(8, 8))
    assert tally.complaint().startswith(f"tvm ran no operator in {tally.calls} calls")


@pytest.mark.parametrize(("operators", "calls"), [(ENOUGH_OPERATORS - 1, 100), (ENOUGH_OPERATORS, 1)])
def test_a_short_run_proves_nothing(operators: int, calls: int) -> None:
    """Of few calls, or of few operators, backends need not support any."""
    assert tally_of(operators, calls=calls, bought=0).complaint() == ""


def test_every_call_counts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test of a run adds what it made and what backends ran of it, also where it fails."""
    case = next(iter(every_call.CASES))

    def findings(self: Examination, calls: Any) -> Any:
        self.calls, self.ran = len(calls), Counter({"disc": 7})
        return iter(())

    monkeypatch.setattr(every_call, "PASSED", frozenset())
    monkeypatch.setattr(every_call, "DONE", None)
    monkeypatch.setattr(Examination, "findings", findings)
    tally = Tally()
    every_call.test_every_call_is_eagers(case, tally, tmp_path_factory, monkeypatch)
    assert tally.operators == {every_call.CASES[case][0]}
    assert (tally.calls > 0, tally.bought) == (True, 7)
