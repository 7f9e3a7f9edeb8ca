"""A model answers in eager at once while another process plans it, and then runs as planned."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.errors import HubWarning
from hub.frontend.compiled import CompiledGraph
from hub.frontend.ownership import graphs_of
from hub.plan import DecidedBy, EventKind, Plan
from hub.planning import aside
from hub.process.family import PROC, descendants, is_running
from hub.verification.copies import compact_copy

BACKENDS = ["onnxruntime", "openvino"]


class Net(nn.Module):
    """Some products and activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(32, 32), nn.GELU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + x


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    """Return the model compiled to answer in eager first."""
    return torch.compile(model, backend="hub", options={"start": "eager", "backends": BACKENDS, **options})


def planners() -> list[int]:
    """Return the child processes of this one that plan."""
    found: list[int] = []
    for pid in descendants(os.getpid()):
        try:
            if b"hub.planning.aside_worker" in (PROC / str(pid) / "cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def await_planner() -> int:
    """Wait for a process that plans, and return its id."""
    while not (found := planners()):
        time.sleep(0.01)
    return found[0]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold back finished plans until the event is set."""
    release, hand_over = threading.Event(), aside.Aside._hand_over

    def wait_first(self: aside.Aside, *given: Any) -> None:
        release.wait()
        hand_over(self, *given)

    monkeypatch.setattr(aside.Aside, "_hand_over", wait_first)
    return release


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_first_calls_are_eagers_and_later_ones_run_as_planned(tune: str, held: threading.Event) -> None:
    """The plan says which of the two it is, and the next process finds it in the cache."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune=tune, budget_s=3.0)
    with torch.no_grad():
        assert torch.equal(run(x), model(x))
        (plan,) = hub.plans(run)
        assert plan.decided_by is DecidedBy.PENDING
        assert plan.backends == ("eager",)
        assert not hub.wait(run, 0.01)
        assert torch.equal(run(x), model(x))
        held.set()
        assert hub.wait(run)
        torch.testing.assert_close(run(x), model(x))
        torch.testing.assert_close(run(2 * x), model(2 * x))
        (plan,) = hub.plans(run)
        assert plan.decided_by is not DecidedBy.PENDING
        if tune == "off":
            assert plan.backends != ("eager",)
            return
        assert plan.decided_by is DecidedBy.MEASURED_PLANS
        assert "eager" in {item.name for item in plan.contenders}
        torch._dynamo.reset()
        again = compiled(model, tune=tune, budget_s=3.0)
        again(x)
        kept = hub.plans(again)[-1]  # nothing is planned in another process if there is a plan
        assert kept.decided_by is DecidedBy.REPLAYED
        assert kept.backends == plan.backends


def test_the_best_so_far_serves_while_planning_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is much faster than eager runs before the last one is known; in the end, the last one runs."""
    bound, goes_on = threading.Event(), threading.Event()
    settle, improve = CompiledGraph.settle, CompiledGraph.improve

    def improving(self: CompiledGraph, *given: Any) -> None:
        improve(self, *given)
        bound.set()

    def settling(self: CompiledGraph, *given: Any) -> None:
        goes_on.wait()
        settle(self, *given)

    monkeypatch.setattr(CompiledGraph, "improve", improving)
    monkeypatch.setattr(CompiledGraph, "settle", settling)
    layers = [part for _ in range(24) for part in (nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))]
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 8)
    run = compiled(model, tune="fast", budget_s=3.0)
    with torch.no_grad():
        run(x)
        assert bound.wait(240.0)
        torch.testing.assert_close(run(x), model(x))
        (plan,) = hub.plans(run)
        assert plan.decided_by is DecidedBy.MEASURED
        assert plan.backends != ("eager",)
        assert any("planning continues" in event.message for event in plan.events)
        assert not hub.wait(run, 0.01)
        model[0].weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))
        goes_on.set()
        assert hub.wait(run)
        torch.testing.assert_close(run(x), model(x))
    (plan,) = hub.plans(run)
    assert plan.decided_by is DecidedBy.MEASURED_PLANS


def test_the_best_so_far_ends_with_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a weight is replaced before the last plan is known, the next call plans anew."""
    model, x, options = Net().eval(), torch.randn(4, 32), {"tune": "off", "backends": ["onnxruntime"]}
    known: list[Plan | None] = []
    improved, goes_on = threading.Event(), threading.Event()

    def planned(self: aside.Aside) -> tuple[Plan | None, str]:
        known.append(self._facts["known"])
        if len(known) == 1:
            self._improve(better)
            improved.set()
            goes_on.wait()
        return None, "the test plans nothing else"

    monkeypatch.setattr(aside.Aside, "_planned", planned)
    with torch.no_grad():
        first = compiled(Net().eval(), **options, start="wait")
        first(x)
        (better,) = hub.plans(first)
        torch._dynamo.reset()
        run = compiled(model, **options, renew=True)
        run(x)
        assert improved.wait(60.0)
        assert hub.plans(run)[-1].backends == better.backends
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()}, assign=True)
        gc.collect()
        goes_on.set()
        planning = graphs_of(run)[-1]._aside
        assert planning is not None
        planning.join()
        assert not hub.plans(run)
        torch.testing.assert_close(run(x), model(x))
        assert hub.wait(run)
    assert known == [None, None]


class Trained(nn.Module):
    """Layers whose gradients need activations, and dropout, which draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.25), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(model: nn.Module, run: Callable[..., Any], seed: int, steps: int = 1) -> list[torch.Tensor]:
    """Take optimizer steps; return the last step's output and gradients."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[torch.Tensor] = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = run(torch.randn(8, 16))
        output.square().mean().backward()
        found = [output.detach(), *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)]
        optimizer.step()
    return found


def test_training_goes_on_in_eager_until_it_is_planned(held: threading.Event) -> None:
    """Forward and backward are planned during the steps, which change every weight; no copy of an input is kept then."""
    model, reference = Trained(), Trained()
    run = compiled(model, tune="off", backends=["disc"])
    for seed in range(3):
        torch.testing.assert_close(train(model, run, seed), train(reference, reference, seed))
    assert [plan.decided_by for plan in hub.plans(run)] == [DecidedBy.PENDING, DecidedBy.PENDING]
    asides = [graph._aside for graph in graphs_of(run)]
    assert all(one is not None and one.n_copied_bytes > 0 for one in asides)
    held.set()
    assert hub.wait(run)
    assert {plan.graph.rstrip("0123456789") for plan in hub.plans(run) if "disc" in plan.backends} == {
        "forward",
        "backward",
    }
    assert all(one is not None and one.n_copied_bytes == 0 for one in asides)
    torch.testing.assert_close(train(model, run, 7, steps=4), train(reference, reference, 7, steps=4))


def test_what_is_too_large_to_copy_is_planned_in_a_call(monkeypatch: pytest.MonkeyPatch, held: threading.Event) -> None:
    """All waiting graphs share the memory for copies; the plan says why the first call waited."""
    monkeypatch.setattr(aside, "MAX_COPIED_BYTES", 1000)
    small, large = compiled(nn.Linear(4, 4), tune="off"), compiled(nn.Linear(4, 4), tune="off")
    with torch.no_grad():
        small(torch.randn(15, 4))  # 240 bytes
        large(torch.randn(50, 4))  # 800 bytes
    (waiting,), (plan,) = hub.plans(small), hub.plans(large)
    assert waiting.decided_by is DecidedBy.PENDING
    assert plan.decided_by is not DecidedBy.PENDING
    assert any("planned in a call" in event.message for event in plan.events)
    held.set()
    assert hub.wait(small)


def test_plans_say_where_planning_stands(held: threading.Event) -> None:
    """The plan shows meanwhile what is being done, and how far it is."""
    run = compiled(Net().eval(), tune="fast", budget_s=3.0)
    seen: set[str] = set()
    with torch.no_grad():
        run(torch.randn(4, 32))
        while not any("timing" in message for message in seen):
            (plan,) = hub.plans(run)
            seen |= {event.message for event in plan.events if "planning continues" in event.message}
            time.sleep(0.02)
        held.set()
        assert hub.wait(run)
    (plan,) = hub.plans(run)
    assert not any("planning continues" in event.message for event in plan.events)


def test_waiting_shows_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`hub.wait` shows stages, as planning in the first call does; nothing else shows them."""
    monkeypatch.setenv("HUB_PROGRESS", "plain")
    run = compiled(Net().eval(), tune="fast", budget_s=3.0)
    with torch.no_grad():
        run(torch.randn(4, 32))
        assert not capsys.readouterr().err
        assert hub.wait(run)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hub, ")]
    assert any("compiling" in line or "timing" in line for line in lines)


def test_what_the_user_writes_meanwhile_is_used_as_it_is(held: threading.Event) -> None:
    """A plan is tried on the first call's inputs; no answer, before the plan or after it, uses old weights."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off")
    with torch.no_grad():
        run(x)
        await_planner()
        x.fill_(float("nan"))
        model.layers[0].weight.mul_(2)
        held.set()
        assert hub.wait(run)
        (plan,) = hub.plans(run)
        assert plan.backends != ("eager",)
        x.normal_()
        torch.testing.assert_close(run(x), model(x))
        model.layers[2].weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))


def test_a_model_that_goes_takes_its_planning_with_it() -> None:
    """Nothing waits for the plan, and nothing remains of it."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="full", budget_s=600.0)
    with torch.no_grad():
        run(x)
    await_planner()
    (work,) = [graph._aside for graph in graphs_of(run) if graph._aside is not None]
    gone = weakref.ref(model)
    del model, run
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None
    assert work.wait(60.0)
    assert not planners()


class InParts(Net):
    """A model of three graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x) * x.shape[0]
        torch._dynamo.graph_break()
        x = self.layers[2](x).relu()
        torch._dynamo.graph_break()
        return self.layers[4](x).tanh()


def test_one_process_plans_all_graphs_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would import PyTorch and the compilers' libraries anew. It ends with the last of them."""
    started: list[Any] = []
    start = aside._Planner.started

    def noted() -> Any:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(aside._Planner, "started", noted)
    model, x = InParts().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off")
    with torch.no_grad():
        run(x)
        assert hub.wait(run)
        assert len(hub.plans(run)) == 3
        torch.testing.assert_close(run(x), model(x))
    (planner,) = started
    assert not planner.worker.is_alive
    assert not planner.folder.exists()


def test_a_process_that_waits_ends_with_what_it_waited_for(held: threading.Event) -> None:
    """The model may go before the next of its graphs is planned."""
    model, x = InParts().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off")
    with torch.no_grad():
        run(x)
    works = [graph._aside for graph in graphs_of(run) if graph._aside is not None]
    while aside._SPARE._planner is None:
        time.sleep(0.01)
    del model, run
    torch._dynamo.reset()
    gc.collect()
    held.set()
    assert all(work.wait(60.0) for work in works)
    assert aside._SPARE._planner is None
    assert not planners()


def test_a_planner_that_is_killed_costs_nothing_but_time(held: threading.Event) -> None:
    """This process plans the graph then, and the plan says why."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off")
    with torch.no_grad():
        run(x)
        os.kill(await_planner(), signal.SIGKILL)
        held.set()
        assert hub.wait(run)
        (plan,) = hub.plans(run)
        torch.testing.assert_close(run(x), model(x))
    assert plan.backends != ("eager",)
    assert any("not planned in a separate process" in event.message for event in plan.events)


def test_eight_threads_call_it_before_there_is_a_plan(held: threading.Event) -> None:
    """All of them get eager's answers, and later the plan's."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off")
    wanted = model(x).detach()
    wrong: list[str] = []

    def call() -> None:
        with torch.no_grad():
            wrong.extend("wrong" for _ in range(50) if not torch.allclose(run(x), wanted, atol=1e-5))

    with torch.no_grad():
        run(x)
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    held.set()
    assert hub.wait(run)
    for thread in threads:
        thread.join()
    assert not wrong
    with torch.no_grad():
        torch.testing.assert_close(run(x), wanted)


def test_inference_mode_is_the_users_alone() -> None:
    """A model that is called in inference mode is planned outside of it."""
    model = Net().eval()
    run = compiled(model, tune="off", backends=["onnxruntime"])
    with torch.inference_mode():
        x = torch.randn(4, 32)
        run(x)
        assert hub.wait(run)
        torch.testing.assert_close(run(x), model(x))
    (plan,) = hub.plans(run)
    assert plan.backends == ("onnxruntime",)


def test_freezing_waits_for_the_plan() -> None:
    """The frozen model runs the plan, not eager."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off")
    frozen = hub.freeze(run, x)
    (plan,) = hub.plans(run)
    assert plan.backends != ("eager",)
    torch.testing.assert_close(frozen(x), model(x).detach())


@pytest.mark.parametrize("how", [{"start": "wait"}, {"strict": True}, {"isolate": False}])
def test_who_asks_for_a_plan_at_once_gets_it(how: dict[str, Any]) -> None:
    """`start="wait"` requests it; errors of `strict` belong to the call; without workers nothing is planned elsewhere."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off", **{"backends": ["onnxruntime"], **how})
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    (plan,) = hub.plans(run)
    assert plan.backends == ("onnxruntime",)


BROKEN = """
from hub import Backend, BackendInfo, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="broken", factory="hub_broken:Broken", summary="")]

class Broken(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        raise ValueError("it fell over")
"""


def test_what_failed_is_told_to_a_thread_of_the_users(install_plugin: Callable[[str, str], None]) -> None:
    """No user's filter sees a warning in the planning thread; the next call emits it, once."""
    install_plugin("broken", BROKEN)
    model, x = Net().eval(), torch.randn(4, 32)
    run = compiled(model, tune="off", backends=["broken"])
    with torch.no_grad():
        run(x)
        assert hub.wait(run)
        with pytest.warns(HubWarning, match="it fell over"):
            found = run(x)
        torch.testing.assert_close(found, model(x))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(x)
    assert EventKind.FALLBACK in {event.kind for event in hub.plans(run)[0].events}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(3, 1).expand(3, 4),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(10).as_strided((3, 4), (2, 1)),
        torch.randn(6, 8)[::2, 1::3],
        torch.arange(5),
    ],
)
def test_copies_lie_in_memory_as_their_originals_do(tensor: torch.Tensor) -> None:
    """Plans are made for strides; copies share no memory."""
    copy = compact_copy(tensor)
    assert torch.equal(copy, tensor)
    if tensor.numel():
        assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    if tensor.stride() != (2, 1):  # windows that overlap are separated
        assert copy.stride() == tensor.stride()


LEAVING = """
import torch, hub
from tests.planning.test_aside import Net, compiled, await_planner
run = compiled(Net().eval(), tune="full", budget_s=600.0)
with torch.no_grad():
    run(torch.randn(4, 32))
print(await_planner(), flush=True)
{then}
"""
THEN = {
    "the end": "",
    "an error": "raise ValueError('of the user')",
    "a fork": """
import os
if (child := os.fork()) == 0:
    with torch.no_grad():
        x = torch.randn(4, 32)
        assert torch.allclose(run(x), run._orig_mod(x), atol=1e-5)
    assert hub.wait(run, 5)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
}


@pytest.mark.parametrize("then", THEN)
def test_a_process_that_ends_takes_its_planning_with_it(then: str, tmp_path: Path) -> None:
    """The process ends at once and leaves neither a process nor a folder; a fork answers, and waits for nothing."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = LEAVING.format(then=textwrap.dedent(THEN[then]))
    environment = {**os.environ, "TMPDIR": str(scratch), "HUB_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == (1 if then == "an error" else 0), done.stderr
    assert not is_running(int(done.stdout.split()[0]))
    assert not [path.name for path in scratch.iterdir() if path.name.startswith("hub-")]


def test_all_that_plans_is_behind_the_users_threads() -> None:
    """Every process that a model's first calls have started has a lower priority; the user's own priority is unchanged."""
    code = f"""
    import os, time
    from pathlib import Path
    import torch, hub
    from hub.process.family import descendants

    def place(pid):
        nice, group = os.getpriority(os.PRIO_PROCESS, pid), Path("/proc") / str(pid) / "autogroup"
        words = group.read_text().split() if group.exists() else []  # empty: Linux's first session is in no group
        return nice, int(words[-1]) if words else nice

    before = place(os.getpid()), os.sched_getscheduler(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    options = {{"start": "eager", "background": True, "backends": {BACKENDS!r}}}
    compiled = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        compiled(torch.ones(2, 8))
    seen, born = set(), {{}}
    while not hub.wait(compiled, 0.05):
        for pid in descendants(os.getpid()):
            if time.monotonic() - born.setdefault(pid, time.monotonic()) > 5.0:
                continue
            try:
                found = place(pid)
            except OSError:
                continue
            if min(found) > 0:
                seen.add(pid)
    late = [pid for pid in born if pid not in seen and (Path("/proc") / str(pid)).exists()]
    print(len(seen) > 2, late, (place(os.getpid()), os.sched_getscheduler(0)) == before)
    """
    environment = {**os.environ, "HUB_BACKGROUND": "1", "HUB_START": "eager"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == "True [] True\n", done.stderr
