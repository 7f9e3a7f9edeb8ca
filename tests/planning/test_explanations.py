"""`hub.explain` shows what backends report about their clusters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hub
from hub.plan import Plan

SOURCE = """
    from hub import BackendInfo, hookimpl
    from hub.plugin.backend import Backend, Executable
    from hub.plugin.table import ACCEPTED


    class Talker(Backend):
        def supports(self, node):
            return ACCEPTED

        def compile(self, cluster, settings):
            raise NotImplementedError

        def explain(self, cluster, settings, inputs):
            ANSWER


    @hookimpl
    def hub_backends():
        return (BackendInfo(name="talker", factory="hub_talker:Talker", summary=""),)
"""
Install = Callable[[str, str], None]
TELLS = """return f"{cluster.name} has {len(inputs)} input\\n  of {float(inputs[0].sum()):g} in all\\n" """


def explained(*, isolate: bool) -> Plan:
    """Return the plan of a tanh of a relu, which only the backend above may run."""
    given = {"backends": ["talker"], "isolate": isolate}
    (plan,) = hub.explain(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.tensor([1.0, 2.0]), options=given)
    return plan


@pytest.mark.parametrize("isolate", [True, False])
def test_what_a_backend_tells_is_in_the_plan(isolate: bool, install_plugin: Install) -> None:
    """A worker calls the backend with the cluster's real inputs; the text is printed, and part of the JSON."""
    install_plugin("talker", SOURCE.replace("ANSWER", TELLS))
    plan = explained(isolate=isolate)
    assert plan.clusters[0].report == "c0 has 1 input\n  of 3 in all"
    assert "\nc0 on talker\n  c0 has 1 input\n    of 3 in all" in str(plan)
    assert json.loads(plan.to_json())["clusters"][0]["report"] == plan.clusters[0].report


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("raise ValueError('no idea')", "no idea"),
        ("return 3", "explain() returned an int, not text"),
        ("import os; os._exit(3)", ""),
    ],
)
def test_one_that_fails_at_it_costs_a_note(answer: str, problem: str, install_plugin: Install) -> None:
    """The plan is unchanged, and says what went wrong."""
    install_plugin("talker", SOURCE.replace("ANSWER", answer))
    plan = explained(isolate=True)
    assert plan.backends == ("talker",)
    (event,) = (event for event in plan.events if event.stage == "explain")
    assert (event.kind, event.backend, event.cluster) == ("note", "talker", "c0")
    assert problem in event.message


@pytest.mark.parametrize("isolate", [True, False])
def test_one_without_the_method_explains_nothing(isolate: bool, install_plugin: Install) -> None:
    """The plan has no report, and no note."""
    install_plugin("talker", SOURCE.replace("ANSWER", "raise ValueError").replace("def explain", "def something_else"))
    plan = explained(isolate=isolate)
    assert plan.clusters[0].report == ""
    assert not [event for event in plan.events if event.stage not in ("verify", "later")]  # a slow machine skips kinds


def test_the_terminal_does_not_wrap_it(install_plugin: Install, tmp_path: Path) -> None:
    """Tables of backends keep their lines, however narrow the terminal is."""
    install_plugin("talker", SOURCE.replace("ANSWER", "return 'long ' * 40"))
    (tmp_path / "model.py").write_text("import torch\n\ndef make():\n    return torch.nn.Tanh(), (torch.ones(2),)\n")
    from hub.cli.app import app

    done = CliRunner().invoke(app, ["explain", f"{tmp_path}/model.py:make", "--backends", "talker"])
    assert "long " * 39 + "long" in done.output
