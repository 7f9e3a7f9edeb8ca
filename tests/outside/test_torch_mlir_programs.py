"""The script that runs torch-mlir's programs: on a registry of our own here, on theirs where a checkout is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outside.torch_mlir_programs import PACKAGE, VARIABLE, Suite, main, outcomes, suite_in

REGISTRY = """
GLOBAL_TEST_REGISTRY = []


def register_test_case(module_factory):
    def note(function):
        GLOBAL_TEST_REGISTRY.append(Test(function.__name__, module_factory, function))
        return function

    return note


from .framework import Test
"""
FRAMEWORK = """
from typing import Any, NamedTuple

import multiprocess as mp  # what only their runner uses
import torch


class TestUtils:
    def __init__(self):
        torch.manual_seed(0)

    def rand(self, *sizes):
        return torch.rand(sizes)


class Test(NamedTuple):
    unique_name: str
    program_factory: Any
    program_invoker: Any
"""
PROGRAMS = """
import torch
import torchvision.ops

from torch_mlir_e2e_test.registry import register_test_case


class Sigmoid(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * 2.0


class Sorting(torch.nn.Module):
    def forward(self, x):
        return torch.sort(x * 2.0)[0]


class Forgetful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + (1.0 if torch.compiler.is_compiling() else 2.0)


class Failing(torch.nn.Module):
    def forward(self, x):
        return torchvision.ops.deform_conv2d(x)


class Untraceable(torch.nn.Module):
    def forward(self, x):
        return torch.rsub(torch.ops.prim.NumToTensor.Scalar(5), 2) + x


@register_test_case(module_factory=lambda: Untraceable())
def UntraceableModule_basic(module, tu):
    module(tu.rand(3))


@register_test_case(module_factory=lambda: Sigmoid())
def TimeOutModule_basic(module, tu):
    while True:
        pass


@register_test_case(module_factory=lambda: Sigmoid())
def SigmoidModule_basic(module, tu):
    module.forward(tu.rand(3, 4))


@register_test_case(module_factory=lambda: Sigmoid())
def ChainedModule_basic(module, tu):
    module.forward(module.forward(tu.rand(3, 4)))


@register_test_case(module_factory=lambda: Sorting())
def SortModule_basic(module, tu):
    module.forward(tu.rand(3, 4))


@register_test_case(module_factory=lambda: Forgetful())
def WrongModule_basic(module, tu):
    module(tu.rand(3))


@register_test_case(module_factory=lambda: Failing())
def FailingModule_basic(module, tu):
    module.forward(tu.rand(3))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a registry like torch-mlir's."""
    package = tmp_path / "projects" / "pt1" / "python" / PACKAGE
    (package / "test_suite").mkdir(parents=True)
    for name, text in (("registry", REGISTRY), ("framework", FRAMEWORK), ("__init__", ""), ("test_suite/__init__", "")):
        (package / f"{name}.py").write_text(text)
    (package / "test_suite" / "basic.py").write_text(PROGRAMS)
    (package / "test_suite" / "broken.py").write_text("import torch_mlir._torch_mlir_custom_op_example\n")
    before = set(sys.modules)
    yield tmp_path
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(tmp_path))]
    for name in set(sys.modules) - before:
        if name.startswith((PACKAGE, "torchvision", "multiprocess")):
            sys.modules.pop(name, None)


def test_programs_are_run_and_counted(checkout: Path) -> None:
    """DISC runs what it supports; wrong programs and those that run nowhere are distinguished."""
    suite = suite_in(checkout)
    assert [reason.split(":")[0] for reason in suite.left_out] == ["broken.py"]
    found = {outcome.name: outcome for outcome in outcomes(suite, "", None, dynamic=False)}
    assert (found["SigmoidModule_basic"].verdict, found["SigmoidModule_basic"].by_disc) == ("right", 2)
    assert found["ChainedModule_basic"].verdict == "right"
    sorting = found["SortModule_basic"]
    assert sorting.verdict == "right"
    assert sorting.by_disc < sorting.nodes
    assert found["WrongModule_basic"].verdict == "differs"
    assert found["FailingModule_basic"].verdict == "not run"
    assert found["UntraceableModule_basic"].verdict == "not run"
    assert found["TimeOutModule_basic"].verdict == "not run"


def test_the_script_ends_with_1_for_a_wrong_program(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with 0 for right ones; a filter chooses among them."""
    monkeypatch.setenv(VARIABLE, str(checkout))
    assert main(["--filter", "Sigmoid"]) == 0
    assert "1 programs: {'right': 1," in capsys.readouterr().out
    assert main(["--filter", "Wrong"]) == 1


def test_processes_share_the_programs(checkout: Path) -> None:
    """Each program is in one part."""
    suite = suite_in(checkout)
    parts = [[each.name for each in outcomes(suite, "Out|Sig|Fail", None, dynamic=False, part=(k, 2))] for k in (1, 2)]
    assert parts == [["FailingModule_basic", "TimeOutModule_basic"], ["SigmoidModule_basic"]]


def test_without_a_checkout_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the variable's name, or by what is missing in the folder."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main([]) == 2
    assert VARIABLE in capsys.readouterr().out
    with pytest.raises(ImportError, match="no checkout of torch-mlir"):
        suite_in(tmp_path)


def test_torch_mlirs_own_programs() -> None:
    """A few of theirs give eager's results, and DISC runs all their nodes; the script runs the others."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} is not set: the path of a checkout of torch-mlir is expected there")
    suite: Suite = suite_in(Path(os.environ[VARIABLE]))
    assert len(suite.programs) > 1000
    found = list(outcomes(suite, "^ElementwiseClamp", 10, dynamic=False))
    assert [outcome.verdict for outcome in found] == ["right"] * 10
    assert all(outcome.by_disc == outcome.nodes for outcome in found)
