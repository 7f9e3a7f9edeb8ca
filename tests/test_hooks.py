"""The hooks: each is called when its documentation says, and an observer that raises disturbs no other."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import hub
from hub.config.options import Options
from hub.discovery.plugins import Plugin
from hub.discovery.registry import Registry, registry
from hub.errors import HubWarning
from hub.partition.group import Group
from hub.partition.proposals import offered_by_plugins, proposed
from hub.partition.verdicts import ask_backends
from hub.planning.building import observe
from hub.testing.single import capture

OBSERVER = """
from hub import hookimpl

seen = []

@hookimpl
def hub_plan_made(plan):
    seen.append(("plan", plan))
    {action}

@hookimpl
def hub_cluster_compiled(backend, cluster, compile_s):
    seen.append(("compiled", backend, cluster, compile_s))

@hookimpl
def hub_fallback(backend, cluster, reason):
    seen.append(("fallback", backend, cluster, reason))
"""

BACKEND = """
from hub import Backend, BackendInfo, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="plain", factory="hub_plain:Plain", summary="")]

class Plain(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        if {fails}:
            raise ValueError("no")
        return lambda *inputs: [value + 0 for value in cluster.module(*inputs)]
"""


def observed(install_plugin: Any, *, fails: bool = False, action: str = "pass") -> tuple[list[Any], hub.Plan]:
    """Run a model with the backend and the observer; return what was observed, and the plan."""
    install_plugin("plain", BACKEND.format(fails=fails))
    install_plugin("observer", OBSERVER.format(action=action))
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="hub", options={"tune": "off", "backends": ["plain"]})
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
        compiled(x)
    return sys.modules["hub_observer"].seen, hub.plans(compiled)[0]


def test_hub_backends(install_plugin: Any) -> None:
    """A plugin's backends are listed under their names."""
    install_plugin("plain", BACKEND.format(fails=False))
    listed = {item.name: item for item in hub.list_backends()}
    assert listed["plain"].package == "hub-plain"


def test_hub_candidates(install_plugin: Any) -> None:
    """The plugin in the documentation proposes each gelu of a linear layer as one cluster."""
    text = (Path(__file__).parent.parent / "docs" / "reference" / "hooks.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    install_plugin("mine", BACKEND.format(fails=False).replace("plain", "mine"))
    install_plugin("matcher", example)
    graph = capture(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval(), (torch.ones(2, 4),)).graph
    options = Options(backends=("mine",))
    verdicts = ask_backends(graph, registry(), options)
    assert proposed(graph, offered_by_plugins(graph, registry()), verdicts, options) == (
        (Group("mine", ("linear", "gelu")),),
        (),
    )


MISFIT = """
from hub import hookimpl

@hookimpl
def hub_plan_made(plan, weather): ...
"""
UNKNOWN = """
from hub import hookimpl

@hookimpl
def hub_plan_mad(plan): ...
"""
UNMARKED = "def hub_plan_made(plan): ..."


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (MISFIT, "weather"),
        (UNKNOWN, "unknown hook 'hub_plan_mad'"),
        (UNMARKED, "hub_plan_made is not marked by hub.plugin."),
    ],
    ids=["another signature", "no such hook", "no decorator"],
)
def test_a_plugin_whose_hook_does_not_fit_is_refused_alone(source: str, reason: str, install_plugin: Any) -> None:
    """It is listed with the reason, and plugins after it are registered as before."""
    install_plugin("aaa_odd", source)
    install_plugin("plain", BACKEND.format(fails=False))
    listed = {item.name: item for item in hub.list_backends()}
    assert not listed["aaa_odd"].available and reason in listed["aaa_odd"].reason
    assert listed["plain"].available


class Wrapped:
    """Implements a hook under another name, with one of its three arguments, and wraps itself."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hub.hookimpl(specname="hub_fallback")
    def note(self, reason: str) -> None:
        self.seen.append(reason)

    @hub.hookimpl(wrapper=True)
    def hub_fallback(self) -> Generator[None, None, None]:
        self.seen.append("before")
        yield
        self.seen.append("after")


class Failing:
    """Fails whenever it observes something."""

    @hub.hookimpl
    def hub_fallback(self) -> None:
        raise SystemExit


def test_hooks_are_called_as_pluggy_calls_them() -> None:
    """Names, subsets of arguments and wrappers count; what another plugin raises does not."""
    wrapped = Wrapped()
    plugins = (Plugin.of("failing", Failing()), Plugin.of("wrapped", wrapped))
    observe(Registry((), plugins), "hub_fallback", backend="toy", cluster="c0", reason="no kernel")
    assert wrapped.seen == ["before", "no kernel", "after"]


def test_hub_plan_made(install_plugin: Any) -> None:
    """Each plan is observed once."""
    seen, plan = observed(install_plugin)
    assert [item[1] for item in seen if item[0] == "plan"] == [plan]


def test_hub_cluster_compiled(install_plugin: Any) -> None:
    """Each compiled cluster is observed with its seconds."""
    seen, _ = observed(install_plugin)
    found = [item for item in seen if item[0] == "compiled"]
    assert [item[1:3] for item in found] == [("plain", "c0")]
    assert found[0][3] > 0


def test_hub_fallback(install_plugin: Any) -> None:
    """A cluster that leaves its backend is observed with the reason."""
    with pytest.warns(HubWarning, match="no"):
        seen, _ = observed(install_plugin, fails=True)
    found = [item for item in seen if item[0] == "fallback"]
    assert [item[1] for item in found] == ["plain"]
    assert "ValueError: no" in found[0][3]


def test_an_observer_that_raises_disturbs_nobody(install_plugin: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An observer's exception is logged and goes no further."""
    with caplog.at_level(logging.WARNING, logger="hub"):
        observed(install_plugin, action="1 / 0")
    assert "hub_plan_made of plugin observer raised" in caplog.text


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"name": "eager"}, "no backend can be named 'eager': that is PyTorch itself"),
        ({"name": "../../x"}, "name '../../x' is not a short lower-case word"),
        ({"name": "a,b"}, "name 'a,b' is not a short lower-case word"),
        ({"name": ""}, "name '' is not a short lower-case word"),
        ({"dtypes": ("32 bits",)}, "dtypes names '32 bits', which is no word"),
        ({"devices": "cpu"}, "devices is 'cpu', a tuple of words expected"),
        ({"factory": "module"}, "factory 'module' has not the form \"package.module:callable\""),
        ({"max_relative_error": float("nan")}, "max_relative_error is nan, a number of at least 0 expected"),
        ({"max_relative_error": -1.0}, "max_relative_error is -1.0, a number of at least 0 expected"),
        ({"training": "yes"}, "training is 'yes', True or False expected"),
    ],
)
def test_a_wrong_description_makes_a_backend_unavailable(install_plugin: Any, facts: dict[str, Any], reason: str) -> None:
    """Nothing of it is imported, and `hub list-backends` says what is wrong."""
    given = {"name": "wrongly", "factory": "hub_wrongly:create", "summary": "", **facts}
    lines = ("nan = float('nan')", "from hub import BackendInfo, hookimpl", "@hookimpl", "def hub_backends():")
    text = "\n".join((*lines, f"    return [BackendInfo(**{given!r})]", ""))
    install_plugin("wrongly", text)
    (entry,) = [
        entry for entry in registry().entries.values() if entry.package == "hub-wrongly" or entry.name == given["name"]
    ]
    assert not entry.status.accepted
    assert entry.status.reason == reason
