"""Plans that give one segment of the best plan's graph to another backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate, combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.planning import measure, race
from hub.planning.segments import best_segment
from hub.workers.candidate import Candidate
from hub.workers.runners import Block, PlanRunner, PlanRunners
from hub.workers.session import Session

PLUGIN = """
from hub import Backend, BackendInfo, Cost, Executable, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="{name}", factory="hub_{name}:Likes", summary="")]

class Likes(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def estimate(self, cluster, settings):
        seconds = sum(1e-4 if "{likes}" in str(node.target) else 1e-3 for node in cluster.nodes)
        return Cost(seconds, 0.0, 0, "estimated", "by operator")

    def compile(self, cluster, settings):
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
LIKES = {"curved": "gelu", "flat": "tanh"}


def seconds_of(backend: str, names: Iterable[str]) -> float:
    """Return the seconds that a backend takes for nodes of these names."""
    return sum(1e-4 if LIKES.get(backend, "-") in name else 1e-3 for name in names)


@pytest.fixture(autouse=True)
def _known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report known times of nodes, clusters and plans, so that no clock decides."""
    eager_prices, price, time_runner = Session.eager_prices, Session.price, PlanRunners.time_runner

    def known_prices(self: Session) -> dict[str, float]:
        return dict.fromkeys(eager_prices(self), 1e-2)

    def known_price(self: Session, candidate: Candidate, at_least_s: float = 0.0) -> Candidate:
        priced = price(self, candidate, 0.0)
        assert priced.cost is not None
        run_s = seconds_of(candidate.backend, candidate.group.nodes)
        return replace(priced, cost=replace(priced.cost, run_s=run_s, spread_s=0.0))

    def known_block(self: PlanRunners, runner: PlanRunner, at_least_s: float) -> Block:
        block = time_runner(self, runner, 0.0)
        laps_s = tuple(0.1 if step.is_eager else seconds_of(step.backend, step.nodes) for step in runner.steps)
        return replace(block, seconds=sum(laps_s), laps_s=laps_s)

    monkeypatch.setattr(race, "MAX_ROUNDS", race.MIN_ROUNDS)
    monkeypatch.setattr(Session, "eager_prices", known_prices)
    monkeypatch.setattr(Session, "price", known_price)
    monkeypatch.setattr(PlanRunners, "time_runner", known_block)


def plan_of(activations: Iterable[Callable[[], nn.Module]], cache: Path) -> hub.Plan:
    """Return the plan of a model with these activations, each after a product, checked against eager."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), kind(), kind(), kind()) for kind in activations)).eval()
    x = torch.randn(4, 8)
    torch._dynamo.reset()
    options: dict[str, Any] = {"backends": tuple(LIKES), "start": "wait"}
    compiled = torch.compile(model, backend="hub", options=options)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUB_CACHE_DIR", str(cache))
        torch.testing.assert_close(compiled(x), model(x))
    (plan,) = hub.plans(compiled)
    return plan


@pytest.mark.parametrize(
    ("kinds", "backends"),
    [
        ((nn.GELU, nn.GELU, nn.Tanh, nn.Tanh), ["curved", "flat"]),
        ((nn.Tanh, nn.GELU, nn.GELU, nn.GELU), ["flat", "curved"]),
        ((nn.GELU, nn.GELU, nn.Tanh, nn.Tanh, nn.GELU, nn.GELU), ["curved", "flat", "curved"]),
        ((nn.GELU, nn.GELU, nn.GELU), ["curved"]),
    ],
    ids=["two halves", "a short start", "a middle", "one kind"],
)
def test_each_part_goes_to_the_backend_that_is_fast_at_it(
    kinds: Any,
    backends: list[str],
    install_plugin: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No piece is priced, and the mix wins the race nevertheless."""
    monkeypatch.setattr(measure._Measuring, "_price_pieces", lambda _: None)
    for name, likes in LIKES.items():
        install_plugin(name, PLUGIN.format(name=name, likes=likes))
    plan = plan_of(kinds, tmp_path)
    assert [cluster.backend for cluster in plan.clusters] == backends
    assert plan.decided_by == "measured whole plans"


def test_a_piece_that_becomes_a_part_of_a_plan_is_compiled_once_more(
    install_plugin: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are not saved. Once a mix needs one, it is compiled and saved: neither the race nor the user compiles it."""
    monkeypatch.setattr(measure._Measuring, "_try_segments", lambda _: None)
    log, start = tmp_path / "log", "def compile(self, cluster, settings):\n"
    note = f"        open({str(log)!r}, 'a').write(f'{{settings}} {{[n.name for n in cluster.nodes]}} {{__name__}}\\n')\n"
    for name, likes in LIKES.items():
        install_plugin(name, PLUGIN.format(name=name, likes=likes).replace(start, start + note))
    plan = plan_of((nn.GELU, nn.Tanh), tmp_path / "cache")
    assert [cluster.backend for cluster in plan.clusters] == ["curved", "flat"]
    assert max(Counter(log.read_text().splitlines()).values()) == 2


@pytest.mark.parametrize(
    ("gains_s", "expected"),
    [
        ([], (0, 0, 0.0)),
        ([-1.0, -2.0], (0, 0, 0.0)),
        ([None, None], (0, 0, 0.0)),
        ([1.0, 2.0], (0, 2, 3.0)),
        ([-5.0, 1.0, 2.0, -1.0], (1, 3, 3.0)),
        ([4.0, -1.0, 3.0, -9.0, 5.0], (0, 3, 6.0)),
        ([4.0, None, 3.0, 2.0], (2, 4, 5.0)),
    ],
)
def test_the_best_segment(gains_s: list[float | None], expected: tuple[int, int, float]) -> None:
    """It is what all together gain most, without positions that are not possible."""
    assert best_segment(gains_s) == expected


def test_the_best_segment_is_the_best_of_all() -> None:
    """No other segment of random gains has a larger sum."""
    random = Random(0)
    for _ in range(500):
        gains = [random.choice([None, random.uniform(-1, 1)]) for _ in range(random.randint(0, 9))]
        sums = [0.0, *accumulate(-99.0 if gain is None else gain for gain in gains)]
        best = max((sums[stop] - sums[start] for start, stop in combinations(range(len(sums)), 2)), default=0.0)
        assert best_segment(gains)[2] == pytest.approx(max(0.0, best))
