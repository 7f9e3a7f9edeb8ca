"""Decisions by measuring: what is compiled, what is kept, and what a later process or another model finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.cache.measurements import Measurements
from hub.planning import measure
from hub.workers.session import Session

X = torch.ones(8, 32)
QUICK = {"tune": "fast", "budget_s": 6.0, "threads": 1}

PLUGIN = """
from hub import Backend, BackendInfo, CompileSettings, Cost, Executable, Support, hookimpl
from hub.errors import CompileError, InputRefused
import time

KIND = {kind!r}
WAITS = {waits!r}
ESTIMATE = {estimate!r}

@hookimpl
def hub_backends():
    return [BackendInfo(name="{name}", factory="hub_{name}:create", summary="", saveable=KIND == "saves")]

def create():
    return Plain()

def fault(cluster, settings):
    if KIND == "fails without spinning" and not settings.spin:
        raise CompileError("only if I may spin")
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

    def load(self, folder, cluster, settings):
        return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module
        self.is_wrong = KIND == "wrong on pieces" and len(cluster.nodes) < {whole!r}
        self.refuses = KIND == "refuses inputs of pieces" and len(cluster.nodes) < {whole!r}
        self.inputs, self.outputs = (), ()

    def __call__(self, *inputs):
        import torch
        if self.refuses:
            raise InputRefused("not these values")
        time.sleep(WAITS)
        if len(inputs) != len(self.inputs) or not all(map(torch.equal, inputs, self.inputs)):
            with torch.no_grad():
                self.outputs = [value + (1.0 if self.is_wrong else 0.0) for value in self.module(*inputs)]
            self.inputs = [value.clone() for value in inputs]
        return [value.clone() for value in self.outputs]

    def save(self, folder):
        (folder / "nothing").write_text("")
"""


def plugin(
    name: str, kind: str = "", *, waits: float = 0.0, whole: int = 0, estimate: float | None = None
) -> tuple[str, str]:
    """Gives name and source of a backend that waits, runs its cluster in eager, and fails in one way.

    It remembers its last result, which makes it faster than eager for sure. A cluster of fewer nodes than `whole` counts
    as a piece.
    """
    return name, PLUGIN.format(name=name, kind=kind, waits=waits, whole=whole, estimate=estimate)


class Layer(nn.Module):
    """A small transformer layer: attention and an MLP, each beside a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[8, 32] to [8, 32]."""
        query, key, value = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0])
        return x + self.mlp(self.norms[1](x))


def layers(n: int) -> nn.Module:
    """Gives n equal layers with their own weights."""
    return nn.Sequential(*(Layer() for _ in range(n))).eval()


def plan_for(model: nn.Module, **options: Any) -> hub.Plan:
    """Compiles a model, calls it, checks the result against eager, and gives the plan."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="hub", options={**QUICK, **options})
    with torch.no_grad():
        result = compiled(X)
        torch.testing.assert_close(result, model(X))
    (plan,) = hub.plans(compiled)
    return plan


class Orders:
    """Counts what sessions were asked to compile."""

    def __init__(self) -> None:
        self.sessions = 0
        """Sessions that timed anything."""
        self.wholes: Counter[str] = Counter()
        self.pieces: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _short_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here reads a proof's figures, so none waits for good ones."""
    monkeypatch.setattr("hub.planning.race.BLOCK_S", 0.01)
    monkeypatch.setattr("hub.planning.measure.MIN_HEAT_S", 0.2)
    monkeypatch.setattr("hub.planning.measure.MAX_HEAT_S", 1.0)
    monkeypatch.setattr("hub.planning.measure.ALONE_S", 0.02)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    """Gives what planning asks its sessions for, from now on."""
    found = Orders()
    eager_prices, compile_all = Session.eager_prices, Session.compile_all

    def counted_prices(self: Session) -> Any:
        found.sessions += 1
        return eager_prices(self)

    def counted(self: Session, wanted: Mapping[str, Any], *rest: Any) -> Any:
        for backend, items in wanted.items():
            for order in items:
                (found.wholes if order.is_needed else found.pieces)[backend] += 1
        return compile_all(self, wanted, *rest)

    monkeypatch.setattr(Session, "eager_prices", counted_prices)
    monkeypatch.setattr(Session, "compile_all", counted)
    return found


@pytest.fixture
def two_backends(install_plugin: Callable[..., None]) -> tuple[str, ...]:
    """Two backends that run everything, one of them slower."""
    install_plugin(*plugin("alpha", "saves"))
    install_plugin(*plugin("beta", "saves", waits=0.002))
    return ("alpha", "beta")


def test_what_is_expected_to_be_far_behind_is_not_compiled(
    install_plugin: Callable[..., None], orders: Orders, tmp_path: Path
) -> None:
    """A backend that says itself that it is far slower than eager is not asked to compile, unless it is alone."""
    install_plugin(*plugin("near", estimate=1e-6))
    install_plugin(*plugin("far", estimate=1.0))
    plan = plan_for(layers(1), backends=("near", "far"), cache_dir=str(tmp_path / "two"))
    assert plan.decided_by == "measured whole plans"
    assert orders.wholes["near"] and not orders.wholes["far"]
    plan = plan_for(layers(1), backends=("far",), cache_dir=str(tmp_path / "one"))
    assert {cluster.backend for cluster in plan.clusters} == {"far"}


def test_compilations_do_not_grow_with_layers(two_backends: Any, orders: Orders, tmp_path: Path) -> None:
    """A model of four times as many equal layers needs no more compilations."""
    counts = []
    for n in (2, 8):
        orders.wholes.clear()
        orders.pieces.clear()
        plan = plan_for(layers(n), backends=list(two_backends), cache_dir=str(tmp_path / f"cache{n}"))
        counts.append((dict(orders.pieces), orders.wholes["alpha"]))
        assert plan.search is not None
        assert plan.search.regions >= n
    assert counts[0][0]
    assert counts[0] == counts[1]


def test_second_model_finds_the_first_ones_prices(two_backends: Any, orders: Orders, tmp_path: Path) -> None:
    """Another model with the same layers compiles no piece again, and times less."""
    names = {"backends": list(two_backends), "cache_dir": str(tmp_path / "cache"), "budget_s": 30.0}
    first = plan_for(layers(3), **names)
    assert sum(orders.pieces.values()) > 0
    orders.pieces.clear()
    second = plan_for(layers(5), **names)
    assert second.decided_by == "measured whole plans"
    assert sum(orders.pieces.values()) == 0
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
    install_plugin(*plugin("beta", "saves", waits=0.002))
    plan = plan_for(layers(2), backends=["alpha", "beta"], cache_dir=str(tmp_path / "cache"), strict=True)
    assert plan.decided_by == "measured whole plans"
    assert plan.backends == ("alpha",)
    assert len(plan.clusters) == 1
    failures = [event for event in plan.events if event.backend == "alpha"]
    assert failures
    assert {event.kind for event in failures} == {"note"}


def test_failing_without_spinning_is_no_failure_of_the_whole(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """A backend that only cannot be had as it would run beside others keeps its whole graph, and its price is shown."""
    install_plugin(*plugin("alpha", "fails without spinning"))
    install_plugin(*plugin("beta", "saves", waits=0.002))
    names = {"backends": ["alpha", "beta"], "cache_dir": str(tmp_path / "cache")}
    plan = plan_for(layers(8), **names, tune="full", budget_s=30.0)  # so many that no noise makes eager look as fast
    assert ("alpha", 1) in {(item.name, item.n_clusters) for item in plan.contenders}
    assert plan.backends == ("alpha",)
    (bid,) = (bid for bid in plan.clusters[0].bids if bid.backend == "alpha")
    assert bid.price is not None
    assert {event.kind for event in plan.events if event.backend == "alpha"} <= {"note"}


@pytest.mark.parametrize("kind", ["hangs on pieces", "hangs"])
def test_hanging_backend_is_given_up(kind: str, install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """A backend whose compilation outlasts the budget is stopped, with at most one note, and another one's plan is kept."""
    install_plugin(*plugin("alpha", kind, waits=0.002, whole=20))
    install_plugin(*plugin("beta", "saves"))
    plan = plan_for(layers(2), backends=["alpha", "beta"], cache_dir=str(tmp_path / "cache"), budget_s=2.0)
    assert plan.decided_by == "measured whole plans"
    notes = [event for event in plan.events if event.backend == "alpha"]
    assert {event.kind for event in notes} <= {"note"}
    assert len(notes) == (1 if kind == "hangs" else 0)
    assert "beta" in {item.name.partition(",")[0] for item in plan.contenders}


@pytest.mark.parametrize("content", [b"SQLite format 3\x00" + b"\x00" * 50, b"not a database" * 1000], ids=len)
def test_broken_measurements_are_set_aside(content: bytes, two_backends: Any, tmp_path: Path) -> None:
    """A store that is half-written or something else costs its prices and nothing else."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / "measurements.sqlite").write_bytes(content)
    plan = plan_for(layers(1), backends=list(two_backends), cache_dir=str(cache))
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
    plan = plan_for(layers(1), backends=list(two_backends), cache_dir=str(cache))
    assert plan.decided_by == "measured whole plans"
    assert any(event.kind == "note" and "measurements" in event.message for event in plan.events)


def test_accelerators_are_tried_with_no_other_threads(
    two_backends: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled again for what only the CPU's threads would notice."""
    monkeypatch.setattr(measure, "is_on_accelerators", lambda graph: True)
    names = {"backends": list(two_backends), "cache_dir": str(tmp_path / "cache"), "threads": None}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        full = plan_for(layers(1), **names, tune="full", budget_s=15.0)
    finally:
        torch.set_num_threads(before)
    assert full.decided_by == "measured whole plans"
    assert not any("thread" in item.name or "spinning" in item.name for item in full.contenders)


def test_full_serves_fast(two_backends: Any, orders: Orders, tmp_path: Path) -> None:
    """Full tuning tries other habits of the best plans, and what it keeps also serves those who ask for less."""
    names = {"backends": list(two_backends), "cache_dir": str(tmp_path / "cache"), "threads": None}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        full = plan_for(layers(1), **names, tune="full", budget_s=30.0)
        fast = plan_for(layers(1), **names)
    finally:
        torch.set_num_threads(before)
    assert full.decided_by == "measured whole plans"
    assert any("1 thread" in item.name for item in full.contenders)
    assert any("spinning" in item.name for item in full.contenders)
    assert fast.decided_by == "replayed"
    assert fast.effort == "full"
    assert orders.sessions == 1


def test_renew_decides_again(two_backends: Any, orders: Orders, tmp_path: Path) -> None:
    """With renew=True a kept plan is not used, and the prices that are known are."""
    names = {"backends": list(two_backends), "cache_dir": str(tmp_path / "cache")}
    plan_for(layers(2), **names)
    orders.pieces.clear()
    again = plan_for(layers(2), **names, renew=True)
    assert again.decided_by == "measured whole plans"
    assert orders.sessions == 2
    assert sum(orders.pieces.values()) == 0
    assert again.search is not None
    assert again.search.timed_now == 0
