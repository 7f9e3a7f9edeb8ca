"""Plans for single combinations of sizes: begun when they come to pay, chosen when they are faster, few of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hub.dispatch import frequent_sizes
from hub.dispatch.frequent_sizes import MAX_PLANS, MIN_CALLS, N_TRIALS, FrequentSizes
from hub.dispatch.recorded import Run
from hub.errors import CaptureError

BOUND_S = 10.0


class Clock:
    """A substitute for the clock: each run sets how long it took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(frequent_sizes.time, "perf_counter", lambda: self.now)

    def run(self, name: str, seconds: float | Callable[[Any], float]) -> Run:
        """Return a run that takes so many seconds and returns its name."""

        def run(args: Sequence[Any]) -> tuple[Any, ...]:
            self.now += seconds(args[0]) if callable(seconds) else seconds
            return (name, args[0])

        return run


class Own:
    """A plan of its own that is there at once, unless it is held back."""

    def __init__(self, run: Run | None, *, is_over: bool = True) -> None:
        self.run, self.over = run, is_over

    def ready(self, args: Sequence[Any]) -> Run | None:
        return self.run if self.over else None

    def is_over(self) -> bool:
        return self.over


class Model:
    """A run of any sizes whose plans for single ones are made by a function."""

    def __init__(self, general: Run, begin: Callable[[Sequence[Any]], Own | None]) -> None:
        self.told: list[str] = []
        self.begun: list[int] = []

        def began(args: Sequence[Any]) -> Own | None:
            self.begun.append(args[0])
            return begin(args)

        self.call = FrequentSizes(general, (0,), 0.0, began, self.told.append)

    def calls(self, size: int, times: int) -> list[str]:
        """Call so often, and return which run answered each call. Wait for what has begun."""
        names: list[str] = []
        for _ in range(times):
            names.append(self.call((size,))[0])
            for thread in threading.enumerate():
                if thread.name == "hub-frequent-sizes":
                    thread.join(BOUND_S)
        return names


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that only runs advance."""
    return Clock(monkeypatch)


def test_sizes_that_come_often_get_the_faster_plan(clock: Clock) -> None:
    """It is begun once what it is hoped to gain is what planning takes, and not a call earlier."""
    model = Model(clock.run("general", 1.0), lambda _: Own(clock.run("own", 0.5)))
    n_before = int(frequent_sizes.MIN_PRICE_S / frequent_sizes.EXPECTED_GAIN)
    assert model.calls(8, n_before - 1) == ["general"] * (n_before - 1)
    assert model.begun == []
    model.calls(8, 1)
    assert model.begun == [8]
    names = model.calls(8, 2 * N_TRIALS)
    assert names.count("own") == names.count("general") == N_TRIALS
    assert model.calls(8, 5) == ["own"] * 5
    assert model.told == ["sizes 8 have their own plan: it took 500 ms a call, the general one 1e+03 ms"]
    assert model.calls(9, 3) == ["general"] * 3


def test_a_slower_plan_of_its_own_never_serves(clock: Clock) -> None:
    """The general plan goes on, and no other attempt is made."""
    model = Model(clock.run("general", 1.0), lambda _: Own(clock.run("own", 1.5)))
    model.calls(8, 200)
    assert model.calls(8, 200) == ["general"] * 200
    assert model.begun == [8]
    assert "use the general plan" in model.told[0]


def test_short_calls_pay_for_no_plan(clock: Clock) -> None:
    """A thousand calls of a millisecond lose less than planning takes."""
    model = Model(clock.run("general", 0.001), lambda _: Own(clock.run("own", 0.0001)))
    assert model.calls(8, 1000) == ["general"] * 1000
    assert model.begun == []


def test_few_long_calls_pay_for_no_plan(clock: Clock) -> None:
    """Sizes that came a few times may never come again."""
    model = Model(clock.run("general", 100.0), lambda _: Own(clock.run("own", 1.0)))
    model.calls(8, MIN_CALLS - 1)
    assert model.begun == []


def test_what_can_have_no_plan_is_asked_once(clock: Clock) -> None:
    """A refusal is final."""

    def begin(_: Sequence[Any]) -> Own | None:
        raise CaptureError("an operator calls other programs")

    model = Model(clock.run("general", 1.0), begin)
    assert model.calls(8, 500) == ["general"] * 500
    assert model.begun == [8]
    assert model.told == ["sizes 8 stay with the general plan: CaptureError: an operator calls other programs"]


def test_a_system_without_threads_costs_no_call(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that would have begun a plan is answered, and no other attempt is made."""
    model = Model(clock.run("general", 1.0), lambda _: Own(clock.run("own", 0.5)))

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert model.calls(8, 300) == ["general"] * 300
    assert model.told == ["sizes 8 stay with the general plan: RuntimeError: can't start new thread"]


def test_a_plan_for_other_weights_never_serves(clock: Clock) -> None:
    """Planning is over, and what it made is not for these weights."""
    model = Model(clock.run("general", 1.0), lambda _: Own(None))
    assert model.calls(8, 300) == ["general"] * 300
    assert model.begun == [8]


def test_one_plan_is_made_at_a_time(clock: Clock) -> None:
    """While one is being made, calls go on, and no other one is begun."""
    slow = Own(clock.run("own", 0.5), is_over=False)
    model = Model(clock.run("general", 1.0), lambda args: slow if args[0] == 8 else Own(clock.run("own", 0.5)))
    assert model.calls(8, 200) == ["general"] * 200
    assert model.calls(9, 200) == ["general"] * 200
    assert model.begun == [8]
    slow.over = True
    model.calls(9, 200)
    assert model.begun == [8, 9]
    assert model.calls(8, 100)[-5:] == ["own"] * 5


def test_the_plan_that_gained_least_makes_room(clock: Clock) -> None:
    """There are a few at most; one that would gain less than each of them is not even made."""
    model = Model(clock.run("general", 1.0), lambda _: Own(clock.run("own", 0.5)))
    for size in range(MAX_PLANS):
        model.calls(size, 200 + 100 * size)
    assert model.begun == list(range(MAX_PLANS))
    model.calls(60, 100)
    assert model.begun == list(range(MAX_PLANS)), "it is hoped to gain less than each of them has"
    model.calls(50, 1000)
    assert model.begun[-1] == 50
    assert model.calls(0, 1) == ["general"], "it gained least"
    for size in range(1, MAX_PLANS):
        assert model.calls(size, 5) == ["own"] * 5


def test_storms_of_sizes_are_forgotten(clock: Clock) -> None:
    """What is remembered of sizes is bounded."""
    model = Model(clock.run("general", 1.0), lambda _: Own(clock.run("own", 0.5)))
    for size in range(3 * frequent_sizes.MAX_SIZES):
        model.calls(size, 1)
    assert len(model.call._sizes) <= frequent_sizes.MAX_SIZES
    assert model.begun == []


def test_threads_get_the_answer_of_their_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads call two sizes while plans for both are made and chosen."""
    monkeypatch.setattr(frequent_sizes, "MIN_PRICE_S", 0.001)

    def run(name: str, seconds: float) -> Run:
        def call(args: Sequence[Any]) -> tuple[Any, ...]:
            time.sleep(seconds)
            return (name, args[0])

        return call

    model = Model(run("general", 0.002), lambda _: Own(run("own", 0.0001)))
    wrong: list[Any] = []

    def work(size: int) -> None:
        wrong.extend(found for _ in range(150) if (found := model.call((size,)))[1] != size)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert sorted(model.begun) == [0, 1]
    assert len(model.told) == len({text.partition(":")[0] for text in model.told}) == 2, "each is chosen once"
