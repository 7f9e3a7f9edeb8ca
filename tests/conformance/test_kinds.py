"""Plugins of each kind that the contract allows pass, if they keep its promises."""

from __future__ import annotations

from collections.abc import Callable

from hub.testing.conformance.step import Step
from hub.testing.conformance.suite import Suite

Install = Callable[[str, str], None]

HALVES = """
from hub.plugin import Backend, BackendInfo, Executable, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="halves", factory="hub_halves:Halves", summary="two clusters for each program")]

class Halves(Backend):
    def partition(self, graph):
        names = [node.name for node in graph.nodes if node.name not in graph.pinned]
        return [names[: len(names) // 2], names[len(names) // 2 :]]

    def compile(self, cluster, settings):
        return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        return self.module(*inputs)
"""
ROUGH = """
from hub.plugin import Backend, BackendInfo, Executable, OperatorTable, dtypes, hookimpl

OPERATORS = OperatorTable({"aten.relu.default": (), "aten.linear.default": ()}, everywhere=(dtypes("float32"),))

@hookimpl
def hub_backends():
    return [BackendInfo(
        name="rough", factory="hub_rough:Rough", summary="rounds", operators="hub_rough:OPERATORS", max_relative_error=0.03,
    )]

class Rough(Backend):
    def compile(self, cluster, settings):
        return Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module

    def __call__(self, *inputs):
        return [value.bfloat16().float() for value in self.module(*inputs)]
"""


def failures(backend: str, *subjects: str) -> list[str]:
    """Return the failed findings of the examinations of a backend's operators."""
    suite = Suite(backend, has_hard=False)
    try:
        found = [finding for subject in subjects for finding in suite.examine(Step("operators", subject, "support"))]
    finally:
        suite.close()
    assert found
    return [str(finding) for finding in found if finding.verdict == "failed"]


def test_a_partitioner_may_make_several_clusters_of_a_program(install_plugin: Install) -> None:
    """It takes each call alone, and does not take the program of all of them whole: no promise is broken."""
    install_plugin("halves", HALVES)
    assert failures("halves", "functions", "reductions") == []


def test_an_allowed_error_counts_relative_to_the_largest_value_if_there_is_one(install_plugin: Install) -> None:
    """Results without elements are right, whatever error a backend declares."""
    install_plugin("rough", ROUGH)
    assert failures("rough", "aten.relu.default", "aten.linear.default") == []
