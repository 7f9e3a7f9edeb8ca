"""Timing while a model runs: in the gaps between its calls, with a report if it leaves none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub.pricing import timing
from hub.process import traffic
from hub.process.traffic import GAPS, Gaps, Traffic


@pytest.fixture
def shown(tmp_path: Path) -> tuple[Traffic, Gaps]:
    calls, gaps = Traffic(), Gaps()
    calls.show(tmp_path / "traffic")
    gaps.watch(tmp_path / "traffic")
    return calls, gaps


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Traffic]:
    """Make everything that this process times watch these calls."""
    calls = Traffic()
    calls.show(tmp_path / "traffic")
    GAPS.watch(tmp_path / "traffic")
    yield calls
    GAPS.watch(None)


def test_without_a_file_nothing_waits() -> None:
    """Without a running model, a sample is taken at once."""
    gaps = Gaps()
    assert gaps.sample(lambda: 3) == 3
    gaps.watch(Path("/nowhere/traffic"))
    assert gaps.sample(lambda: 4) == 4
    assert gaps.overlaps == 0


def test_what_cannot_be_repeated_is_taken_once(shown: tuple[Traffic, Gaps]) -> None:
    """A call that comes in between makes it worth less, as is told."""
    calls, gaps = shown
    assert Gaps().once(lambda: 3) == (3, True)
    assert gaps.once(lambda: 4) == (4, True)
    taken: list[int] = []

    def interrupted() -> int:
        taken.append(1)
        with calls:
            return 5

    assert gaps.once(interrupted) == (5, False)
    assert taken == [1]
    assert gaps.overlaps == 0


def test_a_sample_waits_for_the_end_of_a_call(shown: tuple[Traffic, Gaps], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call runs, nothing is taken."""
    calls, gaps = shown
    taken: list[int] = []
    looks_again = threading.Event()

    def slept(seconds: float) -> None:
        looks_again.set()
        time.sleep(seconds)

    monkeypatch.setattr(traffic, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=slept))
    calls.__enter__()
    thread = threading.Thread(target=lambda: taken.append(gaps.sample(lambda: 1)))
    thread.start()
    assert looks_again.wait(30)
    assert taken == []
    calls.__exit__(None, None, None)
    thread.join(10)
    assert taken == [1]
    assert gaps.overlaps == 0


def test_a_sample_that_a_call_falls_into_is_taken_again(shown: tuple[Traffic, Gaps]) -> None:
    """A sample taken during a call is discarded, even if the call is over by the end."""
    calls, gaps = shown
    attempts: list[int] = []

    def take() -> int:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            with calls:
                pass
        return attempts[-1]

    assert gaps.sample(take) == 2
    assert gaps.overlaps == 0


def test_a_model_without_gaps_is_not_waited_for_endlessly(
    shown: tuple[Traffic, Gaps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once patience is over, samples are taken during the calls, and counted."""
    calls, gaps = shown
    monkeypatch.setattr(traffic, "PATIENCE_S", 0.05)
    with calls:
        assert [gaps.sample(lambda: 1) for _ in range(3)] == [1, 1, 1]
    assert gaps.overlaps == 3


def test_all_processes_share_their_patience(shown: tuple[Traffic, Gaps], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backend has workers: if each waited as long, a model called in a loop would be planned for a minute longer."""
    calls, gaps = shown
    monkeypatch.setattr(traffic, "PATIENCE_S", 0.05)
    other, waits = Gaps(), list[float]()
    other.watch(gaps.path)
    monkeypatch.setattr(traffic, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=waits.append))
    with calls:
        assert gaps.sample(lambda: 1) == 1
        n_waits = len(waits)
        assert other.sample(lambda: 2) == 2
    assert n_waits > 0
    assert len(waits) == n_waits
    assert other.overlaps == 1


def test_calls_of_several_threads_are_counted_together(shown: tuple[Traffic, Gaps]) -> None:
    """A gap is where no thread calls."""
    calls, gaps = shown

    def work() -> None:
        for _ in range(500):
            with calls:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gaps._counts() == (0, 2000)


def test_calls_that_began_before_are_seen(tmp_path: Path) -> None:
    """A file that is shown in the middle of a call says that it runs."""
    calls, gaps = Traffic(), Gaps()
    with calls:
        calls.show(tmp_path / "traffic")
        gaps.watch(tmp_path / "traffic")
        assert gaps._counts()[0] == 1
    assert gaps._counts()[0] == 0


def test_timings_are_of_the_gaps(watched: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are slow because of a simultaneous call do not count: those that are kept are of a quiet machine."""
    now_s, attempts = [0.0], 0

    def timed() -> None:
        nonlocal attempts
        attempts += 1
        if attempts % 2:
            with watched:
                now_s[0] += 0.02
        else:
            now_s[0] += 0.001

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    found = timing.time_call(timed, 0.0, warmup=0)
    assert found.samples_s == pytest.approx([0.001] * 3)
    assert (attempts, found.disturbed) == (6, 0)


@pytest.mark.parametrize(("call_s", "n_samples", "n_calls"), [(0.01, 3, 5), (3.0, 1, 2)])
def test_slow_calls_are_timed_fewer_times(
    call_s: float, n_samples: int, n_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of seconds is timed well enough by one, and five would take a minute."""
    now_s, calls = [0.0], list[int]()

    def slow() -> None:
        calls.append(1)
        now_s[0] += call_s

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    assert timing.time_call(slow, 0.0).samples_s == pytest.approx([call_s] * n_samples)
    assert len(calls) == n_calls
