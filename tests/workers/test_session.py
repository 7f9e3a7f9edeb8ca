"""Sessions: a worker that ends, for whatever reason, takes nothing with it that is still needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

from hub.config.options import Options
from hub.dispatch.codegen import Step
from hub.errors import PluginError, WorkerError
from hub.partition.group import Group
from hub.planning.race import MIN_ROUNDS, Race
from hub.planning.steps import reads, steps_for
from hub.plugin.backend import CompileSettings
from hub.pricing import roofline
from hub.testing.single import capture
from hub.workers.candidate import Candidate
from hub.workers.clock import Clock
from hub.workers.limits import Limits
from hub.workers.session import Session
from hub.workers.transfer import Sample

PLUGIN = """
import os
from hub import Backend, BackendInfo, Executable, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="frail", factory="hub_frail:create", summary="")]

def create():
    return Frail()

class Frail(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        if len(cluster.nodes) == 1:
            os._exit(3)
        return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        import torch
        with torch.no_grad():
            return [value + 0 for value in self.module(*inputs)]
"""
ESTIMATE = """
from hub import Cost
from hub.pricing.roofline import peaks

def estimate(self, cluster, settings):
    return Cost(peaks(settings.threads).flops_s, 0.0, 0, "estimated", "")

Frail.estimate = estimate
"""
SETTINGS = CompileSettings(threads=1)
LIMITS = Limits(compile_s=60.0, memory_bytes=4_000_000_000, output_bytes=1_000_000)


class Workshop:
    """A session with one backend, which dies of clusters of one node."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.graph = session.crew.sample.graph
        self.names = tuple(node.name for node in self.graph.nodes)

    def candidate(self, name: str, nodes: tuple[str, ...], *, is_needed: bool) -> Candidate:
        """Return a candidate that is not saved."""
        group = Group("frail", nodes)
        return Candidate(name, group, SETTINGS, reads(self.graph, group), is_needed=is_needed)

    def compiled(self, *candidates: Candidate) -> tuple[Candidate, ...]:
        """Compile in order."""
        return self.session.compile_all({"frail": candidates}, lambda _: None, Clock(60.0))

    def steps(self, name: str) -> tuple[Step, ...]:
        """Return the plan of the whole graph."""
        return tuple(steps_for(self.graph, (Group("frail", self.names),), (name,)))


PREPARING = """
class Prepared(Run):
    known = ()

    def __call__(self, *inputs):
        import time
        from hub.plugin import InputRefused
        shapes = [tuple(value.shape) for value in inputs if hasattr(value, "shape")]
        if {refuses} and max(shape[0] for shape in shapes) > 20:
            raise InputRefused("twenty rows at most")
        if shapes not in self.known:
            self.known = (*self.known, shapes)
            time.sleep(0.4)
        return super().__call__(*inputs)

Frail.compile = lambda self, cluster, settings: Prepared(cluster)
"""
"""A backend that prepares each new combination of sizes in 0.4 s."""


FAILING = """
class Failing(Run):
    def __call__(self, *inputs):
        if os.path.exists({marker!r}):
            raise ValueError("not any more")
        return super().__call__(*inputs)

Frail.compile = lambda self, cluster, settings: Failing(cluster)
"""
"""A backend whose calls fail once there is a file."""


def raising(error: Exception) -> Callable[..., NoReturn]:
    """Return a function that raises."""

    def function(*_: Any) -> NoReturn:
        raise error

    return function


@pytest.fixture
def workshop(install_plugin: Callable[..., None]) -> Iterator[Workshop]:
    """Yield a session on three products with activations between."""
    install_plugin("frail", PLUGIN)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    captured = capture(model, (torch.ones(2, 8),))
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        session.crew.start(["frail"])
        yield Workshop(session)


def test_workers_estimate_by_the_peaks_of_the_process_that_they_work_for(
    install_plugin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None measures its own, while others would make the machine look slow."""
    install_plugin("frail", PLUGIN + ESTIMATE)
    monkeypatch.setitem(roofline._settled, 1, roofline.Peaks(123.0, 1.0))
    captured = capture(nn.ReLU(), (torch.ones(2, 8),))
    names = tuple(node.name for node in captured.graph.nodes)
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        session.answers("frail", Options())
        cost: Any = session.estimate(Group("frail", names), SETTINGS)
    assert cost.answer.run_s == 123.0


def test_without_workers_for_measuring_there_are_some_for_estimates(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot be had ends measuring; what is planned by estimates is still tried out in one."""
    candidate = workshop.candidate("all", workshop.names, is_needed=True)
    with monkeypatch.context() as patch:
        patch.setattr(workshop.session.crew, "living", raising(WorkerError("none to be had")))
        with pytest.raises(WorkerError, match="none to be had"):
            workshop.compiled(candidate)
    assert workshop.session.try_out(candidate).failure is None


def test_fatal_piece_costs_only_itself(workshop: Workshop) -> None:
    """After a piece that kills its worker, the whole graph is still priced and proven, and other pieces are only late."""
    whole, piece, fatal = workshop.compiled(
        workshop.candidate("whole", workshop.names, is_needed=True),
        workshop.candidate("piece", workshop.names[:2], is_needed=False),
        workshop.candidate("fatal", workshop.names[:1], is_needed=False),
    )
    assert fatal.failure is not None
    assert not fatal.is_late
    priced = workshop.session.price(whole, 0.01)
    assert priced.cost is not None
    late = workshop.session.price(piece, 0.01)
    assert late.cost is None
    assert late.is_late
    runner = workshop.session.runners.build("frail", workshop.steps("whole"), (whole,), "frail", busy_wait=False)
    assert workshop.session.runners.time_runner(runner, 0.01).calls > 0


@pytest.mark.parametrize(
    ("tries_new_sizes", "refuses", "is_counted"),
    [(True, False, True), (False, False, False), (True, True, False)],
    ids=["counted", "not counted", "refused"],
)
def test_what_the_first_call_of_new_sizes_costs(
    install_plugin: Callable[..., None], tries_new_sizes: bool, refuses: bool, is_counted: bool
) -> None:
    """Half the calls are taken to be the first of their sizes. Refused ones run in eager, and the plan stays."""
    install_plugin("frail", PLUGIN + PREPARING.format(refuses=refuses))
    captured = capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (torch.ones(20, 8),), dynamic=True)
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        session.crew.start(["frail"])
        session.runners.tries_new_sizes = tries_new_sizes
        workshop = Workshop(session)
        (whole,) = workshop.compiled(workshop.candidate("whole", workshop.names, is_needed=True))
        runner = session.runners.build("frail", workshop.steps("whole"), (whole,), "frail", busy_wait=False)
        for _ in range(2):
            assert (session.runners.time_runner(runner, 0.01).seconds >= 0.2) == is_counted


def test_workers_in_which_a_plugin_failed_serve_no_other_session(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    """One that fails when it is timed ends with the session, and one that cannot load a plan ends at once."""
    marker = tmp_path / "marker"
    install_plugin("frail", PLUGIN + FAILING.format(marker=str(marker)))
    captured = capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (torch.ones(2, 8),))
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        workshop, runners = Workshop(session), session.runners
        (whole,) = workshop.compiled(workshop.candidate("whole", workshop.names, is_needed=True))
        marker.touch()
        with pytest.raises(PluginError, match="not any more"):
            runners.build("other", workshop.steps("whole"), (whole,), None, busy_wait=False)
        assert not session.crew._workers["plan other"].is_alive
        failure = session.price(whole, 0.01).failure
        assert failure is not None
        assert "not any more" in failure.message
        worker = session.crew.living("frail")
        assert worker.is_alive
    assert not worker.is_alive


def test_a_plan_that_does_not_run_takes_no_worker(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """It would take memory and cores from the plans that are timed."""
    marker = tmp_path / "marker"
    install_plugin("frail", PLUGIN + FAILING.format(marker=str(marker)))
    captured = capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (torch.ones(2, 8),))
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        workshop = Workshop(session)
        (whole,) = workshop.compiled(workshop.candidate("whole", workshop.names, is_needed=True))
        worker = session.crew.living("frail")
        marker.touch()
        with pytest.raises(PluginError, match="not any more"):
            session.runners.build("frail", workshop.steps("whole"), (whole,), "frail", busy_wait=False)
        assert not worker.is_alive


def test_plans_whose_calls_take_seconds_are_timed_once(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    """Noise matters less to them, and more samples might not fit into the limit of a request."""
    marker = tmp_path / "marker"
    slow = FAILING.replace('raise ValueError("not any more")', "__import__('time').sleep(1.1)")
    install_plugin("frail", PLUGIN + slow.format(marker=str(marker)))
    captured = capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (torch.ones(2, 8),))
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        workshop, runners = Workshop(session), session.runners
        (whole,) = workshop.compiled(workshop.candidate("whole", workshop.names, is_needed=True))
        runner = runners.build("frail", workshop.steps("whole"), (whole,), "frail", busy_wait=False)
        assert runners.time_runner(runner, 0.0).calls == 3
        marker.touch()
        assert runners.time_runner(runner, 0.5).calls == 1


def test_what_only_might_help_compiles_apart_from_what_is_needed(workshop: Workshop) -> None:
    """Giving up a piece ends its worker, which must not be the one in which the whole graph waits to be timed."""
    (whole,) = workshop.compiled(workshop.candidate("whole", workshop.names, is_needed=True))
    holder = workshop.session.crew.living("frail")
    workshop.compiled(workshop.candidate("fatal", workshop.names[:1], is_needed=False))
    assert holder.is_alive
    assert workshop.session.crew.living("frail") is holder
    assert workshop.session.price(whole, 0.01).cost is not None


def test_a_plan_whose_worker_is_gone_is_built_again_and_wins(workshop: Workshop) -> None:
    """A race goes on with it, in a new worker, and says so."""
    compiled = workshop.compiled(workshop.candidate("whole", workshop.names, is_needed=True))
    runner = workshop.session.runners.build("frail", workshop.steps("whole"), compiled, "frail", busy_wait=False)
    race = Race(workshop.session.runners)
    race.heat([runner], 0.0)
    runner.worker.kill()
    race.heat([], 0.0)
    race.heat([], 0.0)
    proof = race.proof()
    assert proof is not None
    assert proof.winner.runner is runner
    assert race.revived == ("frail",)
    assert len(proof.winner.blocks) > MIN_ROUNDS


def test_backend_goes_on_after_its_plan_was_sent_home(workshop: Workshop) -> None:
    """A plan whose worker was ended, because it is slow, does not keep its backend from compiling and proving others."""
    first = workshop.compiled(workshop.candidate("first", workshop.names, is_needed=True))
    runner = workshop.session.runners.build("frail", workshop.steps("first"), first, "frail", busy_wait=False)
    workshop.session.runners.end(runner)
    second: Any = workshop.compiled(workshop.candidate("second", workshop.names, is_needed=True))
    assert second[0].failure is None
    again = workshop.session.runners.build("frail again", workshop.steps("second"), second, "frail", busy_wait=False)
    assert workshop.session.runners.time_runner(again, 0.01).calls > 0
