"""Backends that are expected to win compile first: of many, the last ones may be late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hub

PLUGIN = """
import time
from pathlib import Path
from hub import Backend, BackendInfo, Cost, Executable, Support, hookimpl

DIARY = Path({diary!r})
SECONDS = {{"slowish": 3e-6, "middling": 2e-6, "quick": 1e-6}}

@hookimpl
def hub_backends():
    return [BackendInfo(name=name, factory=f"hub_three:{{name}}", summary="") for name in SECONDS]

class One(Backend):
    def __init__(self, name):
        self.name = name

    def supports(self, node):
        return Support(accepted=True)

    def estimate(self, cluster, settings):
        return Cost(SECONDS[self.name], 0.0, 0, "estimated", "as it says")

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


def test_those_that_may_win_get_the_cores_first(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """With one core, three backends compile in the order of what is expected of them, however they are registered."""
    diary = tmp_path / "diary"
    diary.mkdir()
    install_plugin("three", PLUGIN.format(diary=str(diary)))
    names = ["slowish", "middling", "quick"]
    options: dict[str, Any] = {
        "backends": names,
        "budget_s": 2.0,
        "compile_workers": 1,
        "cache_dir": str(tmp_path / "cache"),
    }
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(4, 8)
    run: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    assert {item.name for item in hub.plans(run)[0].contenders} >= {"eager"}
    order = [path.read_text() for path in sorted(diary.iterdir())]
    assert list(dict.fromkeys(order)) == ["quick", "middling", "slowish"]
