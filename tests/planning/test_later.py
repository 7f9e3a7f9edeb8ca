"""What there was no time to verify before the first answer is verified after it, and affects the running plan."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.errors import HubWarning
from hub.frontend.ownership import graphs_of
from hub.planning.later import Later, planning
from hub.verification.finite import FiniteOnly
from hub.workers.channel import Worker
from hub.workers.limits import Limits
from hub.workers.pool import Pool
from tests.functions import OneCluster

PLUGIN = """
import os, sys, time
from pathlib import Path
from hub import Backend, BackendInfo, Executable, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="tardy", factory="hub_tardy:Tardy", summary="")]

class Tardy(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return Run(cluster.module)

    if {saveable}:
        def load(self, folder, cluster, settings):
            return Run(cluster.module)

kept = []

class Run(Executable):
    def __init__(self, module):
        self.module, self.calls = module, 0

    def __call__(self, *inputs):
        import torch
        self.calls += 1
        time.sleep({sleep_s})
        outputs = [value + 0 for value in self.module(*inputs)]
        x, n = inputs[0], self.calls
        {fault}
        return outputs

    def save(self, folder):
        (folder / "nothing").write_text("")
"""
X = torch.linspace(-1, 1, 32).reshape(4, 8)
SLOW_S = 0.12
"""Seconds of a call, so long that almost nothing can be tried before the first answer."""
WAIT_S = 240.0


Install = Callable[..., None]


@pytest.fixture
def install(install_plugin: Callable[[str, str], None]) -> Install:
    """Return a function that installs the plugin with a fault: statements of `x`, `n` (the call number) and `outputs`."""

    def place(fault: str = "pass", *, saveable: bool = True, sleep_s: float = SLOW_S) -> None:
        install_plugin("tardy", PLUGIN.format(fault=fault, saveable=saveable, sleep_s=sleep_s))

    return place


def compiled(model: nn.Module, **options: Any) -> Any:
    """Compile a model for the plugin anew, and call it once."""
    torch._dynamo.reset()
    given = {"tune": "off", "backends": ["tardy"], "background": True, **options}
    run: Any = torch.compile(model, backend="hub", options=given)
    called(run, model)
    return run


def called(run: Any, model: nn.Module, x: torch.Tensor = X) -> None:
    """Call a model; raise AssertionError unless it returns eager's result."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        torch.testing.assert_close(run(x), model(x), equal_nan=True)


def notes(run: Any) -> str:
    """Return the plan's messages about verification after the first answer."""
    return "\n".join(event.message for event in hub.plans(run)[-1].events if event.stage == "later")


def works_of(run: Any) -> list[Later]:
    """Return the tasks that verify a model after its first answer."""
    return graphs_of(run)[-1]._later._works


def is_guarded(run: Any) -> bool:
    """Return True if a guard keeps infinities from the executable."""
    x = X.clone()
    x[0, 0] = float("inf")
    before = len(hub.plans(run)[-1].events)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        run(x)
    return len(hub.plans(run)[-1].events) > before


def callee_of(run: Any) -> Any:
    """Return what the running plan calls for its only cluster."""
    binding = graphs_of(run)[-1].current()
    assert binding is not None
    return binding.run.__globals__["c0"]  # pyright: ignore[reportFunctionMemberAccess] - a generated function


@pytest.mark.parametrize("saveable", [True, False])
def test_what_agrees_is_noted_and_lifts_the_guard(install: Install, saveable: bool) -> None:
    """A guard that existed only while kinds were untried is dropped; a later process knows this before its first answer."""
    install(saveable=saveable)
    model = OneCluster().eval()
    run = compiled(model)
    assert hub.wait(run, WAIT_S)
    assert hub.plans(run)[-1].backends == ("tardy",)
    assert "NaN, infinities" in notes(run)
    assert "calls in a row change nothing" in notes(run)
    assert "not verified yet" not in notes(run)
    assert not is_guarded(run)
    assert not isinstance(callee_of(run), FiniteOnly), "each call goes through a wrapper that does nothing"
    if saveable:
        again = compiled(model, background=False)
        assert "NaN, infinities" in notes(again)
        assert not is_guarded(again)


FAULTS = {
    "differs on usual inputs": "outputs[0] *= 1 + 0.01 * bool((x.abs() > 1e3).any() and x.isfinite().all())",
    "raises on usual inputs": "assert not bool((x == 0).all())",
    "crashes": "bool(x.isnan().any()) and os.abort()",
    "ends the process in the hundredth call": "n == 100 and os._exit(0)",
    "sets a variable in its hundredth call": "if n == 100: os.environ['TARDY'] = '1'",
    "draws a random number in its hundredth call": "if n == 100: torch.rand(1)",
    "opens a file in each call": "n > 60 and kept.append(open(os.devnull))",
    "starts a thread in each call": "import threading; n > 60 and threading.Timer(60.0, print).start()",
    "keeps memory": "n > 60 and kept.append(torch.ones(1 << 20))",
    "is wrong in the end": "outputs[0] += 0.01 * (n > 60)",
}
QUICK = ("differs on usual inputs", "crashes", "sets a variable in its hundredth call")


@pytest.mark.parametrize("fault", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in FAULTS])
def test_what_is_wrong_demotes_it(install: Install, fault: str) -> None:
    """The cluster runs in eager from the next call on, with a warning; later captures exclude the candidate."""
    is_endurance = "call" in fault or fault in ("keeps memory", "is wrong in the end")
    install(FAULTS[fault], sleep_s=0.0 if is_endurance else SLOW_S)
    model = OneCluster().eval()
    run = compiled(model)
    assert hub.plans(run)[-1].backends == ("tardy",)
    assert hub.wait(run, WAIT_S)
    assert [event.kind for event in hub.plans(run)[-1].events if event.stage == "run"] == ["fallback"], hub.plans(run)
    with torch.no_grad(), pytest.warns(HubWarning, match="in eager from now on"):
        torch.testing.assert_close(run(X), model(X))
    called(run, model)
    assert len([event for event in hub.plans(run)[-1].events if event.stage == "run"]) == 1
    again = compiled(model)
    assert hub.plans(again)[-1].backends == ("eager",)
    assert any("disabled since" in event.message for event in hub.plans(again)[-1].events)


def test_what_differs_on_unusual_inputs_stays_guarded(install: Install) -> None:
    """The note says what differs; calls with such values run in eager, in later processes as well."""
    install("outputs[0] = outputs[0].nan_to_num(0.0)")
    model = OneCluster().eval()
    run = compiled(model)
    assert hub.wait(run, WAIT_S)
    assert "found after the first answer, calls are guarded" in notes(run)
    x = X.clone()
    x[1, 1] = float("nan")
    for _ in range(2):
        assert hub.plans(run)[-1].backends == ("tardy",)
        assert is_guarded(run)
        called(run, model, x)
        run = compiled(model, background=False)


def test_it_is_done_once(install: Install) -> None:
    """If an earlier process has finished, no worker starts; without `background`, the plan says what is untried."""
    install()
    model = OneCluster().eval()
    without = compiled(model, background=False)
    assert "not verified yet, for lack of time: NaN" in notes(without)
    assert hub.wait(without, 0.0)
    assert hub.wait(compiled(model), WAIT_S)
    again = compiled(model)
    assert not works_of(again)


def test_a_lack_of_memory_is_no_verdict(install: Install, tmp_path: Path) -> None:
    """Others used the memory: the executable stays, and the next process verifies it."""
    full = tmp_path / "full"
    install(f"if Path({str(full)!r}).exists() and os.getpid() != {os.getpid()}: raise MemoryError('no room')")
    model = OneCluster().eval()
    with planning():
        run = compiled(model)
        full.touch()
    assert hub.wait(run, WAIT_S)
    assert "could not be verified after the first answer" in notes(run)
    assert "no room" in notes(run)
    assert hub.plans(run)[-1].backends == ("tardy",)
    assert is_guarded(run)
    full.unlink()
    again = compiled(model)
    assert hub.wait(again, WAIT_S)
    assert "verified after the first answer: NaN" in notes(again)
    assert not is_guarded(again)


def test_strict_models_raise(install: Install) -> None:
    """With strict=True the next call raises what was found."""
    install(FAULTS["differs on usual inputs"])
    model = OneCluster().eval()
    run = compiled(model, strict=True)
    assert hub.wait(run, WAIT_S)
    with torch.no_grad(), pytest.raises(hub.HubError, match="generated inputs"):
        run(X)


def test_it_ends_with_the_model(install: Install) -> None:
    """A model without references takes its worker along."""
    install("x.isnan().any() and time.sleep(600)")
    run = compiled(OneCluster().eval())
    (work,) = works_of(run)
    assert not hub.wait(run, 1.0)
    del run
    torch._dynamo.reset()
    gc.collect()
    assert work.wait(30.0)


def test_freeing_a_model_does_not_wait_for_its_worker(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may take minutes to start. If the model is gone by then, the worker ends."""
    lend, begun, is_freed = Pool.lend, threading.Event(), threading.Event()
    waited: list[bool] = []
    lent: list[Worker] = []

    def lend_slowly(pool: Pool, home: str, limits: Limits) -> Worker:
        worker = lend(pool, home, limits)
        if home == "later":
            lent.append(worker)
            begun.set()
            waited.append(is_freed.wait(20.0))
        return worker

    monkeypatch.setattr(Pool, "lend", lend_slowly)
    install()
    run = compiled(OneCluster().eval())
    (work,) = works_of(run)
    assert begun.wait(WAIT_S)
    del run
    torch._dynamo.reset()
    gc.collect()
    is_freed.set()
    assert work.wait(30.0)
    assert waited == [True]
    assert not any(worker.is_alive for worker in lent)


SCRIPT = """
import os, sys, time, warnings
import torch, hub
from tests.planning.test_later import OneCluster, compiled
model = OneCluster().eval()
run = compiled(model)
assert not hub.wait(run, {seconds})
if {forks}:
    pid = os.fork()
    if pid == 0:
        assert hub.wait(run, 60)
        with torch.no_grad():
            run(torch.ones(4, 8))
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert not hub.wait(run, 0.1)
print("over", flush=True)
"""


@pytest.mark.parametrize(("forks", "seconds"), [(False, 0.0), (True, 2.0)])
def test_the_process_ends_without_waiting(install: Install, tmp_path: Path, forks: bool, seconds: float) -> None:
    """Exit, or a fork, with such work in flight: no hang, and no process remains."""
    marker = tmp_path / "worker"
    install(f"if x.isnan().any(): open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    path = [str(tmp_path / "site"), *filter(None, sys.path), str(Path(__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(forks=forks, seconds=seconds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "HUB_PROGRESS": "off"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
    if marker.exists():
        end_s = time.monotonic() + 30
        while Path(f"/proc/{marker.read_text()}").exists() and time.monotonic() < end_s:
            time.sleep(0.1)
        assert not Path(f"/proc/{marker.read_text()}").exists()


def test_it_rests_while_another_graph_is_planned(install: Install) -> None:
    """Timed candidates have the cores for themselves; afterwards, verification continues."""
    install()
    model = OneCluster().eval()
    with planning():
        run = compiled(model)
        assert not hub.wait(run, 3.0)
        assert "calls in a row" not in notes(run)
    assert hub.wait(run, WAIT_S)
    assert "calls in a row change nothing" in notes(run)
