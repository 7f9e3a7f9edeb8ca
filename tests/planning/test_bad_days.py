"""Real planning under failures: workers die at any moment, or everything becomes ten times slower in the middle."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.plan import DecidedBy, Plan
from hub.process.family import descendants
from tests import slices

BACKENDS = ("disc", "onnxruntime", "openvino")
NOISE = 0.3
"""Share by which a plan may be slower in its own evidence than the best contender: other tests run at the same time."""


class Net(nn.Module):
    """Two convolutions and a head: enough work for every backend to take some seconds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU())
        self.head = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3))).softmax(-1)


@contextmanager
def meanwhile(act: Callable[[], float], after_s: float) -> Generator[None]:
    """Act from `after_s` seconds on, and again each time after as many seconds as the last act returned."""
    done = threading.Event()

    def go_on() -> None:
        wait_s = after_s
        while not done.wait(wait_s):
            wait_s = act()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def planned(start: str) -> Plan:
    """Compile, and return the plan. Assert eager's answers, before and after."""
    model, x = Net().eval(), torch.randn(4, 3, 32, 32)
    options: dict[str, Any] = {"tune": "fast", "budget_s": 4.0, "start": start, "backends": BACKENDS}
    run: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        assert hub.wait(run, 300.0), "planning hangs"
        for _ in range(3):
            y = torch.randn(4, 3, 32, 32)
            torch.testing.assert_close(run(y), model(y))
    (plan,) = hub.plans(run)
    return plan


def assert_nothing_proven_was_better(plan: Plan) -> None:
    """Assert that the plan is the best of all that its evidence lists, regardless of what died during planning."""
    shown = {item.name: item.median_s for item in plan.contenders}
    won = [item.name for item in plan.contenders if item.won]
    if not won:  # no contender was left to compete with eager
        assert plan.backends == ("eager",)
        return
    assert shown[won[0]] <= (1 + NOISE) * min(shown.values()), shown


@pytest.mark.parametrize("seed", slices.drawn(range(12), first=5))
@pytest.mark.filterwarnings("ignore::hub.errors.HubWarning")
def test_workers_that_are_killed_at_any_time_cost_no_answer(seed: int) -> None:
    """Any process that the hub started may die at any moment, several times."""
    draw = random.Random(seed)
    left = [draw.randint(1, 6)]

    def kill() -> float:
        if found := descendants(os.getpid()):
            send(draw.choice(sorted(found)), signal.SIGKILL)
            left[0] -= 1
        return draw.uniform(0.05, 3.0) if left[0] > 0 else 1e6

    with meanwhile(kill, draw.uniform(0.1, 8.0)):
        plan = planned(draw.choice(("wait", "eager")))
    assert plan.decided_by is not DecidedBy.PENDING
    assert_nothing_proven_was_better(plan)


@pytest.mark.parametrize("seed", slices.drawn(range(12), first=17))
@pytest.mark.filterwarnings("ignore::hub.errors.HubWarning")
def test_a_machine_that_becomes_ten_times_slower_costs_no_answer(seed: int) -> None:
    """For a while, everything that the hub started gets a tenth of its time: planning ends, with the best proven plan."""
    draw = random.Random(seed)
    stopped: set[int] = set()
    begins_s = draw.uniform(0.5, 10.0)
    end_s = time.monotonic() + begins_s + draw.uniform(5.0, 15.0)  # forever, it would cost the suite a minute

    def throttle() -> float:
        if stopped:
            for pid in stopped:
                send(pid, signal.SIGCONT)
            stopped.clear()
            return 0.02 if time.monotonic() < end_s else 1e6
        for pid in descendants(os.getpid()):
            send(pid, signal.SIGSTOP)
            stopped.add(pid)
        return 0.18

    try:
        with meanwhile(throttle, begins_s):
            plan = planned(draw.choice(("wait", "eager")))
    finally:
        for pid in stopped:
            send(pid, signal.SIGCONT)
    assert_nothing_proven_was_better(plan)
