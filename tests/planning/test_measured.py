"""Decisions by measuring: what is compiled, what is kept, and what a later process or another model finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.cache.database import DATABASE
from hub.cache.measurements import Measurements
from hub.planning import measure, race
from hub.process.environment import variables_set
from hub.workers.candidate import Candidate
from hub.workers.clock import Clock
from hub.workers.runners import Block, PlanRunner, PlanRunners
from hub.workers.session import Session

X = torch.ones(8, 32)
QUICK = {"tune": "fast", "budget_s": 600.0, "threads": 1}
"""A budget that no machine exhausts: if all is known, races end after the rounds that they need."""
NODE_S = {"eager": 1e-3, "alpha": 1e-4, "beta": 2e-4}
"""Seconds of a node; backends not listed here take alpha's."""
CLUSTER_S = 1e-5

PLUGIN = """
from hub import Backend, BackendInfo, CompileSettings, Cost, Executable, Support, hookimpl
from hub.errors import CompileError, InputRefused
import time

KIND = {kind!r}
ESTIMATE = {estimate!r}

@hookimpl
def hub_backends():
    return [BackendInfo(name="{name}", factory="hub_{name}:create", summary="")]

def create():
    return Plain()

def fault(cluster, settings):
    if KIND == "fails without busy-waiting" and not settings.busy_wait:
        raise CompileError("only if I may busy-wait")
    is_piece = len(cluster.nodes) < {whole!r}
    if KIND == "fails on pieces" and is_piece:
        raise CompileError("too small for me")
    if KIND == "names a node of pieces" and is_piece:
        raise CompileError("too small for me", node=cluster.nodes[0].name)
    if KIND == "dies on pieces" and is_piece:
        import os
        os._exit(3)
    if KIND == "hangs on pieces" and is_piece:
        time.sleep(600)
    if KIND == "hangs":
        time.sleep(600)

class Plain(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def estimate(self, cluster, settings):
        return None if ESTIMATE is None else Cost(ESTIMATE, 0.0, 0, "estimated", "fixed")

    def compile(self, cluster, settings):
        fault(cluster, settings)
        return Run(cluster)

    if KIND == "saves":
        def load(self, folder, cluster, settings):
            return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module
        self.is_wrong = KIND == "wrong on pieces" and len(cluster.nodes) < {whole!r}
        self.refuses = KIND == "refuses inputs of pieces" and len(cluster.nodes) < {whole!r}

    def __call__(self, *inputs):
        import torch
        if self.refuses:
            raise InputRefused("not these values")
        with torch.no_grad():
            return [value + (1.0 if self.is_wrong else 0.0) for value in self.module(*inputs)]

    def save(self, folder):
        (folder / "nothing").write_text("")
"""


def plugin(name: str, kind: str = "", *, whole: int = 0, estimate: float | None = None) -> tuple[str, str]:
    """Return name and source of a backend that runs its cluster in eager and fails in one way.

    A cluster of fewer nodes than `whole` counts as a piece.
    """
    return name, PLUGIN.format(name=name, kind=kind, whole=whole, estimate=estimate)


class Layer(nn.Module):
    """A small transformer layer: attention and an MLP, each added to a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [8, 32] to [8, 32]."""
        query, key, value = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0])
        return x + self.mlp(self.norms[1](x))


def layers(n: int) -> nn.Module:
    """Return n equal layers with their own weights."""
    return nn.Sequential(*(Layer() for _ in range(n))).eval()


def plan_for(model: nn.Module, cache: Path, **options: Any) -> hub.Plan:
    """Compile a model with a cache, call it, check the result against eager, and return the plan."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="hub", options={**QUICK, **options})
    with torch.no_grad(), variables_set({"HUB_CACHE_DIR": str(cache)}):
        result = compiled(X)
        torch.testing.assert_close(result, model(X))
    (plan,) = hub.plans(compiled)
    return plan


class Asked:
    """Counts of what sessions were requested to compile."""

    def __init__(self) -> None:
        self.sessions = 0
        """Sessions that timed anything."""
        self.wholes: Counter[str] = Counter()
        self.pieces: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call everything as if it were timed, but report `NODE_S` and `CLUSTER_S`, so that no clock decides."""
    eager_prices, price, time_runner = Session.eager_prices, Session.price, PlanRunners.time_runner

    def known_prices(self: Session) -> dict[str, float]:
        return dict.fromkeys(eager_prices(self), NODE_S["eager"])

    def known_price(self: Session, candidate: Candidate, at_least_s: float = 0.0) -> Candidate:
        priced = price(self, candidate, 0.0)
        if priced.cost is None:
            return priced
        run_s = seconds_of(candidate.backend, len(candidate.group.nodes))
        return replace(priced, cost=replace(priced.cost, run_s=run_s, spread_s=0.0))

    def known_block(self: PlanRunners, runner: PlanRunner, at_least_s: float) -> Block:
        block = time_runner(self, runner, 0.0)
        laps_s = tuple(seconds_of("eager" if step.is_eager else step.backend, len(step.nodes)) for step in runner.steps)
        return replace(block, seconds=sum(laps_s), laps_s=laps_s)

    monkeypatch.setattr(race, "MAX_ROUNDS", race.MIN_ROUNDS)
    monkeypatch.setattr(measure, "MAX_PRICING_ROUNDS", 1)  # else an endless budget would price ever more pieces
    monkeypatch.setattr(Session, "eager_prices", known_prices)
    monkeypatch.setattr(Session, "price", known_price)
    monkeypatch.setattr(PlanRunners, "time_runner", known_block)


def seconds_of(backend: str, n_nodes: int) -> float:
    """Return the seconds that a backend takes for a call of so many nodes."""
    return NODE_S.get(backend, NODE_S["alpha"]) * n_nodes + (0.0 if backend == "eager" else CLUSTER_S)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return counts of what planning requests from its sessions, from here on."""
    found = Asked()
    eager_prices, compile_all = Session.eager_prices, Session.compile_all

    def counted_prices(self: Session) -> Any:
        found.sessions += 1
        return eager_prices(self)

    def counted(self: Session, *given: Any, **named: Any) -> Any:
        compiled = compile_all(self, *given, **named)
        for candidate in compiled:  # what was not begun does not count
            (found.wholes if candidate.is_needed else found.pieces)[candidate.backend] += 1
        return compiled

    monkeypatch.setattr(Session, "eager_prices", counted_prices)
    monkeypatch.setattr(Session, "compile_all", counted)
    return found


@pytest.fixture
def two_backends(install_plugin: Callable[..., None]) -> tuple[str, ...]:
    """Return two backends that run everything, beta slower than alpha."""
    install_plugin(*plugin("alpha", "saves"))
    install_plugin(*plugin("beta", "saves"))
    return ("alpha", "beta")


def test_what_is_expected_to_be_far_behind_is_not_compiled(
    install_plugin: Callable[..., None], asked: Asked, tmp_path: Path
) -> None:
    """A backend that declares itself far slower than eager is not compiled, unless it is alone."""
    install_plugin(*plugin("near", estimate=1e-6))
    install_plugin(*plugin("far", estimate=1.0))
    plan = plan_for(layers(1), backends=("near", "far"), cache=tmp_path / "two")
    assert plan.decided_by == "measured whole plans"
    assert asked.wholes["near"] and not asked.wholes["far"]
    plan = plan_for(layers(1), backends=("far",), cache=tmp_path / "one")
    assert {cluster.backend for cluster in plan.clusters} == {"far"}


def test_estimates_of_no_time_at_all_are_no_error(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """A backend may say that its calls take nothing: they are timed all the same."""
    names = tuple(f"instant{n}" for n in range(5))
    for name in names:
        install_plugin(*plugin(name, estimate=0.0))
    plan = plan_for(layers(1), backends=names, cache=tmp_path)
    assert plan.decided_by == "measured whole plans"
    assert not [event.message for event in plan.events if "could not measure" in event.message]


def test_compilations_do_not_grow_with_layers(two_backends: Any, asked: Asked, tmp_path: Path) -> None:
    """A model of four times as many equal layers needs no more compilations."""
    counts = []
    for n in (2, 8):
        asked.wholes.clear()
        asked.pieces.clear()
        plan = plan_for(layers(n), backends=list(two_backends), cache=tmp_path / f"cache{n}")
        counts.append((dict(asked.pieces), asked.wholes["alpha"]))
        assert plan.search is not None
        assert plan.search.regions >= n
    assert counts[0][0]
    assert counts[0] == counts[1]


def test_second_model_finds_the_first_ones_prices(two_backends: Any, asked: Asked, tmp_path: Path) -> None:
    """Another model with the same layers compiles no piece again, and times less."""
    names = {"backends": list(two_backends), "cache": tmp_path / "cache"}
    first = plan_for(layers(3), **names)
    assert sum(asked.pieces.values()) > 0
    asked.pieces.clear()
    second = plan_for(layers(5), **names)
    assert second.decided_by == "measured whole plans"
    assert sum(asked.pieces.values()) == 0
    assert first.search is not None
    assert second.search is not None
    assert second.search.timed_now < first.search.timed_now


@pytest.mark.parametrize(
    "kind",
    ["fails on pieces", "names a node of pieces", "dies on pieces", "wrong on pieces", "refuses inputs of pieces"],
)
def test_failing_pieces_cost_nothing(kind: str, install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """A backend that fails on pieces still has its whole graph; the pieces' failures are notes, even under strict."""
    install_plugin(*plugin("alpha", kind, whole=20))
    install_plugin(*plugin("beta", "saves"))
    plan = plan_for(layers(2), backends=["alpha", "beta"], cache=tmp_path / "cache", strict=True)
    assert plan.decided_by == "measured whole plans"
    assert plan.backends == ("alpha",)
    assert len(plan.clusters) == 1
    failures = [event for event in plan.events if event.backend == "alpha"]
    assert failures
    assert {event.kind for event in failures} == {"note"}


def test_failing_without_spinning_is_no_failure_of_the_whole(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """A backend that fails only as it would run next to others keeps its whole graph, and its price is shown."""
    install_plugin(*plugin("alpha", "fails without busy-waiting"))
    install_plugin(*plugin("beta", "saves"))
    names = {"backends": ["alpha", "beta"], "cache": tmp_path / "cache"}
    plan = plan_for(layers(2), **names, tune="full")
    assert ("alpha", 1) in {(item.name, item.n_clusters) for item in plan.contenders}
    assert plan.backends == ("alpha",)
    (bid,) = (bid for bid in plan.clusters[0].bids if bid.backend == "alpha")
    assert bid.price is not None
    assert {event.kind for event in plan.events if event.backend == "alpha"} <= {"note"}


@pytest.mark.parametrize("kind", ["hangs on pieces", "hangs"])
def test_hanging_backend_is_given_up(
    kind: str, install_plugin: Callable[..., None], asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend whose compilation exceeds the budget is stopped, with at most one note, and another one's plan is kept."""

    def may_always_start(self: Clock, backend: str, *, is_needed: bool, expected_s: float = 0.0) -> bool:
        return True

    monkeypatch.setattr(Clock, "may_start", may_always_start)  # pieces too, on a slow machine
    install_plugin(*plugin("alpha", kind, whole=20))
    install_plugin(*plugin("beta", "saves"))
    plan = plan_for(layers(2), backends=["alpha", "beta"], cache=tmp_path / "cache", budget_s=2.0)
    assert (asked.pieces if kind == "hangs on pieces" else asked.wholes)["alpha"] > 0
    assert plan.decided_by == "measured whole plans"
    notes = [event for event in plan.events if event.backend == "alpha"]
    assert {event.kind for event in notes} <= {"note"}
    assert len(notes) == (1 if kind == "hangs" else 0)
    assert plan.backends == (("beta",) if kind == "hangs" else ("alpha",))


@pytest.mark.parametrize("content", [b"SQLite format 3\x00" + b"\x00" * 1000, b"not a database" * 1000], ids=len)
def test_broken_measurements_are_set_aside(content: bytes, two_backends: Any, tmp_path: Path) -> None:
    """A half-written or foreign store costs its prices and nothing else."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / DATABASE).write_bytes(content)
    plan = plan_for(layers(1), backends=list(two_backends), cache=cache)
    assert plan.decided_by == "measured whole plans"
    assert any("measurements" in event.message for event in plan.events if event.kind == "note")
    measurements, note = Measurements.open(cache)
    assert note == ""
    assert measurements.count() > 0


def test_store_of_another_version_is_set_aside(two_backends: Any, tmp_path: Path) -> None:
    """A store that another version wrote is ignored with a note."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    measurements, _ = Measurements.open(cache)
    measurements._connection.execute("PRAGMA user_version = 999")
    measurements.close()
    plan = plan_for(layers(1), backends=list(two_backends), cache=cache)
    assert plan.decided_by == "measured whole plans"
    assert any(event.kind == "note" and "measurements" in event.message for event in plan.events)


def test_accelerators_are_tried_with_no_other_threads(
    two_backends: Any, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled again for what only the CPU's threads would notice."""
    monkeypatch.setattr(measure, "is_on_accelerators", lambda graph: True)
    names = {"backends": list(two_backends), "cache": tmp_path / "cache", "threads": None}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        full = plan_for(layers(1), **names, tune="full")
    finally:
        torch.set_num_threads(before)
    assert full.decided_by == "measured whole plans"
    assert not any("thread" in item.name or "busy-waiting" in item.name for item in full.contenders)


def test_a_plan_shows_the_prices_of_its_own_settings(
    two_backends: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant for one thread has the same cluster, but was never timed alone: its guess is not the plan's price."""
    monkeypatch.setattr(measure, "SMALL_S", 1.0)
    torch.set_num_threads(2)
    try:
        plan = plan_for(layers(1), tmp_path / "cache", backends=list(two_backends), threads=None)
    finally:
        torch.set_num_threads(1)
    assert {"alpha", "alpha, 1 thread"} <= {item.name for item in plan.contenders}
    assert plan.threads == 2
    (cluster,) = plan.clusters
    prices = {bid.backend: bid.price for bid in cluster.bids}
    assert {name: price.source for name, price in prices.items() if price} == dict.fromkeys(two_backends, "measured")


def test_full_serves_fast(two_backends: Any, asked: Asked, tmp_path: Path) -> None:
    """Full tuning tries variants of the best plans, and its results also serve lower tuning modes."""
    names = {"backends": list(two_backends), "cache": tmp_path / "cache", "threads": None}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        full = plan_for(layers(1), **names, tune="full")
        fast = plan_for(layers(1), **names)
    finally:
        torch.set_num_threads(before)
    assert full.decided_by == "measured whole plans"
    assert any("1 thread" in item.name for item in full.contenders)
    assert any("busy-waiting" in item.name for item in full.contenders)
    assert fast.decided_by == "replayed"
    assert fast.effort == "full"
    assert asked.sessions == 1


def test_renew_decides_again(two_backends: Any, asked: Asked, tmp_path: Path) -> None:
    """With renew=True a kept plan is not used, but known prices are."""
    names = {"backends": list(two_backends), "cache": tmp_path / "cache"}
    plan_for(layers(2), **names)
    asked.pieces.clear()
    again = plan_for(layers(2), **names, renew=True)
    assert again.decided_by == "measured whole plans"
    assert asked.sessions == 2
    assert sum(asked.pieces.values()) == 0
    assert again.search is not None
    assert again.search.timed_now == 0


def test_a_backend_that_an_earlier_process_timed_can_still_be_mixed(
    two_backends: Any, asked: Asked, tmp_path: Path
) -> None:
    """Its whole plan is not compiled again, since it is known to be slower; its pieces may be faster."""
    names = {"backends": list(two_backends), "cache": tmp_path / "cache"}
    first = plan_for(layers(2), **names)
    asked.wholes.clear()
    second = plan_for(layers(2), **names, renew=True)
    assert asked.wholes["beta"] == 0
    assert first.search is not None
    assert second.search is not None
    assert second.search.candidates == first.search.candidates > 0
