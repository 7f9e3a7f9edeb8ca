"""A backend that fails while it serves stays disabled: after a refresh, in later captures, and in later processes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from typer.testing import CliRunner

import hub
from hub.cli.app import app
from hub.errors import HubWarning, RunError
from hub.plan import DecidedBy
from hub.planning import make
from hub.process.modes import modes

PLUGIN = """
from pathlib import Path
import os, sys
from hub import Backend, BackendInfo, Executable, Support, hookimpl

FOLDER = Path({folder!r})
IS_LIVE = "hub.workers" not in str(sys.modules["__main__"].__spec__)  # in workers it behaves

@hookimpl
def hub_backends():
    return [BackendInfo(name="fickle", factory="hub_fickle:Fickle", summary="")]

class Fickle(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return Run(cluster)

    if {saveable}:
        def load(self, folder, cluster, settings):
            return Run(cluster)

class Mute(Exception):
    def __str__(self):
        raise ValueError("mute")

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        import torch
        outputs = [value + 0 for value in self.module(*inputs)]
        if not IS_LIVE:
            return outputs
        with (FOLDER / "diary").open("a") as diary:
            diary.write("run\\n")
        fault = (FOLDER / "fault").read_text()
        if fault == "raise":
            raise ValueError("out of order")
        if fault == "mute":
            raise Mute
        if fault == "MemoryError":
            raise MemoryError("no room")
        if fault == "OutOfMemoryError":
            raise torch.OutOfMemoryError("no room")
        if fault == "wrapped":
            raise RuntimeError("no room") from MemoryError()
        if fault == "allocator":
            torch.empty(1 << 60, dtype=torch.uint8)
        if fault == "wrong":
            outputs[0].view(-1)[3] += 0.01
        return outputs

    def save(self, folder):
        (folder / "nothing").write_text("")
"""
X = torch.linspace(-1, 1, 32).reshape(4, 8)
LACKS_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "wrapped", "allocator")


class Fickle:
    """The plugin's current fault, and how often it has run in a user's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "diary").touch()
        self.behave("well")

    def behave(self, fault: str) -> None:
        """Set the fault."""
        (self.folder / "fault").write_text(fault)

    @property
    def n_calls(self) -> int:
        """Return the number of calls so far."""
        return len((self.folder / "diary").read_text().splitlines())


Install = Callable[..., Fickle]


@pytest.fixture
def install(install_plugin: Callable[[str, str], None], tmp_path: Path) -> Install:
    """Return a function that installs the plugin."""

    def place(*, saveable: bool = True) -> Fickle:
        install_plugin("fickle", PLUGIN.format(folder=str(tmp_path), saveable=saveable))
        return Fickle(tmp_path)

    return place


class Net(torch.nn.Module):
    """A model that is one cluster."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 2


def compiled(model: torch.nn.Module, **options: Any) -> Any:
    """Compile a model for the plugin anew, without measuring, and without workers unless they are requested."""
    torch._dynamo.reset()
    given = {"tune": "off", "backends": ["fickle"], "isolate": False, **options}
    return torch.compile(model, backend="hub", options=given)


def call(model: torch.nn.Module, run: Any) -> None:
    """Call a compiled model once; raise AssertionError unless it returns eager's result."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        torch.testing.assert_close(run(X), model(X))


def failed_once(fickle: Fickle, model: torch.nn.Module, fault: str = "raise", **options: Any) -> Any:
    """Return the compiled model in whose second call the plugin failed, and which behaves well afterwards."""
    run = compiled(model, **options)
    call(model, run)
    assert hub.plans(run)[-1].backends == ("fickle",)
    fickle.behave(fault)
    call(model, run)
    fickle.behave("well")
    return run


def stays_away(fickle: Fickle, model: torch.nn.Module, run: Any) -> hub.Plan:
    """Call a model; raise AssertionError if the plugin runs. Return the plan, which says why it does not."""
    before = fickle.n_calls
    call(model, run)
    call(model, run)
    assert fickle.n_calls == before
    plan = hub.plans(run)[-1]
    assert "fickle" not in plan.backends
    assert any(event.backend == "fickle" and event.stage == "run" for event in plan.events)
    return plan


def refresh(model: torch.nn.Module, run: Any) -> None:
    """Read the weights again."""
    hub.refresh(run)


def change(model: torch.nn.Module, run: Any) -> None:
    """Write to a weight, so that a new set of executables is needed."""
    with torch.no_grad():
        next(model.parameters()).mul_(0.5)


@pytest.mark.parametrize("happens", [refresh, change])
@pytest.mark.parametrize("options", [{}, {"renew": True}, {"isolate": True}])
def test_new_executables_are_not_asked_of_it(happens: Any, options: dict[str, Any], install: Install) -> None:
    """A compiled model that builds again excludes it, regardless of what a cache remembers."""
    fickle, model = install(), Net().eval()
    run = failed_once(fickle, model, **options)
    happens(model, run)
    plan = stays_away(fickle, model, run)
    assert any("out of order" in event.message for event in plan.events)


def test_another_plan_is_not_looked_for_in_a_call(install: Install) -> None:
    """With start="eager", calls go on in eager while another process plans without what failed."""
    fickle, model = install(), Net().eval()
    run = compiled(model, isolate=True, background=True, start="eager")
    call(model, run)
    assert hub.wait(run, 120)
    call(model, run)
    assert hub.plans(run)[-1].backends == ("fickle",)
    fickle.behave("raise")
    call(model, run)
    fickle.behave("well")
    change(model, run)
    call(model, run)
    assert hub.plans(run)[-1].decided_by == DecidedBy.PENDING
    assert hub.wait(run, 120)
    stays_away(fickle, model, run)


@pytest.mark.parametrize("saveable", [True, False])
@pytest.mark.parametrize(
    ("fault", "isolate", "says"),
    [("raise", True, "out of order"), ("raise", False, "out of order"), ("mute", False, "Mute")],
)
def test_the_next_capture_leaves_it_out(fault: str, isolate: bool, says: str, saveable: bool, install: Install) -> None:
    """The report of a later capture gives the old reason with its date."""
    fickle, model = install(saveable=saveable), Net().eval()
    failed_once(fickle, model, fault, isolate=isolate)
    plan = stays_away(fickle, model, compiled(model, isolate=isolate))
    assert any("disabled since" in event.message and says in event.message for event in plan.events)


def test_what_shadow_mode_finds_is_remembered(install: Install) -> None:
    """Without shadow mode too, a later capture excludes a candidate that gave a wrong result."""
    fickle, model = install(), Net().eval()
    failed_once(fickle, model, "wrong", shadow=1.0)
    plan = stays_away(fickle, model, compiled(model))
    assert any("expected" in event.message for event in plan.events)


def test_other_weights_of_the_same_structure_are_left_out_as_well(install: Install) -> None:
    """Failures are kept by structure: a saved executable with other weights is not taken from the cache."""
    fickle, model, other = install(), Net().eval(), Net().eval()
    change(other, None)
    call(other, compiled(other))
    failed_once(fickle, model)
    stays_away(fickle, other, compiled(other))


def test_forgetting_or_renewing_lets_it_try_again(install: Install) -> None:
    """The old failure is listed with its stage; `hub cache forget` clears it, and so does `renew` if it is right now."""
    fickle, model = install(), Net().eval()
    failed_once(fickle, model)
    for options in ({"renew": True}, {}):  # what is decided anew is used
        run = compiled(model, **options)
        call(model, run)
        assert hub.plans(run)[-1].backends == ("fickle",)
    torch._dynamo.reset()
    failed_once(fickle, model)
    stays_away(fickle, model, compiled(model))
    listed = CliRunner().invoke(app, ["cache", "ls"]).stdout
    assert any(line.split()[:2] == ["fickle", "serve"] for line in listed.splitlines())
    assert "forgot 1 failure" in CliRunner().invoke(app, ["cache", "forget", "fickle"]).stdout
    run = compiled(model)
    call(model, run)
    assert hub.plans(run)[-1].backends == ("fickle",)


def test_a_failure_counts_whether_or_not_mkl_was_told_a_count(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """That changes times, and no numbers."""
    fickle, model = install(), Net().eval()
    failed_once(fickle, model)
    monkeypatch.setattr("hub.process.modes.is_told", lambda: True)
    assert modes().is_mkl_told
    stays_away(fickle, model, compiled(model))


def test_nothing_is_remembered_where_failures_are_errors(install: Install) -> None:
    """With strict=True every call raises, and nothing is demoted."""
    fickle, model = install(), Net().eval()
    run = compiled(model, strict=True)
    call(model, run)
    fickle.behave("raise")
    with torch.no_grad(), pytest.raises(RunError, match="out of order"):
        run(X)
    fickle.behave("well")
    before = fickle.n_calls
    call(model, run)
    assert fickle.n_calls == before + 1


@pytest.mark.parametrize("fault", LACKS_OF_MEMORY)
def test_lack_of_memory_is_no_verdict(fault: str, install: Install) -> None:
    """The call runs in eager with a warning; the next one, and the next capture, use the backend as before."""
    fickle, model = install(), Net().eval()
    run = compiled(model)
    call(model, run)
    fickle.behave(fault)
    with torch.no_grad(), pytest.warns(HubWarning, match="in eager for such calls") as caught:
        torch.testing.assert_close(run(X), model(X))
    assert {warning.filename for warning in caught} == {__file__}, "points past the generated code of the plan"
    fickle.behave("well")
    for again in (run, compiled(model)):
        before = fickle.n_calls
        call(model, again)
        assert fickle.n_calls > before
        assert hub.plans(again)[-1].backends == ("fickle",)


# --- Later processes --------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
import hub
from tests.test_demotion import Net, X, call, compiled
model = Net().eval()
run = compiled(model, isolate=True)
call(model, run)
plan = hub.plans(run)[-1]
print("backends", *plan.backends)
print(plan.events)
"""


def process(tmp_path: Path) -> str:
    """Run the model in a new process; return what it prints."""
    path = [str(tmp_path / "site"), *filter(None, sys.path), str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "HUB_PROGRESS": "off"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("saveable", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_next_process_leaves_it_out(saveable: bool, install: Install, tmp_path: Path) -> None:
    """It replays the kept plan without the candidate, until the failure is forgotten."""
    fickle, model = install(saveable=saveable), Net().eval()
    failed_once(fickle, model, isolate=True)
    before = fickle.n_calls
    said = process(tmp_path)
    assert fickle.n_calls == before
    assert "backends eager\n" in said
    assert "disabled since" in said
    assert "out of order" in said
    CliRunner().invoke(app, ["cache", "forget"])
    assert "backends fickle\n" in process(tmp_path)
    assert fickle.n_calls > before


def test_a_tuned_plan_that_has_failed_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that a later process decided on is replayed by those after it; one that was asked for stays."""
    context, failed, good = MagicMock(), MagicMock(), MagicMock()
    monkeypatch.setattr(make, "_has_failed_since", lambda _, decision: decision is failed)
    assert make._standing(context, [failed, good], is_asked_for=False) is good
    assert make._standing(context, [failed], is_asked_for=False) is None
    assert make._standing(context, [failed, good], is_asked_for=True) is failed


def test_a_kept_plan_with_what_has_failed_since_is_decided_again(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that cluster another plan may be the fastest, so measurements decide, not prices alone."""
    decided: list[bool] = []
    decide = make._decided

    def noted(*args: Any, may_measure: bool) -> Any:
        decided.append(may_measure)
        return decide(*args, may_measure=may_measure)

    monkeypatch.setattr(make, "_decided", noted)
    fickle, model = install(saveable=True), Net().eval()
    for _ in range(2):
        call(model, compiled(model, isolate=True))
    assert decided == [True], "the second model replays the plan of the first"
    failed_once(fickle, model, isolate=True)
    assert decided == [True]
    again = compiled(model, isolate=True)
    call(model, again)
    assert decided[1] is True
    assert hub.plans(again)[-1].backends == ("eager",)
