"""What was disturbed is timed again, as long as patience lasts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hub.pricing.patience import MAX_SWITCHES_S, PATIENCE_S, Patience
from hub.process.traffic import GAPS


class Machine:
    """A clock, and a count of switches, for timings that last so long each and are disturbed so often in a second."""

    def __init__(self, timings: Sequence[tuple[float, float]], lasts_s: float) -> None:
        """Set the median seconds and the context switches per second of each timing, and how long one lasts."""
        self.timings, self.lasts_s = list(timings), lasts_s
        self.now_s, self.switches, self.taken = 0.0, 0.0, 0

    def patience(self, n_cores: int = 2) -> Patience:
        """Return the patience of a worker on this machine."""
        return Patience(lambda: self.now_s, lambda: int(self.switches), n_cores)

    def take(self) -> float:
        """Return the seconds of the next timing."""
        seconds, rate = self.timings[min(self.taken, len(self.timings) - 1)]
        self.taken += 1
        self.now_s += self.lasts_s
        self.switches += rate * self.lasts_s
        return seconds


def timed(patience: Patience, machine: Machine) -> float:
    """Return the machine's timing that counts."""
    return patience.timed(machine.take, float)


BUSY, QUIET = 4 * MAX_SWITCHES_S, MAX_SWITCHES_S / 2


def test_a_calm_timing_is_taken_as_it_is() -> None:
    """However slow it is."""
    machine = Machine([(9.0, QUIET)], 0.2)
    assert timed(machine.patience(), machine) == 9.0
    assert machine.taken == 1


def test_each_core_adds_switches_of_its_own() -> None:
    """What disturbs two cores is the daily life of 64, each of which runs a thread."""
    machine = Machine([(9.0, BUSY)], 0.2)
    assert timed(machine.patience(n_cores=64), machine) == 9.0
    assert machine.taken == 1


def test_a_disturbed_timing_is_taken_again() -> None:
    """Until one is calm, though it be slower than a disturbed one."""
    machine = Machine([(78.0, BUSY), (2.0, BUSY), (2.2, QUIET)], 0.2)
    patience = machine.patience()
    assert timed(patience, machine) == 2.2
    assert (machine.taken, patience.disturbed) == (3, 0)


def test_patience_ends() -> None:
    """On a machine that is busy for good the fastest counts, and later timings are taken once each."""
    machine = Machine([(78.0, BUSY), (3.0, BUSY), (5.0, BUSY)], PATIENCE_S / 4)
    patience = machine.patience()
    assert timed(patience, machine) == 3.0
    assert (machine.taken, patience.disturbed) == (4, 1)
    timed(patience, machine)
    assert machine.taken == 5
    patience.begin()
    timed(patience, machine)
    assert machine.taken == 9


def test_beside_the_users_calls_nothing_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave no calm moments."""
    machine = Machine([(9.0, BUSY)], 0.2)
    take = machine.take

    def take_beside() -> float:
        monkeypatch.setattr(GAPS, "overlaps", GAPS.overlaps + 1)
        return take()

    machine.patience().timed(take_beside, float)
    assert machine.taken == 1
