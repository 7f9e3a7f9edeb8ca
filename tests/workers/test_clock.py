"""The clock: the budget begins when a first whole plan is ready, and its last part is for timing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from hub.workers.clock import COMPILE_SHARE, EXPLORE_SHARE, MAX_PATIENCE, Clock


@pytest.fixture
def go_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return `go_to(seconds)`, which sets the time."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def set_time(seconds: float) -> None:
        now[0] = 1000.0 + seconds

    return set_time


def test_first_choice_is_not_counted(go_to: Callable[[float], None]) -> None:
    """However long the first whole plan compiles, the whole budget is left, and anything may start."""
    clock = Clock(10.0)
    go_to(500.0)
    assert clock.left_s == 10.0
    assert clock.compile_until("one") == math.inf
    assert clock.may_start("one", is_needed=True)
    assert clock.may_start("one", is_needed=False)


def test_budget_begins_once(go_to: Callable[[float], None]) -> None:
    """The first whole plan starts the budget, and later ones do not start it again."""
    clock = Clock(10.0)
    go_to(100.0)
    clock.begin()
    go_to(104.0)
    clock.begin()
    assert clock.left_s == pytest.approx(6.0)
    go_to(112.0)
    assert clock.left_s == pytest.approx(-2.0)


def test_last_part_is_for_timing(go_to: Callable[[float], None]) -> None:
    """A needed cluster may start up to a share of the budget, and not after it."""
    clock = Clock(10.0)
    clock.begin()
    go_to(10.0 * COMPILE_SHARE - 0.01)
    assert clock.may_start("one", is_needed=True)
    go_to(10.0 * COMPILE_SHARE + 0.01)
    assert not clock.may_start("one", is_needed=True)


def test_pieces_stop_first(go_to: Callable[[float], None]) -> None:
    """Pieces stop while there still is time to compile what their prices suggest."""
    clock = Clock(10.0)
    clock.begin()
    go_to(10.0 * EXPLORE_SHARE + 0.01)
    assert not clock.may_start("one", is_needed=False)
    assert clock.may_start("one", is_needed=True)


def test_piece_must_end_in_time(go_to: Callable[[float], None]) -> None:
    """A piece does not start where the backend's slowest compilation so far would outlast the time for pieces."""
    clock = Clock(10.0)
    clock.begin()
    clock.compiled("slow", 4.0)
    clock.compiled("slow", 1.0)
    go_to(1.0)
    assert not clock.may_start("slow", is_needed=False)
    assert clock.may_start("slow", is_needed=True)
    assert clock.may_start("quick", is_needed=False)
    go_to(0.4)
    assert clock.may_start("slow", is_needed=False)


def test_a_small_piece_of_what_took_long_may_start(go_to: Callable[[float], None]) -> None:
    """A whole graph may take longer than there is time for pieces, and a 24th of it a second."""
    clock = Clock(10.0)
    clock.begin()
    clock.compiled("slow", 60.0)
    go_to(1.0)
    assert not clock.may_start("slow", is_needed=False)
    assert clock.may_start("slow", is_needed=False, expected_s=1.0)
    assert not clock.may_start("slow", is_needed=False, expected_s=2.0)


def test_what_may_be_the_fastest_is_waited_for(go_to: Callable[[float], None]) -> None:
    """It may take longer than others that are ready, until it is there, or far too late."""
    clock = Clock(10.0)
    clock.wait_for(("slow", "slower"))
    clock.begin()
    go_to(10.0 * COMPILE_SHARE + 0.01)
    assert not clock.may_start("quick", is_needed=True)
    assert clock.may_start("slow", is_needed=True)
    go_to(10.0 * MAX_PATIENCE + 0.01)
    assert not clock.may_start("slow", is_needed=True)
    go_to(10.0 * COMPILE_SHARE + 0.01)
    clock.arrived("quick")
    assert clock.may_start("slow", is_needed=True)
    clock.arrived("slow")
    assert not clock.may_start("slow", is_needed=True)
    assert clock.may_start("slower", is_needed=True)


def test_a_part_of_a_plan_begins_no_budget_but_bounds_the_wait(go_to: Callable[[float], None]) -> None:
    """A plan of nine clusters is not given up because its first one was quick."""
    clock = Clock(10.0)
    clock.begin(is_whole=False)
    go_to(20.0)
    assert clock.left_s == 10.0
    assert clock.may_start("one", is_needed=True)
    assert clock.compile_until("one") == pytest.approx(1000.0 + MAX_PATIENCE * 10.0)
    clock.begin()
    assert clock.compile_until("one") == pytest.approx(1020.0 + COMPILE_SHARE * 10.0)
