"""Clusters of one backend are compiled at once, each in a worker of its own; nothing else about a plan changes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.errors import HubWarning

PLUGIN = """
import os, time
from pathlib import Path
from hub import Backend, BackendInfo, Cost, Executable, Support, hookimpl
from hub.plugin.settings import BackendSettings
from hub.errors import CompileError

DIARY, MEETS, FAILS = Path({diary!r}), {meets!r}, {fails!r}

class Own(BackendSettings):
    at_once: int = 0

    @property
    def compile_workers(self):
        return self.at_once or None

@hookimpl
def hub_backends():
    info = BackendInfo(name="pair", factory="hub_pair:create", summary="", settings="hub_pair:Own")
    return [info]

def create(own):
    return Pair()

class Pair(Backend):
    def supports(self, node):
        return Support("relu" not in str(node.target), "not that")

    def estimate(self, cluster, settings):
        return Cost(1e-9, 0.0, 0, "estimated", "as good as free")

    def compile(self, cluster, settings):
        (DIARY / f"{{time.time_ns()}}-{{os.getpid()}}").write_text(cluster.nodes[0].name)
        pids = set()
        for _ in range(3000 if MEETS else 0):  # time enough for a worker to start
            if len({{path.name.partition("-")[2] for path in DIARY.iterdir()}}) > 1:
                break
            time.sleep(0.1)
        else:
            if MEETS:
                raise CompileError("nobody else compiles")
        if FAILS:
            raise CompileError("it cannot be had")
        return Run(cluster)

    def load(self, folder, cluster, settings):
        return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        import torch
        with torch.no_grad():
            return [value + 0 for value in self.module(*inputs)]

    def save(self, folder):
        (folder / "nothing").write_text("")
"""
X = torch.linspace(-1, 1, 32).reshape(4, 8)
Install = Callable[..., Path]


@pytest.fixture
def install(install_plugin: Callable[[str, str], None], tmp_path: Path) -> Install:
    """Return a function that installs a plugin that refuses ReLU; it returns the folder with one file per compilation.

    With `meets`, it compiles nothing before a second process does.
    """

    def place(*, meets: bool = False, fails: bool = False) -> Path:
        diary = tmp_path / "diary"
        diary.mkdir()
        install_plugin("pair", PLUGIN.format(diary=str(diary), meets=meets, fails=fails))
        return diary

    return place


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile two clusters at once, however many cores there are."""
    monkeypatch.setenv("HUB_WORKERS_COUNT", "2")


def run(**options: Any) -> hub.Plan:
    """Run three products with ReLU between them, check the result, and return the plan."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    given: Mapping[str, Any] = {"backends": ["pair"], "tune": "off", "threads": 1, **options}
    compiled = torch.compile(module, backend="hub", options=given)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        torch.testing.assert_close(compiled(X), module(X))
    (plan,) = hub.plans(compiled)
    return plan


def processes(diary: Path) -> set[int]:
    """Return the processes that compiled something."""
    return {int(path.name.partition("-")[2]) for path in diary.iterdir()}


def clusters(plan: hub.Plan) -> list[tuple[str, ...]]:
    """Return the nodes of the backend's clusters."""
    return [cluster.nodes for cluster in plan.clusters if cluster.backend == "pair"]


def test_clusters_of_one_backend_are_compiled_at_once(install: Install) -> None:
    """Clusters compile at once even if one waits until another one of the same backend compiles elsewhere."""
    diary = install(meets=True)
    plan = run()
    assert len(clusters(plan)) == 3
    assert len(processes(diary)) == 2
    assert os.getpid() not in processes(diary)
    assert [event for event in plan.events if event.kind != "note"] == []


@pytest.mark.slow
def test_clusters_are_compiled_at_once_while_plans_are_measured(install: Install) -> None:
    """What a second worker has compiled and saved is loaded, timed and proven in the backend's own worker."""
    diary = install(meets=True)
    plan = run(tune="fast", budget_s=5.0, backends=["pair", "eager"])
    assert len(processes(diary)) == 2
    assert plan.decided_by == "measured whole plans"
    assert {contender.name for contender in plan.contenders} == {"pair", "eager"}


@pytest.mark.parametrize(("count", "given"), [("1", {}), ("2", {"pair": {"at_once": 1}})])
def test_one_worker_compiles_one_after_the_other(
    count: str, given: Mapping[str, Any], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's setting is the number, and a backend's own setting overrides it; the plan is the same."""
    monkeypatch.setenv("HUB_WORKERS_COUNT", count)
    diary = install()
    one = run(**given)
    assert len(processes(diary)) == 1
    monkeypatch.setenv("HUB_WORKERS_COUNT", "2")
    assert clusters(one) == clusters(run(renew=True))


def test_a_failure_costs_what_it_costs_one_after_the_other(install: Install) -> None:
    """Clusters that failed at the same time run in eager, under their names in the plan; no later process retries them."""
    diary = install(fails=True)
    plan = run()
    assert clusters(plan) == []
    assert any("it cannot be had" in event.message for event in plan.events if event.kind == "fallback")
    count = len(list(diary.iterdir()))
    run()
    assert len(list(diary.iterdir())) == count
