"""Decisions by prices alone: the plan follows the measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import hub
from hub.config.options import Options
from hub.config.tables import CacheSettings
from hub.errors import WorkerError
from hub.partition.assignments import assignment, assignments
from hub.partition.group import Group
from hub.partition.verdicts import before_asking
from hub.plan import Event, EventKind, Stage
from hub.planning import measure, pricebook
from hub.planning.asking import ask
from hub.planning.decide import decide
from hub.planning.decision import Decision
from hub.planning.mixes import Mixer
from hub.planning.pricebook import PriceBook
from hub.plugin.backend import Proposal
from hub.plugin.cost import Cost
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name
from hub.workers.in_process import InProcess
from hub.workers.session import Session

X = torch.ones(64, 64)
MS = 1e-3


class Block(nn.Module):
    """A product and a function of its result."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [64, 64] to [64, 64]."""
        return self.function(self.linear(x))


def halves(n: int = 3) -> nn.Module:
    """Return equal blocks with tanh, then equal blocks with sigmoid."""
    return nn.Sequential(*(Block(torch.tanh) for _ in range(n)), *(Block(torch.sigmoid) for _ in range(n))).eval()


def price_halves(stage: Any, **prices_s: tuple[float, float]) -> None:
    """Record, by backend, what a block of either kind costs, and the whole as their sum."""
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    for backend, (tanh_s, sigmoid_s) in prices_s.items():
        stage.price(backend, sections[0].region.nodes, tanh_s)
        stage.price(backend, sections[-1].region.nodes, sigmoid_s)
        stage.price_whole(backend, len(sections) / 2 * (tanh_s + sigmoid_s))


def predicted(stage: Any) -> Decision:
    """Decide without measuring, as a later process would, which has only the store."""
    later = stage.again()
    return decide(later.context, later.verdicts, may_measure=False)


def where(stage: Any, decision: Decision, kind: str) -> set[str]:
    """Return the backends that operators of one kind are assigned to."""
    by_name = stage.context.graph.by_name
    return {
        group.backend
        for group in decision.assignment.groups
        for name in group.nodes
        if kind in operator_name(by_name[name])
    }


@pytest.mark.parametrize("estimate_s", [None, 1e-6, 1.0], ids=["roofline", "optimist", "pessimist"])
def test_measured_pieces_predict_a_mix(set_stage: Callable[..., Any], estimate_s: float | None) -> None:
    """If measured prices say that either backend is better at one half, each gets its half, whatever it estimates."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""}, estimate_s=estimate_s)
    stage.slow_eager()
    price_halves(stage, one=(1 * MS, 2 * MS), two=(2 * MS, 1 * MS))
    decision = predicted(stage)
    assert decision.assignment.backends == ("one", "two")
    assert len(decision.assignment.clusters) == 2
    assert where(stage, decision, "tanh") == {"one"}
    assert where(stage, decision, "sigmoid") == {"two"}


@pytest.mark.parametrize("estimate_s", [None, 1e-6, 1.0], ids=["roofline", "optimist", "pessimist"])
def test_measured_whole_beats_estimates(set_stage: Callable[..., Any], estimate_s: float | None) -> None:
    """A mix without any measurement does not win by optimistic estimates."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""}, estimate_s=estimate_s)
    stage.slow_eager()
    stage.price_whole("one", 5 * MS)
    stage.price_whole("two", 6 * MS)
    assert predicted(stage).assignment.backends == ("one",)


@pytest.mark.parametrize("estimate_s", [math.inf, -1.0, math.nan])
def test_an_impossible_estimate_costs_only_that_estimate(set_stage: Callable[..., Any], estimate_s: float) -> None:
    """What is not finite would spoil every sum; the plan says whose estimate is missing."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""}, estimate_s=estimate_s)
    stage.slow_eager()
    stage.price_whole("two", 5 * MS)
    decision = predicted(stage)
    said = {(event.backend, str(event.stage)) for event in decision.events if "finite number" in event.message}
    assert said == {("one", "estimate"), ("two", "estimate")}
    assert decision.assignment.backends == ("two",)


def test_eager_is_timed_once(set_stage: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times decide which of many backends are asked, and then between these."""
    options = Options(cache=CacheSettings(dir=tmp_path / "cache"), threads=1, tune="off")
    context = set_stage(halves(), (X,), dict.fromkeys("abcde", ""), options=options).context
    n_times = 0

    def timed(workers: InProcess) -> dict[str, float]:
        nonlocal n_times
        n_times += 1
        return {node.name: MS for node in context.graph.nodes}

    monkeypatch.setattr(InProcess, "eager_prices", timed)
    decide(context, before_asking(context.graph, context.registry, options), may_measure=True)
    assert n_times == 1


def test_without_isolation_eager_is_timed_with_the_rest(
    set_stage: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process times nothing to decide which of many backends are asked, so measuring does it later."""
    options = Options(cache=CacheSettings(dir=tmp_path / "cache"), threads=1, tune="fast", isolate=False)
    context = set_stage(halves(), (X,), dict.fromkeys("abcde", ""), options=options).context
    timed: list[Session] = []

    def stop(session: Session) -> NoReturn:
        timed.append(session)
        raise WorkerError("that was all")

    monkeypatch.setattr(Session, "eager_prices", stop)
    decide(context, before_asking(context.graph, context.registry, options), may_measure=True)
    assert timed == [context.session]


@pytest.mark.parametrize("raises", [True, False])
def test_a_decision_without_a_race_knows_what_was_found_before(
    set_stage: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """Backends that were asked meanwhile can win, what has failed cannot, and the plan reports what happened."""
    options = Options(cache=CacheSettings(dir=tmp_path / "cache"), threads=1, tune="fast")
    stage = set_stage(halves(), (X,), dict.fromkeys("abcde", ""), options=options)
    stage.slow_eager()
    context = stage.context
    later: list[str] = []

    def end_early(self: measure._Measuring) -> None:
        first, later[:] = self.verdicts.backends, self.verdicts.unasked
        self.verdicts = ask(context, self.verdicts, self.book, later)
        for name in (*first, *later):
            replace(stage, book=self.book).price_whole(name, 1 * MS if name in later else 20 * MS)
        failing = assignment(self.verdicts, later[:1], options)
        self.book.fail(failing.clusters[0], "it broke")
        self.events.append(Event(kind=EventKind.NOTE, stage=Stage.TIME, message="it was slow"))
        if raises:
            raise WorkerError("no more processes")

    monkeypatch.setattr(measure._Measuring, "decide", end_early)
    decision = decide(context, before_asking(context.graph, context.registry, options), may_measure=True)
    assert decision.assignment.backends == (later[1],)
    messages = [event.message for event in decision.events]
    assert "it was slow" in messages
    assert any("no more processes" in text if raises else "no whole plan" in text for text in messages)


def test_a_machine_that_cannot_be_measured_is_planned_for_all_the_same(
    set_stage: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its profile only makes predictions better, so a process that cannot be started for it is a note."""
    options = Options(cache=CacheSettings(dir=tmp_path / "cache"), threads=1, tune="full", budget_s=600.0)
    stage = set_stage(halves(), (X,), dict.fromkeys("ab", ""), options=options)

    def fail(*_: Any) -> NoReturn:
        raise WorkerError("too many processes")

    monkeypatch.setattr(measure, "measure_profile", fail)
    measure._measure_machine(stage.context, stage.verdicts, stage.book)
    assert [event.message for event in stage.book.events] == ["the machine could not be measured: too many processes"]


def test_measurements_on_other_devices_do_not_silence_a_backends_estimate(
    set_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices of a CPU say nothing about an accelerator: until enough are known there, the backend is asked."""
    stage = set_stage(halves(), (X,), {"one": ""}, estimate_s=7 * MS)
    price_halves(stage, one=(1 * MS, 2 * MS))
    monkeypatch.setattr(pricebook, "MIN_SAMPLES", 3)
    nodes = tuple(node.name for node in stage.context.graph.nodes)
    found = Group("one", nodes[:2])
    assert stage.again().book.guess(found, stage.settings).detail != "fixed"
    features = pricebook.features_of
    monkeypatch.setattr(pricebook, "features_of", lambda *given: {**features(*given), "device": 1.0})
    assert stage.again().book.guess(found, stage.settings).detail == "fixed"


def compile_times(stage: Any, **seconds: float) -> None:
    """Set the expected seconds of compilation, by backend."""
    stage.monkeypatch.setattr(PriceBook, "compile_s", lambda _, found, __: seconds[found.backend])


@pytest.mark.parametrize(("slower", "winner"), [(1.05, "two"), (1.5, "one")])
def test_a_prediction_does_not_justify_any_time_of_compilation(
    set_stage: Callable[..., Any], slower: float, winner: str
) -> None:
    """A few percent, which predictions are off by, are not worth a minute; half as much again is."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    stage.slow_eager()
    compile_times(stage, one=60.0, two=1.0)
    times_s = {"one": 10 * MS, "two": slower * 10 * MS}
    learned = {name: Cost(run_s, 0.0, 0, "learned", "set by a test") for name, run_s in times_s.items()}
    stage.monkeypatch.setattr(PriceBook, "guess", lambda _, found, __: learned[found.backend])
    assert predicted(stage).assignment.backends == (winner,)


def test_measured_times_decide_whatever_compilation_takes(set_stage: Callable[..., Any]) -> None:
    """What was measured is known, and what was measured is compiled already."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    stage.slow_eager()
    compile_times(stage, one=600.0, two=1.0)
    stage.price_whole("one", 5.0 * MS)
    stage.price_whole("two", 5.5 * MS)
    assert predicted(stage).assignment.backends == ("one",)


def test_eager_has_measured_prices_too(set_stage: Callable[..., Any]) -> None:
    """Measured seconds of operators in eager replace the roofline's estimates in later plans."""
    stage = set_stage(halves(), (X,), {"one": ""})
    stage.price_whole("one", 1 * MS)
    assert predicted(stage).assignment.backends == ()
    nodes = [node.name for node in stage.context.graph.nodes]
    stage.book.keep_eager(dict.fromkeys(nodes, 1 * MS))
    decision = predicted(stage)
    assert decision.assignment.backends == ("one",)
    assert dict(decision.eager_s) == pytest.approx(dict.fromkeys(nodes, 1 * MS))


def test_what_was_timed_beside_the_users_calls_serves_this_plan_alone(set_stage: Callable[..., Any]) -> None:
    """Such a time depends on who got the cores; a later process must not take it for the backend's or eager's own time."""
    stage = set_stage(halves(), (X,), {"one": ""})
    nodes = [node.name for node in stage.context.graph.nodes]
    whole = Group("one", tuple(nodes))
    stage.context.session.is_disturbed = True
    stage.price_whole("one", 7 * MS)
    stage.book.keep_eager(dict.fromkeys(nodes, 3 * MS))
    settings = stage.context.settings(busy_wait=True)
    assert stage.book.measured(whole, settings).run_s == 7 * MS
    later = stage.again().book
    assert later.measured(whole, settings) is None
    assert not later.knows_eager


def test_mixes_are_predicted_without_spinning(set_stage: Callable[..., Any]) -> None:
    """What a backend gains by busy-waiting alone, it does not gain next to another one: such a mix is not chosen."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    stage.slow_eager()
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    for backend, prices_s in {"one": (1 * MS, 2 * MS), "two": (2 * MS, 1 * MS)}.items():
        for section, run_s in zip((sections[0], sections[-1]), prices_s, strict=True):
            stage.price(backend, section.region.nodes, run_s)
        stage.price_whole(backend, 5.4 * MS)
    assert len(predicted(stage).assignment.backends) == 2
    for backend in ("one", "two"):
        stage.price_whole(backend, 9 * MS, busy_wait=False)
    assert len(predicted(stage).assignment.backends) == 1


def test_explain_predicts_the_mix(set_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`hub.explain` returns the mix that measured prices suggest, and compiles nothing."""
    model = halves()
    stage = set_stage(model, (X,), {"one": "", "two": ""})
    stage.slow_eager()
    price_halves(stage, one=(1 * MS, 2 * MS), two=(2 * MS, 1 * MS))
    monkeypatch.setattr("hub.frontend.explaining.registry", lambda: stage.context.registry)
    monkeypatch.setenv("HUB_CACHE_DIR", str(stage.context.options.cache.root))
    (plan,) = hub.explain(model, X, options={"threads": 1, "isolate": False})
    assert plan.backends == ("one", "two")
    assert plan.decided_by.startswith("measured")
    assert plan.search is not None
    assert plan.search.compiled == plan.search.timed_now == 0


def test_one_backend_best_everywhere_is_not_split(set_stage: Callable[..., Any]) -> None:
    """A backend that is best at every block gets all of them, in one cluster."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    stage.slow_eager()
    price_halves(stage, one=(1 * MS, 1 * MS), two=(2 * MS, 1.5 * MS))
    decision = predicted(stage)
    assert decision.assignment.backends == ("one",)
    assert len(decision.assignment.clusters) == 1


def test_ties_go_to_fewer_clusters(set_stage: Callable[..., Any]) -> None:
    """If a mix is no faster, one cluster is kept."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    stage.slow_eager()
    price_halves(stage, one=(1 * MS, 1 * MS), two=(1 * MS, 1 * MS))
    assert len(predicted(stage).assignment.clusters) == 1


def test_mixing_must_pay(set_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """If mixing costs more than it saves, one backend keeps the whole graph."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    stage.slow_eager()
    price_halves(stage, one=(1 * MS, 2 * MS), two=(2 * MS, 1 * MS))
    monkeypatch.setattr("hub.pricing.profile.MIX_S", 10 * MS)
    assert len(predicted(stage).assignment.backends) == 1


def move(graph: Graph) -> None:
    """Make a graph look as if it were computed on CUDA."""
    with FakeTensorMode():
        for node in graph.by_name.values():
            if node.op != "output":
                node.meta["val"] = torch.empty(node.meta["val"].shape, device="cuda:0")


def test_prices_are_learned_from_the_same_kind_of_device(
    set_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind has a model of its own, fitted to the store's samples of a backend."""
    asked: list[float] = []
    monkeypatch.setattr("hub.planning.pricebook.LearnedPrices.fit", lambda _, device: asked.append(device))  # pyright: ignore[reportUnknownLambdaType]
    stage = set_stage(halves(), (X,), {"one": ""})
    (whole,) = (found for found in assignments(stage.verdicts, stage.context.options)[0].clusters)
    stage.book.guess(whole, stage.settings)
    move(stage.context.graph)
    stage.again().book.guess(whole, stage.settings)
    assert list(dict.fromkeys(asked)) == [0.0, 1.0]


def test_backends_on_one_accelerator_mix_for_nothing(
    set_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No CPU threads compute there, so no thread pool has to yield to another."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    move(stage.context.graph)
    stage.slow_eager()
    price_halves(stage, one=(1 * MS, 2 * MS), two=(2 * MS, 1 * MS))
    monkeypatch.setattr("hub.pricing.profile.MIX_S", 10 * MS)
    assert set(predicted(stage).assignment.backends) == {"one", "two"}


def test_costly_calls_must_pay(set_stage: Callable[..., Any]) -> None:
    """Alternating blocks whose calls cost more than the other backend saves stay together."""
    model = nn.Sequential(*(Block(kind) for _ in range(4) for kind in (torch.tanh, torch.sigmoid))).eval()
    stage = set_stage(model, (X,), {"one": "", "two": ""})
    stage.slow_eager()
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    for backend, prices_s in (("one", (1.00 * MS, 1.01 * MS)), ("two", (1.01 * MS, 1.00 * MS))):
        stage.price(backend, sections[0].region.nodes, prices_s[0])
        stage.price(backend, sections[1].region.nodes, prices_s[1])
        stage.price_whole(backend, 6 * MS)
    assert len(predicted(stage).assignment.clusters) == 1


def test_refused_block_goes_to_who_takes_it(set_stage: Callable[..., Any]) -> None:
    """A fast backend that refuses some operators gets the rest, and those go to the one that supports them."""
    stage = set_stage(halves(), (X,), {"fast": "sigmoid", "all": ""})
    stage.slow_eager()
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    for name, prices_s in (("fast", (0.1 * MS, 3 * MS)), ("all", (3 * MS, 1 * MS))):
        for section, price_s in ((sections[0], prices_s[0]), (sections[-1], prices_s[1])):
            for piece in section.pieces[name]:
                stage.price(name, piece.nodes, price_s)
    stage.price_whole("all", 12 * MS)
    decision = predicted(stage)
    assert where(stage, decision, "tanh") == {"fast"}
    assert where(stage, decision, "sigmoid") == {"all"}


def test_proposals_are_candidates(set_stage: Callable[..., Any]) -> None:
    """What a plugin proposes competes by its price, and wins if that is lowest."""
    stage = set_stage(halves(2), (X,), {"all": "", "fused": ""}, proposes=sigmoids)
    stage.slow_eager()
    price_halves(stage, all=(1 * MS, 2 * MS))
    proposal = next(iter(sigmoids(stage.context.graph)))
    stage.price("fused", proposal.nodes, 0.1 * MS)
    stage.price_whole("fused", 20 * MS)
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    for section in (sections[0], sections[-1]):
        stage.price("fused", section.region.nodes, 5 * MS)
    stage.price("all", [name for section in sections[:2] for name in section.region.nodes], 2 * MS)
    decision = predicted(stage)
    assert where(stage, decision, "sigmoid") == {"fused"}
    assert where(stage, decision, "tanh") == {"all"}
    assert decision.search.method == "milp" or decision.search.gap == 0.0


def test_unusable_proposals_are_noted(set_stage: Callable[..., Any]) -> None:
    """A proposal that cannot be used is named, and the plan is made without it."""
    stage = set_stage(
        halves(1), (X,), {"one": "", "two": ""}, proposes=lambda graph: [Proposal("one", ("nowhere",), "odd")]
    )
    decision = predicted(stage)
    assert any("odd" in event.message and event.kind == "refused" for event in decision.events)
    assert decision.assignment.groups


def test_same_store_same_plan(set_stage: Callable[..., Any]) -> None:
    """The same model and the same measurements give the same plan."""
    stage = set_stage(halves(), (X,), {"one": "", "two": "tanh", "three": ""})
    price_halves(stage, one=(1 * MS, 2 * MS), three=(2 * MS, 1 * MS))
    first, second = predicted(stage), predicted(stage)
    assert first.assignment == second.assignment
    assert first.costs == second.costs
    assert first.search == second.search


def test_search_tells_what_was_looked_at(set_stage: Callable[..., Any]) -> None:
    """The evidence counts regions, different ones, candidates, and those with a measured price."""
    stage = set_stage(halves(), (X,), {"one": "", "two": ""})
    price_halves(stage, one=(1 * MS, 2 * MS))
    search = predicted(stage).search
    assert (search.regions, search.structures, search.candidates, search.measured) == (6, 2, 4, 2)
    assert search.gap == 0.0


def sigmoids(graph: Graph) -> Iterable[Proposal]:
    """Propose everything from the product before the first sigmoid on."""
    names = [node.name for node in graph.nodes]
    first = next(index for index, node in enumerate(graph.nodes) if "sigmoid" in operator_name(node))
    yield Proposal("fused", tuple(names[first - 1 :]), "sigmoids")
