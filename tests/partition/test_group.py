"""Grouping: every node in exactly one convex group, and groups in an order in which they can run."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hub.errors import PlanError
from hub.partition.extract import check_convex, extract
from hub.partition.group import EAGER, group, without_trivial_groups
from hub.plugin.graph import Graph
from hub.plugin.table import devices_of
from hub.testing import random_graphs


@given(random_graphs.graphs(), st.data())
def test_groups_cover_every_node_once_in_a_runnable_order(graph: Graph, data: st.DataObject) -> None:
    """Each node is in one group of its own backend, each group is convex, and none reads from a later one."""
    names = ("a", "b", EAGER)
    backend_of = {node.name: data.draw(st.sampled_from(names)) for node in graph.nodes}
    groups = group(graph, backend_of)
    listed = [name for found in groups for name in found.nodes]
    assert sorted(listed) == sorted(backend_of)
    place = {name: position for position, found in enumerate(groups) for name in found.nodes}
    for node in graph.nodes:
        assert groups[place[node.name]].backend == backend_of[node.name]
        assert all(place[source.name] <= place[node.name] for source in node.all_input_nodes if source.name in place)
    for found in groups:
        check_convex(tuple(graph.by_name[name] for name in found.nodes), "g")


@given(random_graphs.graphs())
def test_one_backend_gives_one_group(graph: Graph) -> None:
    """Where one backend takes all, there is one cluster."""
    assert len(group(graph, {node.name: "a" for node in graph.nodes})) == 1


def test_independent_eager_work_does_not_split_a_cluster() -> None:
    """A node that needs nothing from the cluster runs before it, and not in the middle of it."""
    graph = random_graphs.graph_of([(0, 0), (0, 0), (1, 2)])
    first, aside, last = (node.name for node in graph.nodes)
    groups = group(graph, {first: "a", aside: EAGER, last: "a"})
    assert [(found.backend, found.nodes) for found in groups] == [(EAGER, (aside,)), ("a", (first, last))]


def on_two_devices() -> Graph:
    """Return additions on each of two devices in turn, with a copy from the first to the second at the end."""
    with FakeTensorMode(), torch.no_grad():
        x, y = torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")
        module = make_fx(lambda x, y: ((x + 1).cos(), (y + 1).cos() + (x + 1).cos().to("cuda:1")))(x, y)
    return Graph(module, "two")


def test_a_clusters_results_lie_on_one_device() -> None:
    """What one backend takes on two devices becomes a cluster on each, with eager's copy between them."""
    graph = on_two_devices()
    (copy,) = (node.name for node in graph.nodes if node.target is torch.ops.aten._to_copy.default)
    groups = group(graph, {node.name: EAGER if node.name == copy else "a" for node in graph.nodes})
    places = [{str(device) for name in found.nodes for device in devices_of(graph.by_name[name])} for found in groups]
    assert [found.backend for found in groups] == ["a", EAGER, "a"]
    assert places == [{"cuda:0"}, {"cuda:1"}, {"cuda:1"}]


def test_eager_may_have_all_devices_at_once() -> None:
    """Nothing is compiled for its nodes, and each group of it would only be one more step."""
    graph = on_two_devices()
    assert len(group(graph, {node.name: EAGER for node in graph.nodes})) == 1


def test_a_tuples_elements_stay_with_it() -> None:
    """Whatever device one of them lies on."""
    program = fx.Graph()
    x = program.placeholder("x")
    pair = program.call_function(torch.ops.aten.aminmax.default, (x,))
    parts = [program.call_function(operator.getitem, (pair, index)) for index in range(2)]
    program.output(tuple(parts))
    with FakeTensorMode():
        x.meta["val"] = parts[0].meta["val"] = torch.empty((), device="cuda:0")
        parts[1].meta["val"] = torch.empty(())
    pair.meta["val"] = tuple(part.meta["val"] for part in parts)
    graph = Graph(fx.GraphModule({}, program), "pair")
    assert len(group(graph, {node.name: "a" for node in graph.nodes})) == 1
    assert devices_of(pair) == devices_of(parts[1]) == (torch.device("cuda:0"), torch.device("cpu"))


def test_the_same_nodes_give_the_same_groups() -> None:
    """Order comes from the graph alone."""
    graph, same = (random_graphs.graph_of([(0, 0), (1, 0), (2, 1), (3, 0), (4, 2)]) for _ in range(2))
    backend_of = {node.name: "ab"[index % 2] for index, node in enumerate(graph.nodes)}
    assert group(graph, backend_of) == group(same, dict(reversed(backend_of.items())))


def test_a_question_about_a_graph_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which groups backends get is found once for each wish: deciding again walks the nodes no more."""
    graph = on_two_devices()
    homes = {node.name: "a" for node in graph.nodes}
    first = group(graph, homes)
    monkeypatch.setattr("hub.partition.group._grouped", lambda *_: pytest.fail("walked the nodes again"))
    assert group(graph, dict(homes)) == first


def test_views_alone_are_no_cluster() -> None:
    """A group that only rearranges memory goes back to eager."""
    program = fx.Graph()
    x = program.placeholder("x")
    view = program.call_function(torch.ops.aten.t.default, (x,))
    program.output((view,))
    for node in (x, view):
        node.meta["val"] = torch.empty(2, 2, device="meta")
    graph = Graph(fx.GraphModule({}, program), "views")
    assert without_trivial_groups(graph, {view.name: "a"}) == {view.name: EAGER}


def test_extracting_a_set_that_is_not_convex_names_the_node() -> None:
    """A path that leaves a cluster and comes back is refused, with the node through which it comes."""
    graph = random_graphs.graph_of([(0, 0), (1, 1), (2, 1)])
    first, middle, last = (node.name for node in graph.nodes)
    with pytest.raises(PlanError, match=middle) as caught:
        extract(graph, [first, last], "c0", {})
    assert caught.value.node == last
