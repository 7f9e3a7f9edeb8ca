"""What a backend gets without writing it: answers from its operator table, and a probe that runs a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from hub.discovery.registry import registry
from hub.errors import CompileError, ContractError, PluginLoadError
from hub.plugin import ACCEPTED, Backend, Cluster, CompileSettings, Executable, OperatorTable, Support, run_addition
from hub.plugin.backend import abilities
from hub.plugin.probing import addition

PLUGIN = """
from hub.plugin import Backend, BackendInfo, OperatorTable, hookimpl

OPERATORS = OperatorTable({{"aten.relu.default": ()}})
OTHERS = OperatorTable({{"aten.tanh.default": ()}})

@hookimpl
def hub_backends():
    return [BackendInfo(name="plain", factory="hub_plain:Plain", summary="", operators="{operators}")]

class Plain(Backend):
    {body}

    def compile(self, cluster, settings):
        raise NotImplementedError
"""


def call(operator: Any) -> fx.Node:
    """Return a node that calls an operator."""
    graph = fx.Graph()
    return graph.call_function(operator, (graph.placeholder("x"),))


@pytest.mark.parametrize(
    ("body", "supported"),
    [("pass", torch.ops.aten.relu.default), ("operators = OTHERS", torch.ops.aten.tanh.default)],
    ids=["registered", "its own"],
)
def test_a_table_answers_for_a_backend(install_plugin: Any, body: str, supported: Any) -> None:
    """The class's own table comes before the one that the registration names."""
    install_plugin("plain", PLUGIN.format(operators="hub_plain:OPERATORS", body=body))
    backend = registry().backend("plain")
    for operator in (torch.ops.aten.relu.default, torch.ops.aten.tanh.default):
        assert backend.supports(call(operator)).accepted == (operator is supported)


def test_a_backend_without_any_answer_is_refused(install_plugin: Any) -> None:
    """It would fail at its first node."""
    install_plugin("plain", PLUGIN.format(operators="", body="pass"))
    with pytest.raises(ContractError, match="neither an operator table nor a method `supports`"):
        registry().backend("plain")


def test_a_table_that_is_not_there_is_named(install_plugin: Any) -> None:
    """The error is the plugin's, and says what was looked for."""
    install_plugin("plain", PLUGIN.format(operators="hub_plain:MISSING", body="pass"))
    with pytest.raises(PluginLoadError, match="MISSING"):
        registry().backend("plain")


class Adding(Backend):
    """Compiles one addition as it is told to."""

    operators = OperatorTable({"aten.add.Tensor": ()})

    def __init__(self, compiled: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self.compiled = compiled

    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        return self.compiled  # pyright: ignore[reportReturnType] - a function is enough here


class Saving(Adding):
    """Loads what it saved."""

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:
        raise NotImplementedError


class Apart:
    """Fulfils the contract without being derived from it."""

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:
        raise NotImplementedError


def test_what_a_backend_can_do_follows_from_its_class() -> None:
    """A method that it inherits from the contract's own class is none of its own."""
    assert abilities(Adding(failing)) == frozenset()
    assert abilities(Saving(failing)) == abilities(Apart()) == {"load"}


def failing(x: torch.Tensor) -> Sequence[torch.Tensor]:
    raise CompileError("no compiler here")


@pytest.mark.parametrize(
    ("compiled", "expected"),
    [
        (lambda x: [x + x], ACCEPTED),
        (lambda x: [x * x], Support(accepted=False, reason="1+1 and 2+2 gave [[1.0, 4.0]]")),
        (lambda x: [], Support(accepted=False, reason="1+1 and 2+2 gave []")),
        (failing, Support(accepted=False, reason="no compiler here")),
    ],
    ids=["right", "wrong", "nothing", "raises"],
)
def test_the_default_probe_runs_an_addition(compiled: Any, expected: Support) -> None:
    """A backend that gives something else, or raises an error of the hub's, does not work here."""
    assert Adding(compiled).probe() == expected


def test_a_backend_that_does_not_add_has_nothing_to_run() -> None:
    """The probe then accepts it."""
    backend = Adding(failing)
    backend.operators = OperatorTable({"aten.relu.default": ()})
    assert run_addition(backend) == ACCEPTED


def test_the_addition_is_a_program_that_runs() -> None:
    """On the device that it is made for."""
    (found,) = addition(torch.device("cpu")).module(torch.tensor([1.0, 2.0]))
    assert found.tolist() == [2.0, 4.0]
