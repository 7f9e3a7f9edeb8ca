"""Plugins are called, and candidates compiled and first run, in worker processes; what they do there is remembered."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import hub
from hub.cli.app import app
from hub.errors import HubWarning, WorkerError
from hub.workers.pool import POOL

PLUGIN = """
import ctypes, os, time
from hub import Backend, BackendInfo, Cost, Executable, Support, hookimpl

FAULT = {fault!r}
DIARY = {diary!r}

def note(stage):
    with open(DIARY, "a") as file:
        file.write(f"{{stage}} {{os.getpid()}}\\n")
    if stage != FAULT or os.path.exists(DIARY + ".mended"):
        return
    ctypes.string_at(0)

@hookimpl
def hub_backends():
    return [BackendInfo(name="frail", factory="hub_frail:create", summary="")]

def create():
    note("create")
    return Frail()

class Frail(Backend):
    def supports(self, node):
        note("supports")
        return Support(accepted=True)

    def estimate(self, cluster, settings):
        note("estimate")
        return Cost(1e-9, 0.0, 0, "estimated", "as good as free")

    def compile(self, cluster, settings):
        note("compile")
        return Run(cluster)

    if {saveable}:
        def load(self, folder, cluster, settings):
            note("load")
            return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module
        self.is_saved = False

    def __call__(self, *inputs):
        import torch
        if self.is_saved:
            note("again")
        note("run")
        with torch.no_grad():
            return [value + 0 for value in self.module(*inputs)]

    def save(self, folder):
        note("save")
        (folder / "nothing").write_text("")
        self.is_saved = True
"""

X = torch.linspace(-1, 1, 32).reshape(4, 8)
Install = Callable[..., Path]


@pytest.fixture
def install(install_plugin: Callable[[str, str], None], tmp_path: Path) -> Install:
    """Return a function that installs the plugin with a fault, and returns the log of its calls and their processes."""

    def place(fault: str = "", *, saveable: bool = True) -> Path:
        diary = tmp_path / "diary"
        diary.touch()
        install_plugin("frail", PLUGIN.format(fault=fault, diary=str(diary), saveable=saveable))
        return diary

    return place


def model() -> torch.nn.Module:
    """Return Linear and ReLU, with fixed weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()


def run(module: torch.nn.Module, **options: Any) -> hub.Plan:
    """Run a model twice through the hub, check the results, and return the plan."""
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="hub", options={"tune": "off", "threads": 1, **options})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), module(X))
    (plan,) = hub.plans(compiled)
    return plan


def stages(diary: Path) -> tuple[Counter[str], Counter[str]]:
    """Return how often each stage was entered: elsewhere, and in this process."""
    lines = [line.split() for line in diary.read_text().splitlines()]
    here = Counter(stage for stage, pid in lines if int(pid) == os.getpid())
    return Counter(stage for stage, pid in lines if int(pid) != os.getpid()), here


def test_everything_but_loading_and_running_happens_elsewhere(install: Install) -> None:
    """The user's process only loads and runs a saved executable, after a worker has done both."""
    diary = install()
    plan = run(model())
    assert plan.backends == ("frail",)
    elsewhere, here = stages(diary)
    assert elsewhere.keys() >= {"create", "supports", "estimate", "compile", "save", "load", "run"}
    assert here.keys() == {"create", "load", "run"}


def test_what_cannot_be_saved_is_compiled_here_after_a_worker_has(install: Install) -> None:
    """Executables that do not cross processes are compiled and run by a worker first."""
    diary = install(saveable=False)
    plan = run(model())
    assert plan.backends == ("frail",)
    elsewhere, here = stages(diary)
    assert (elsewhere["compile"], here["compile"]) == (1, 1)
    lines = diary.read_text().splitlines()
    assert lines.index(f"compile {os.getpid()}") > max(i for i, line in enumerate(lines) if line.startswith("compile")) - 1


def test_without_isolation_everything_happens_here(install: Install) -> None:
    """Debugging a plugin runs all of it in the user's own process."""
    diary = install()
    assert run(model(), isolate=False).backends == ("frail",)
    elsewhere, here = stages(diary)
    assert not elsewhere
    assert here["compile"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        "supports",
        "compile",
        "run",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("create", "estimate", "save", "load")),
    ],
)
def test_a_crash_costs_the_backend_only(fault: str, install: Install) -> None:
    """Wherever the plugin crashes, the model returns eager's result, and the plan names the plugin and the signal."""
    install(fault)
    plan = run(model(), backends=["frail", "eager"])
    assert any(event.backend == "frail" and "SIGSEGV" in event.message for event in plan.events)
    assert fault == "estimate" or "frail" not in plan.backends


@pytest.mark.parametrize("fault", ["compile", "run", "again"])
def test_a_crash_is_not_tried_again(fault: str, install: Install) -> None:
    """A second decision about the same cluster finds the failure of the first one, and its date; renewing tries again.

    Files saved before the crash ("again" is a call after saving) are not used either.
    """
    diary = install(fault)
    run(model(), backends=["frail"])
    first = stages(diary)[0][fault]
    plan = run(model(), backends=["frail"])
    assert stages(diary)[0][fault] == first
    assert "frail" not in plan.backends
    assert any("disabled since" in event.message and "SIGSEGV" in event.message for event in plan.events)
    run(model(), backends=["frail"], renew=True)
    assert stages(diary)[0][fault] == first + 1


@pytest.mark.parametrize("fault", ["compile", "again"])
def test_a_crash_that_is_forgotten_is_tried_again(fault: str, install: Install) -> None:
    """`hub cache forget NAME` is enough: the next compilation tries, and remembers the new outcome."""
    diary = install(fault)
    run(model(), backends=["frail"])
    first = stages(diary)[0][fault]
    run(model(), backends=["frail"])
    assert stages(diary)[0][fault] == first
    found = CliRunner().invoke(app, ["cache", "forget", "frail"])
    assert found.output == "forgot 1 failure of frail\n"
    run(model(), backends=["frail"])
    assert stages(diary)[0][fault] == first + 1
    run(model(), backends=["frail"])
    assert stages(diary)[0][fault] == first + 1


def test_a_plan_made_after_a_crash_is_forgotten_with_it(install: Install) -> None:
    """A measured plan is replayed by later compilations, which then would never try again."""
    diary = install("compile")
    options = {"backends": ["frail", "onnxruntime"], "tune": "fast"}
    assert run(model(), **options).decided_by == "measured whole plans"
    first = stages(diary)[0]["compile"]
    run(model(), **options)
    assert stages(diary)[0]["compile"] == first
    found = CliRunner().invoke(app, ["cache", "forget", "frail"])
    assert re.fullmatch(r"forgot \d failures? of frail, and 1 plan made after it\n", found.output)
    run(model(), **options)
    assert stages(diary)[0]["compile"] > first


def test_a_mended_backend_that_is_forgotten_is_used(install: Install) -> None:
    """The cause lay outside the plugin, so that nothing in the key has changed."""
    diary = install("compile")
    assert run(model(), backends=["frail"]).backends != ("frail",)
    diary.with_suffix(".mended").touch()
    assert run(model(), backends=["frail"]).backends != ("frail",)
    CliRunner().invoke(app, ["cache", "forget", "frail"])
    assert run(model(), backends=["frail"]).backends == ("frail",)


def test_operators_of_the_users_own_process(install: Install) -> None:
    """A graph with an operator that only this process knows is still cut, and its other nodes tried in a worker."""
    diary = install()
    with torch.library._scoped_library("hub_test_own", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = torch.nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.relu(torch.ops.hub_test_own.twice(self.linear(x)))

        plan = run(Net().eval(), backends=["frail"], force={"hub_test_own.twice": "eager"})
        assert "frail" in plan.backends
        assert stages(diary)[0]["compile"] > 0


class Own(torch.nn.Module):
    """A model with an operator that a test has defined in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.hub_test_own.twice(self.linear(x)))


def test_what_no_worker_can_try_is_no_failure_of_the_backend(install: Install) -> None:
    """A cluster with such an operator runs in eager, and nothing is remembered about the backends that support it."""
    install()
    with torch.library._scoped_library("hub_test_own", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        for module in (Own().eval(), Own().eval()):
            torch._dynamo.reset()  # otherwise the second module may run the first one's plan, which has warned already
            compiled = torch.compile(module, backend="hub", options={"tune": "off", "backends": ["frail"]})
            with torch.no_grad(), pytest.warns(HubWarning, match="frail"):
                torch.testing.assert_close(compiled(X), module(X))
            (event,) = [event for event in hub.plans(compiled)[-1].events if event.kind == "fallback"]
            assert "cannot read the graph" in event.message
            assert "disabled since" not in event.message


def test_without_workers_nobody_is_asked(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system starts no process, a plugin's code does not run in the user's instead; the plan says why."""

    def lend(*_: Any) -> None:
        raise WorkerError("a worker process cannot be started: too many processes")

    diary = install()
    with monkeypatch.context() as patch:
        patch.setattr(POOL, "lend", lend)
        plan = run(model(), backends=["frail"])
    assert "frail" not in plan.backends
    (event,) = [event for event in plan.events if event.backend == "frail"]
    assert (event.kind, event.stage) == ("failed", "support")
    assert "too many processes" in event.message
    assert not stages(diary)[1]
    assert run(model(), backends=["frail"]).backends == ("frail",)


def test_operators_of_a_module_are_known_to_workers(install: Install, tmp_path: Path) -> None:
    """A custom operator of an importable module does not prevent a graph from being tried whole."""
    diary = install()
    (tmp_path / "site" / "hub_test_operators.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('hub_test_home::thrice', mutates_args=())\n"
        "def thrice(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 3\n"
        "@thrice.register_fake\n"
        "def _(x):\n"
        "    return torch.empty_like(x)\n"
    )
    from importlib import import_module

    thrice = import_module("hub_test_operators").thrice

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(thrice(x))

    try:
        plan = run(Net())
    finally:
        sys.modules.pop("hub_test_operators")
    assert [cluster.backend for cluster in plan.clusters] == ["frail"]
    elsewhere, here = stages(diary)
    assert elsewhere["supports"] > 0
    assert here["supports"] == 0


def test_changed_state_is_named(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """A plugin that changes the process while it loads is used, the change is undone, and the plan says so."""
    source = PLUGIN.format(fault="", diary=str(tmp_path / "diary"), saveable=True)
    install_plugin("frail", source.replace('note("load")', 'note("load"); os.environ["HUB_TEST_LEFT"] = "1"'))
    plan = run(model())
    assert plan.backends == ("frail",)
    assert "HUB_TEST_LEFT" not in os.environ
    assert any("the environment" in event.message for event in plan.events if event.backend == "frail")


TWICE = "value.mul_(2)"
REVERSED = "value.detach().numpy().__setitem__(..., value.detach().flip(0).numpy())"  # PyTorch counts no such write


@pytest.mark.parametrize("saveable", [True, False])
@pytest.mark.parametrize(("stage", "write"), [("compile", TWICE), ("run", TWICE), ("compile", REVERSED)])
def test_weights_are_not_to_be_written(
    stage: str, write: str, saveable: bool, install_plugin: Callable[[str, str], None], tmp_path: Path
) -> None:
    """Eager with changed weights would agree with the plugin: it is rejected, and the user's weights are restored."""
    source = PLUGIN.format(fault="", diary=str(tmp_path / "diary"), saveable=saveable)
    holder = "cluster" if stage == "compile" else "self.cluster"
    act = f'note("{stage}"); [{write} for value in {holder}.constants.values()]'
    source = source.replace("self.module = cluster.module", "self.module = cluster.module; self.cluster = cluster")
    install_plugin("frail", source.replace(f'note("{stage}")', act))
    module = model()
    before = [weight.clone() for weight in module.parameters()]
    plan = run(module, backends=["frail"])
    assert "frail" not in plan.backends
    assert any("wrote to the weight" in event.message for event in plan.events)
    assert all(torch.equal(weight, was) for weight, was in zip(module.parameters(), before, strict=True))


def test_the_program_is_not_to_be_changed(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """A backend that rewrites its cluster, with which it is compared, is rejected."""
    source = PLUGIN.format(fault="", diary=str(tmp_path / "diary"), saveable=True)
    act = """note("compile")
        import torch
        for node in cluster.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.sin.default
        cluster.module.recompile()"""
    install_plugin("frail", source.replace('note("compile")', act))
    plan = run(model(), backends=["frail"])
    assert "frail" not in plan.backends
    assert any("changed the program" in event.message for event in plan.events)


CHANGER = """
from hub import Backend, BackendInfo, Executable, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="frail", factory="hub_frail:Frail", summary="")]

class Frail(Backend):
    def supports(self, node):
        import torch
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.sin.default
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return Run(cluster, next(name for name in ("sin", "relu") if name in str(cluster.nodes[-1].target)))

    def load(self, folder, cluster, settings):
        return Run(cluster, (folder / "function").read_text())

class Run(Executable):
    def __init__(self, cluster, function):
        self.weights, self.function = list(cluster.constants.values()), function

    def __call__(self, x):
        import torch
        with torch.no_grad():
            return [getattr(torch, self.function)(torch.nn.functional.linear(x, *self.weights))]

    def save(self, folder):
        (folder / "function").write_text(self.function)
"""


@pytest.mark.parametrize("isolate", [True, False])
def test_the_graph_is_not_to_be_changed(isolate: bool, install_plugin: Callable[[str, str], None]) -> None:
    """A backend that changes the graph while it is called changes a copy, and the plan says so.

    Clusters would be extracted from the changed program, verified against it in the worker, and identified here by its
    results.
    """
    install_plugin("frail", CHANGER)
    plan = run(model(), backends=["frail"], isolate=isolate)
    assert plan.backends == ("frail",)
    assert any("changed the graph" in event.message for event in plan.events if event.backend == "frail")


def test_an_executable_that_changes_state_is_put_away(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """Random numbers drawn in every call would change the user's own: such an executable is not used."""
    source = PLUGIN.format(fault="", diary=str(tmp_path / "diary"), saveable=True)
    install_plugin("frail", source.replace('note("run")', 'note("run"); torch.rand(1)'))
    plan = run(model(), backends=["frail"])
    assert "frail" not in plan.backends
    assert any("PyTorch's random numbers" in event.message for event in plan.events)
