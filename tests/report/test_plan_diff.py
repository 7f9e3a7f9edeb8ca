"""The difference of two plan files: who moved, what was cut otherwise, settings, times."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from hub.plan import Plan, PlannedCluster
from hub.report.plan_diff import Change, GraphDiff, Moved, Recut, diff_facts, diff_text, plan_diff


def plan(*clusters: tuple[str, str], **facts: Any) -> Plan:
    """Return a plan of clusters ("backend", "node node"), named by their position."""
    made = (
        PlannedCluster(name=f"c{index}", backend=backend, nodes=tuple(nodes.split()), operators=("aten.relu.default",) * 2)
        for index, (backend, nodes) in enumerate(clusters)
    )
    return Plan(**{"graph": "graph0", "threads": 1, "clusters": tuple(made)} | facts)


def difference(one: Plan, other: Plan) -> GraphDiff:
    (found,) = plan_diff((one,), (other,))
    return found


def shown(*diffs: GraphDiff, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=100, force_terminal=colour, color_system="standard" if colour else None, highlight=False
    )
    console.print(diff_text(diffs, "a.json", "b.json"))
    return console.file.getvalue()  # pyright: ignore


def test_equal_plans_differ_in_nothing(mixed: Plan) -> None:
    """Names of graphs and clusters, evidence and the time to plan are no differences."""
    renamed = [cluster.model_copy(update={"name": "x", "reason": "y", "bids": ()}) for cluster in mixed.clusters]
    other = mixed.model_copy(update={"graph": "graph9", "clusters": tuple(renamed), "events": (), "plan_s": 9.0})
    assert difference(mixed, other).is_empty
    assert diff_facts(plan_diff((mixed,), (other,))) == {"equal": True, "graphs": []}


def test_moved_nodes_are_grouped_by_cluster() -> None:
    """One entry for each pair of clusters."""
    found = difference(plan(("ort", "a b"), ("tvm", "c")), plan(("ort", "a"), ("tvm", "b c")))
    assert found.moved == (Moved("c0", "ort", "c1", "tvm", ("b",), ("aten.relu.default",)),)


def test_a_cluster_that_was_cut_and_one_that_was_joined() -> None:
    """Splits are described by the first plan's names, merges by the second's."""
    whole, cut = plan(("ort", "a b")), plan(("ort", "a"), ("ort", "b"))
    assert difference(whole, cut).split == (Recut("c0", ("c0", "c1")),)
    assert difference(whole, cut).moved == ()
    assert difference(cut, whole).merged == (Recut("c0", ("c0", "c1")),)
    assert difference(cut, whole).split == ()


def test_settings_that_differ() -> None:
    """Threads, busy-waiting, accuracy, effort."""
    found = difference(plan(("ort", "a b")), plan(("ort", "a b"), threads=2, busy_wait=True, accuracy=0.01, effort="full"))
    assert found.settings == (
        Change("threads", 1, 2),
        Change("busy_wait", False, True),
        Change("accuracy", None, 0.01),
        Change("effort", "fast", "full"),
    )


def test_times_of_the_plan_and_of_clusters_in_both() -> None:
    """A cluster on another backend, or of other nodes, has no time to compare."""
    one, other = plan(("ort", "a b"), ("tvm", "c"), measured_s=2e-3), plan(("ort", "a b"), ("ort", "c"), measured_s=1e-3)
    timed = other.clusters[0].model_copy(update={"predicted_s": 0.5})
    other = other.model_copy(update={"clusters": (timed, other.clusters[1])})
    assert difference(one, other).times == (Change("measured", 2e-3, 1e-3), Change("c0 predicted", None, 0.5))


def test_nodes_that_one_plan_lacks() -> None:
    """Plans of two versions of a model."""
    found = difference(plan(("ort", "a b")), plan(("ort", "a c")))
    assert (found.removed, found.added) == (("b",), ("c",))


def test_graphs_pair_by_digest_before_nodes() -> None:
    """The order of a file does not matter; a graph without a partner is named."""
    one, two = plan(("ort", "a b"), graph_digest="1"), plan(("ort", "a b"), graph_digest="2", graph="graph1")
    found = plan_diff((one, two), (two, one, plan(("ort", "z"), graph="new")))
    assert [diff.is_empty for diff in found] == [True, True, False]
    assert found[2] == GraphDiff("new", "second")
    assert plan_diff((one, two), (two,))[0] == GraphDiff("graph0", "first")


def test_the_report_fits_a_page_and_is_coloured_on_a_terminal_only() -> None:
    """One line a change."""
    one = plan(("ort", "a b"), ("tvm", "c"), measured_s=2e-3)
    other = plan(("ort", "a"), ("eager", "b c"), measured_s=1e-3, threads=2, accuracy=0.01)
    text = shown(difference(one, other), GraphDiff("graph1", "second"))
    assert text.splitlines() == [
        "--- a.json",
        "+++ b.json",
        "graph0",
        "  c0 ort -> c1 eager: 1 node, relu (b)",
        "  c1 tvm -> c1 eager: 1 node, c (c)",
        "  c0 is split into c0, c1",
        "  c1 is merged from c0, c1",
        "  threads: 1 -> 2",
        "  accuracy: none -> 0.01",
        "  measured: 2.00 ms -> 1.00 ms (0.50x)",
        "graph1",
        "  only in b.json",
    ]
    assert "\x1b[" not in text
    assert "\x1b[" in shown(difference(one, other), colour=True)
