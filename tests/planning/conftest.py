"""Fixtures of the planner's tests: contexts whose backends compile nothing, and whose prices the test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hub import hookimpl
from hub.cache.measurements import Measurements
from hub.config.options import Options
from hub.config.tables import CacheSettings
from hub.discovery.plugins import Plugin
from hub.discovery.registry import Registry
from hub.partition.group import Group
from hub.partition.verdicts import Verdicts, ask_backends
from hub.planning.context import PlanningContext, limits_of
from hub.planning.pricebook import PriceBook
from hub.plugin.backend import Backend, BackendInfo, CompileSettings, Proposal
from hub.plugin.cost import Cost
from hub.plugin.entry import Entry
from hub.plugin.graph import Cluster, Graph
from hub.plugin.table import ACCEPTED, Support, operator_name, refused
from hub.pricing.roofline import Peaks
from hub.report.progress import Progress
from hub.testing.single import capture
from hub.workers.candidate import Candidate
from hub.workers.compilation.report import Report
from hub.workers.in_process import InProcess
from hub.workers.session import Session
from hub.workers.transfer import Sample

GFLOPS = 100e9


class Null(Backend):
    """A backend that supports all operators but some, and compiles nothing."""

    def __init__(self, refuses: str, estimate_s: float | None) -> None:
        self.refuses = refuses
        self.estimate_s = estimate_s

    def supports(self, node: torch.fx.Node) -> Support:
        """Refuse the operators that it was set to refuse."""
        is_refused = bool(self.refuses) and self.refuses in operator_name(node)
        return refused(f"no {self.refuses} here") if is_refused else ACCEPTED

    def estimate(self, cluster: Cluster, settings: CompileSettings) -> Cost | None:
        """Return a fixed price, if it has one."""
        return None if self.estimate_s is None else Cost(self.estimate_s, 0.0, 0, "estimated", "fixed")

    def compile(self, cluster: Any, settings: Any) -> Any:
        """Fail if called."""
        raise NotImplementedError


class Proposing:
    """A plugin that proposes what a function returns."""

    def __init__(self, answer: Callable[[Graph], Iterable[Proposal]]) -> None:
        self.answer = answer

    @hookimpl
    def hub_candidates(self, graph: Graph) -> Iterable[Proposal]:
        """Return the proposals."""
        return self.answer(graph)


@dataclass(frozen=True)
class Stage:
    """A planning context with its verdicts and its price book."""

    context: PlanningContext
    verdicts: Verdicts
    book: PriceBook
    monkeypatch: pytest.MonkeyPatch

    @property
    def settings(self) -> CompileSettings:
        """Return the settings of pieces."""
        return self.context.settings(busy_wait=False)

    def again(self) -> Stage:
        """Return the same context as a later process would find it: the measurements, and nothing else."""
        return replace(self, book=PriceBook(self.context))

    def price(self, backend: str, nodes: Sequence[str], run_s: float, *, busy_wait: bool = False) -> None:
        """Record that a cluster was measured."""
        cost = Cost(run_s, run_s / 100, 0, "measured", "written by a test")
        settings, report = self.context.settings(busy_wait=busy_wait), Report(compile_s=0.1)
        self.book.keep(Candidate("k0", Group(backend, tuple(nodes)), settings, (), report=report, cost=cost))

    def slow_eager(self) -> None:
        """Make eager a bad choice in tests that are about backends."""
        self.monkeypatch.setattr(PriceBook, "_learned_eager_s", lambda book, name: 10e-3)

    def price_whole(self, backend: str, run_s: float, *, busy_wait: bool = True) -> None:
        """Record that a backend was measured on everything in the graph that it supports."""
        nodes = [node.name for node in self.context.graph.nodes if self.verdicts.takes(backend, node.name)]
        self.price(backend, nodes, run_s, busy_wait=busy_wait)


@pytest.fixture(autouse=True)
def _fixed_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the peaks, so that estimates do not depend on the machine that runs the tests."""
    monkeypatch.setattr("hub.pricing.roofline.peaks", lambda threads, device=None: Peaks(GFLOPS, 10e9))


@pytest.fixture
def set_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """Return `set_stage(module, inputs, backends)`: `backends` maps names to the operator that each refuses."""

    def build(
        module: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        backends: Mapping[str, str],
        *,
        options: Options | None = None,
        proposes: Callable[[Graph], Iterable[Proposal]] | None = None,
        estimate_s: float | None = None,
    ) -> Stage:
        plugins = () if proposes is None else (Plugin.of("proposing", Proposing(proposes)),)
        infos = (BackendInfo(name=name, factory=f"{__name__}:Null", summary="") for name in backends)
        registry = Registry([Entry(info, info.name, "1.0", ACCEPTED) for info in infos], plugins)
        for name, refuses in backends.items():
            registry._loaded[name] = Null(refuses, estimate_s)  # this module is not importable by name
        captured = capture(module, inputs)
        own = CacheSettings(dir=tmp_path / "cache")  # never the user's: another hub may use that, with another schema
        chosen = options or Options(threads=1)
        chosen = chosen if chosen.cache.dir else chosen.model_copy(update={"cache": own})
        measurements, note = Measurements.open(chosen.cache.root)
        assert note == ""
        sample = Sample(captured.graph, captured.inputs)
        folder = chosen.cache.root / "artifacts"
        session, here = Session(sample, 1, limits_of(chosen.workers), options=chosen), InProcess(sample, registry)
        context = PlanningContext(sample, chosen, 1, registry, folder, measurements, Progress(), session, here)
        verdicts = ask_backends(captured.graph, registry, chosen, partial(here.answers, options=chosen))
        return Stage(context, verdicts, PriceBook(context), monkeypatch)

    return build
