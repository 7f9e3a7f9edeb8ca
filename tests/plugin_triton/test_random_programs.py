"""Clusters that no person chose: what Triton gets of random programs, interpreted, and compiled for GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import hub
from hub.frontend.ownership import graphs_of
from hub.partition.extract import extract
from hub.partition.group import group_alone
from hub.testing.random_programs import Program, check, programs
from hub.toolkit.cluster import lower
from plugin_triton.runtime import NAME
from plugin_triton.source import file_of
from plugin_triton.support import INTERPRETED
from plugin_triton.targets import Target, compiled

OPTIONS = {"backends": ("triton",), "tune": "off", "isolate": False, "triton": {"interpret": True}}
EAGER = {"backends": ("eager",), "tune": "off"}
IN_ANY_CASE = 25
CLUSTERS = 200


def examples(count: int) -> Any:
    """Return how many examples to try, always the same ones."""
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


def check_interpreted(program: Program) -> None:
    """Fail if results are not eager's, or if a cluster of Triton's failed."""
    torch._dynamo.reset()
    function: Any = torch.compile(program.function(), backend="hub", options=OPTIONS, dynamic=False)
    with torch.no_grad():
        check(program, function)
    events = [event for plan in hub.plans(function) for event in plan.events]
    assert [event for event in events if event.kind in ("failed", "fallback")] == []


def check_compiled(program: Program, target: Target) -> None:
    """Fail if a kernel cannot be compiled for a GPU."""
    torch._dynamo.reset()
    function: Any = torch.compile(program.function(), backend="hub", options=EAGER, dynamic=False)
    with torch.no_grad():
        function(*program.arguments())
    for graph in (found.graph for found in graphs_of(function)):
        groups, _ = group_alone(graph, NAME, INTERPRETED.supports)
        for place, group in enumerate(group for group in groups if group.backend == NAME):
            cluster = extract(graph, group.nodes, f"c{place}", {})
            file = file_of(cluster, lower(cluster), is_interpreted=False)
            assert all(each.needs.registers for each in compiled(file, target))


@examples(IN_ANY_CASE)
@given(program=programs())
def test_programs_give_what_eager_gives(program: Program) -> None:
    """Broadcasts, views, writes, several results, mixed dtypes."""
    check_interpreted(program)


@examples(3)
@given(program=programs())
def test_programs_compile_for_a_gpu(program: Program) -> None:
    """Down to the binary."""
    check_compiled(program, Target.parse("cuda:90"))


@pytest.mark.slow
@examples(CLUSTERS)
@given(program=programs())
def test_many_programs_give_what_eager_gives(program: Program) -> None:
    """The same, two hundred times."""
    check_interpreted(program)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@examples(CLUSTERS)
@given(program=programs())
def test_many_programs_compile_for_gpus(program: Program, target: str) -> None:
    """The same, two hundred times, for both makers."""
    check_compiled(program, Target.parse(target))
