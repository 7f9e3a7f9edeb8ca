"""Backends that are expected to win compile first: of many, the last ones may be late, or never tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import hub
from hub.plan import Plan
from hub.planning import measure
from hub.process.environment import variables_set

PLUGIN = """
import time
from pathlib import Path
from hub import Backend, BackendInfo, Cost, Executable, Support, hookimpl

DIARY = Path({diary!r})
SECONDS = {seconds!r}

@hookimpl
def hub_backends():
    return [BackendInfo(name=name, factory=f"hub_three:{{name}}", summary="") for name in SECONDS]

class One(Backend):
    def __init__(self, name):
        self.name = name

    def supports(self, node):
        return Support(accepted=True)

    def estimate(self, cluster, settings):
        seconds = SECONDS[self.name]
        return None if seconds is None else Cost(seconds, 0.0, 0, "estimated", "as it says")

    def compile(self, cluster, settings):
        (DIARY / f"{{time.time_ns()}}").write_text(self.name)
        return Run(cluster)

def slowish():
    return One("slowish")

def middling():
    return One("middling")

def quick():
    return One("quick")

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        import torch
        with torch.no_grad():
            return [value + 0 for value in self.module(*inputs)]
"""


def tried(
    install_plugin: Callable[[str, str], None], folder: Path, seconds: Mapping[str, float | None]
) -> tuple[list[str], Plan]:
    """Plan with backends that expect such seconds, on one core; return which were compiled, in order, and the plan."""
    diary = folder / "diary"
    diary.mkdir()
    install_plugin("three", PLUGIN.format(diary=str(diary), seconds=dict(seconds)))
    options: dict[str, Any] = {"backends": [*seconds], "budget_s": 2.0}
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(4, 8)
    run: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad(), variables_set({"HUB_WORKERS_COUNT": "1"}):
        torch.testing.assert_close(run(x), model(x))
    order = [path.read_text() for path in sorted(diary.iterdir())]
    return list(dict.fromkeys(order)), hub.plans(run)[0]


def test_those_that_may_win_get_the_cores_first(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """With one core, three backends compile in the order of their expected gain, regardless of registration order."""
    order, plan = tried(install_plugin, tmp_path, {"slowish": 3e-6, "middling": 2e-6, "quick": 1e-6})
    assert {item.name for item in plan.contenders} >= {"eager"}
    assert order == ["quick", "middling", "slowish"]


def test_one_of_the_unknown_is_tried(
    install_plugin: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no backend's chance is good enough, one about which nothing is known is tried nevertheless, and no more."""
    monkeypatch.setitem(cast("dict[str, float]", measure.MIN_CHANCE), "fast", 1.0)
    order, plan = tried(install_plugin, tmp_path, dict.fromkeys(("slowish", "middling", "quick")))
    assert len(order) == 1
    untried = {event.backend for event in plan.events if event.message.startswith("not tried")}
    assert untried | {*order} == {"slowish", "middling", "quick"}
