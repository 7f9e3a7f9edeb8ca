"""Building the plan that was decided: what the next process needs is saved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from hub.cache.measurements import Measurements
from hub.cache.store import Store
from hub.config.options import Options
from hub.config.tables import CacheSettings
from hub.discovery.registry import registry
from hub.partition.assignments import Assignment
from hub.partition.group import Group
from hub.plan import DecidedBy
from hub.planning.building import Builder
from hub.planning.context import PlanningContext, limits_of
from hub.planning.decision import Decision
from hub.report.progress import Progress
from hub.testing.single import capture
from hub.workers.clock import Clock
from hub.workers.session import Session
from hub.workers.transfer import Sample
from tests.toys import toy


def test_a_piece_that_wins_is_saved(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """It was compiled for its price alone; the process that serves loads it nevertheless."""
    install_plugin("toy", toy(saveable=True))
    captured = capture(nn.Linear(8, 8).eval(), [torch.randn(2, 8)])
    options = Options(cache=CacheSettings(dir=tmp_path / "cache"), threads=1, backends=("toy",))
    store, sample = Store(options.cache.root), Sample(captured.graph, captured.inputs)
    measurements, _ = Measurements.open(store.root)
    session = Session(sample, 1, limits_of(options.workers), options=options)
    with contextlib.closing(measurements), session:
        context = PlanningContext(
            *(sample, options, 1, registry(), store.root / "artifacts", measurements, Progress(), session, session)
        )
        found = Group("toy", tuple(node.name for node in captured.graph.nodes))
        settings = context.settings(busy_wait=False)
        piece = context.candidate("k0", found, settings, is_needed=False, is_saved=False)
        (priced,) = session.compile_all({"toy": [piece]}, lambda _: None, Clock(60.0))
        assert priced.failure is None
        assert priced.saved_in is None
        builder = Builder(context, store)
        builder.build(Decision(Assignment("toy", (found,)), DecidedBy.MEASURED_PLANS, settings))
        assert store.has_artifact(context.folder(found, settings))
        assert [candidate.saved_in for candidate in builder.served.values()] == [context.folder(found, settings)]
