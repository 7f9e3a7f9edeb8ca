"""Partitioners: a backend that partitions graphs itself gets its clusters whole, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hub
from hub.config.options import Options
from hub.discovery.registry import Registry
from hub.errors import HubWarning, PlanError
from hub.partition.assignments import assignment
from hub.partition.extract import check_convex
from hub.partition.group import EAGER, Group, group
from hub.partition.members import Unusable, conflict, usable
from hub.partition.proposals import Offered, proposed
from hub.partition.regions import Region
from hub.partition.verdicts import Verdicts, ask_backends
from hub.plan import Event, Plan
from hub.plan_file import write_plans
from hub.planning.sections import sections_of
from hub.plugin import ACCEPTED, Backend, BackendInfo, Proposal, Support, refused, run_addition
from hub.plugin.backend import OUTSIDE
from hub.plugin.entry import Entry
from hub.plugin.graph import Graph
from hub.testing import random_graphs
from hub.testing.single import capture
from tests.toys import toy

X = torch.linspace(-1.0, 1.0, 16).reshape(2, 8)
Choice = Callable[[Graph], Any]


class Weaver(Backend):
    """A backend that partitions graphs as a function says, and compiles nothing."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def partition(self, graph: Graph) -> Any:
        """Return what the function chooses."""
        return self.choice(graph)

    def compile(self, cluster: Any, settings: Any) -> Any:
        """Fail if called."""
        raise NotImplementedError


class Plain(Backend):
    """A backend that is asked node by node, and takes everything."""

    def supports(self, node: torch.fx.Node) -> Support:
        """Take it."""
        return ACCEPTED

    def compile(self, cluster: Any, settings: Any) -> Any:
        """Fail if called."""
        raise NotImplementedError


def ask(graph: Graph, choices: Mapping[str, Choice], options: Options | None = None, **facts: Any) -> Verdicts:
    """Return the verdicts of a backend `plain`, and of one partitioner for each choice."""
    loaded: dict[str, Backend] = {"plain": Plain(), **{name: Weaver(choice) for name, choice in choices.items()}}
    infos = [BackendInfo(name=name, factory="", summary="", **(facts if name in choices else {})) for name in loaded]
    found = Registry([Entry(info, info.name, "1.0", ACCEPTED) for info in infos])
    found._loaded.update(loaded)  # this module is not importable by name
    return ask_backends(graph, found, options or Options())


def choosing(*clusters: Iterable[str]) -> Choice:
    """Return a choice of these clusters."""
    return lambda graph: [list(cluster) for cluster in clusters]


def mlp() -> Graph:
    """Return linear, gelu, linear_1, gelu_1, tanh."""
    return capture(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4), nn.GELU(), nn.Tanh()), (X,)).graph


def crossing() -> Graph:
    """Return cos, sin, exp, tanh: sin reads cos, tanh reads exp, and nothing else is read."""
    return capture(lambda x: (x.cos().sin(), x.exp().tanh()), (X,)).graph  # pyright: ignore[reportArgumentType]


def named(plan: Iterable[Group]) -> list[tuple[str, tuple[str, ...]]]:
    """Return groups as backends and nodes."""
    return [(found.backend, found.nodes) for found in plan]


# --- Asking -----------------------------------------------------------------------------------------------------------


def test_nodes_outside_its_clusters_are_refused() -> None:
    """It is asked once for the graph; the names may come in any order."""
    asked: list[Graph] = []

    def choice(graph: Graph) -> Any:
        asked.append(graph)
        return [("gelu", "linear"), ["tanh"]]

    verdicts = ask(mlp(), {"weaver": choice})
    assert len(asked) == 1
    assert named(verdicts.clusters) == [("weaver", ("linear", "gelu")), ("weaver", ("tanh",))]
    assert verdicts.by_backend["weaver"]["linear_1"] == refused(OUTSIDE)
    assert [name for name, answer in verdicts.by_backend["weaver"].items() if answer.accepted] == ["linear", "gelu", "tanh"]
    assert not verdicts.events


def raising(graph: Graph) -> Any:
    """Choose, and raise."""
    yield ("linear",)
    raise RuntimeError("lost the thread")


def changing(graph: Graph) -> Any:
    """Choose, and change the graph."""
    graph.by_name["gelu"].target = torch.ops.aten.sin.default
    return [["linear", "gelu"]]


def endless(graph: Graph) -> Iterator[Any]:
    """Choose without end, each time something without end."""
    yield ("linear", "gelu")
    while True:
        yield itertools.repeat("gelu_1")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (["linear_1", "nothing"], "no call nodes of .*: nothing"),
        (["arg0_1"], "no call nodes of .*: arg0_1"),
        (["gelu", "linear_1"], "an earlier cluster has gelu"),
        (["gelu_1", "linear_1", "gelu_1", "linear", "gelu"], "an earlier cluster has linear, gelu"),
        (["linear_1", "tanh"], "not convex: a path leaves the cluster and comes back through gelu_1"),
        ([], "it names no node"),
    ],
    ids=["unknown", "input", "overlapping", "repeated", "not convex", "empty"],
)
def test_a_cluster_that_cannot_be_used_is_dropped(bad: list[str], reason: str) -> None:
    """The event says why, and the other clusters stay."""
    verdicts = ask(mlp(), {"weaver": choosing(("linear", "gelu"), bad, ("gelu_1",))})
    assert named(verdicts.clusters) == [("weaver", ("linear", "gelu")), ("weaver", ("gelu_1",))]
    (event,) = verdicts.events
    assert (event.kind, event.stage, event.backend) == ("refused", "support", "weaver")
    with pytest.raises(AssertionError, match=rf"^partition\(\) chose {', '.join(bad[:3])}(, \.\.\.)?: {reason}$"):
        raise AssertionError(event.message)


def test_clusters_in_a_circle_are_dropped() -> None:
    """Each alone could run, but neither before the other; the first one stays."""
    verdicts = ask(crossing(), {"weaver": choosing(("cos", "tanh"), ("sin", "exp"))})
    assert named(verdicts.clusters) == [("weaver", ("cos", "tanh"))]
    (event,) = verdicts.events
    assert event.message == "partition() chose sin, exp: it and earlier clusters need each other's results in a circle"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (raising, "partition() raised RuntimeError: lost the thread"),
        (lambda _: 3, "partition() raised TypeError"),
        (lambda _: ["linear"], "'linear' is a str, no sequence of names"),
        (lambda _: [[3]], "3 is an int, no name of a node"),
    ],
    ids=["raises", "nothing to iterate", "names alone", "no names"],
)
def test_a_partitioner_that_fails_takes_nothing(choice: Choice, message: str) -> None:
    """The event and each refusal say what happened; other backends are asked as before."""
    verdicts = ask(mlp(), {"weaver": choice})
    assert not verdicts.clusters
    (event,) = verdicts.events
    assert (event.kind, event.stage, event.backend) == ("failed", "support", "weaver")
    assert message in event.message
    assert verdicts.by_backend["weaver"]["linear"] == refused(event.message)
    assert verdicts.backends == ("plain",)


def test_an_endless_answer_ends() -> None:
    """There are no more clusters than nodes."""
    verdicts = ask(mlp(), {"weaver": endless})
    assert named(verdicts.clusters) == [("weaver", ("linear", "gelu")), ("weaver", ("gelu_1",))]


def test_a_partitioner_that_changes_the_graph_changed_a_copy() -> None:
    """The plan has a note."""
    graph = mlp()
    verdicts = ask(graph, {"weaver": changing})
    assert graph.by_name["gelu"].target is torch.ops.aten.gelu.default
    assert [event.message for event in verdicts.events] == [
        "partition() changed the graph that it was shown; that was a copy"
    ]


def test_what_the_hub_refuses_no_partitioner_can_choose() -> None:
    """Pinned nodes, forced operators and other dtypes cost the cluster, with the node's own reason."""
    noise = capture(lambda x: torch.rand(2, 8) + x.cos(), (X,)).graph  # pyright: ignore[reportArgumentType]
    verdicts = ask(noise, {"weaver": lambda graph: [[node.name for node in graph.nodes]]})
    assert "draws random numbers" in verdicts.events[-1].message
    verdicts = ask(mlp(), {"weaver": choosing(("linear", "gelu"))}, Options(force={"aten.gelu": "eager"}))
    assert "forced to eager" in verdicts.events[-1].message
    wide = capture(lambda x: x.cos().double(), (X,)).graph  # pyright: ignore[reportArgumentType]
    verdicts = ask(wide, {"weaver": lambda graph: [[node.name for node in graph.nodes]]})
    assert "dtype float64" in verdicts.events[-1].message
    assert not verdicts.clusters


def test_an_order_of_equal_elements_must_be_kept() -> None:
    """The indices of a sort are read, and the backend does not promise eager's."""
    graph = capture(lambda x: x.sort(stable=False)[1], (X,)).graph  # pyright: ignore[reportArgumentType]
    verdicts = ask(graph, {"weaver": lambda graph: [[graph.nodes[0].name]]}, dtypes=("float32", "int64"))
    assert "order of equal elements" in verdicts.events[-1].message


def test_elements_of_a_tuple_come_with_it() -> None:
    """Tuples cross no cluster's boundary."""
    graph = capture(lambda x: torch.sub(*x.split(4, dim=1)), (X,)).graph  # pyright: ignore[reportArgumentType]
    verdicts = ask(graph, {"weaver": choosing(["split"])})
    assert named(verdicts.clusters) == [("weaver", ("split", "getitem", "getitem_1"))]


def test_flags_come_before_the_partitioner() -> None:
    """A backend that did not register dynamic shapes is not asked about a graph with them."""
    graph = capture(nn.Linear(8, 8), (X,), dynamic=True).graph
    assert graph.is_dynamic

    def choice(graph: Graph) -> Any:
        raise AssertionError("it was asked")

    verdicts = ask(graph, {"weaver": choice})
    assert "weaver" not in verdicts.by_backend
    assert "does not support dynamic shapes" in [event.message for event in verdicts.events]


class Undecided(Plain):
    """A backend with a partitioner that leaves every graph to `supports`."""

    def partition(self, graph: Graph) -> None:
        """Return None."""


def test_none_leaves_the_graph_to_supports() -> None:
    """The backend is then asked node by node, as any other."""
    entry = Entry(BackendInfo(name="undecided", factory="", summary=""), "undecided", "1.0", ACCEPTED)
    found = Registry([entry])
    found._loaded["undecided"] = Undecided()
    verdicts = ask_backends(mlp(), found, Options())
    assert not verdicts.clusters
    assert all(answer.accepted for answer in verdicts.by_backend["undecided"].values())


def test_the_probe_asks_the_partitioner() -> None:
    """A backend that does not choose the addition has nothing to run."""
    assert run_addition(Weaver(lambda graph: [])) == ACCEPTED
    with pytest.raises(NotImplementedError):  # from compiling what it chose
        run_addition(Weaver(lambda graph: [[node.name for node in graph.nodes]]))


# --- Grouping ---------------------------------------------------------------------------------------------------------


@given(random_graphs.graphs(), st.data())
def test_kept_groups_come_out_as_they_are(graph: Graph, data: st.DataObject) -> None:
    """Each is one group; all groups can run in their order, and each node is in one."""
    names = [node.name for node in graph.nodes]
    kept: list[Group] = []
    for _ in range(data.draw(st.integers(1, 3))):
        members = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
        try:
            found = usable(graph, "a", members, dict.fromkeys(names, ACCEPTED))
        except Unusable:
            continue
        kept += [] if conflict(graph, found, kept) else [found]
    backend_of = {name: data.draw(st.sampled_from(("a", "b", EAGER))) for name in names}
    backend_of |= {name: "a" for found in kept for name in found.nodes}
    groups = group(graph, backend_of, kept)
    assert set(kept).issubset(groups)
    assert sorted(name for found in groups for name in found.nodes) == sorted(names)
    place = {name: position for position, found in enumerate(groups) for name in found.nodes}
    for node in graph.nodes:
        assert groups[place[node.name]].backend == backend_of[node.name]
        assert all(place[source.name] <= place[node.name] for source in node.all_input_nodes if source.name in place)
    for found in groups:
        check_convex(tuple(graph.by_name[name] for name in found.nodes), "g")


def test_adjacent_clusters_are_not_merged_nor_split() -> None:
    """One backend of its own would get all nodes in one cluster."""
    verdicts = ask(mlp(), {"weaver": choosing(("linear",), ("gelu", "linear_1"))})
    found = assignment(verdicts, ("weaver", "plain"), Options())
    assert named(found.groups) == [
        ("weaver", ("linear",)),
        ("weaver", ("gelu", "linear_1")),
        ("plain", ("gelu_1", "tanh")),
    ]


def test_a_cluster_that_must_wait_is_one_step() -> None:
    """Its first node could run before what its second node needs; both run after it."""
    verdicts = ask(crossing(), {"weaver": choosing(("cos", "tanh"))})
    found = assignment(verdicts, ("weaver",), Options())
    assert named(found.groups) == [(EAGER, ("exp",)), ("weaver", ("cos", "tanh")), (EAGER, ("sin",))]


def test_a_cluster_of_which_another_backend_has_a_part_is_not_used() -> None:
    """The rest goes to eager: compiled alone, it would be another cluster."""
    verdicts = ask(mlp(), {"weaver": choosing(("linear", "gelu"), ("tanh",))})
    found = assignment(verdicts, ("plain", "weaver"), Options())
    assert named(found.groups) == [("plain", ("linear", "gelu", "linear_1", "gelu_1", "tanh"))]
    lost = verdicts.without("plain", ("gelu", "tanh"), "no kernel")
    found = assignment(lost, ("plain", "weaver"), Options())
    assert named(found.groups) == [
        ("plain", ("linear",)),
        (EAGER, ("gelu",)),
        ("plain", ("linear_1", "gelu_1")),
        ("weaver", ("tanh",)),
    ]


def test_clusters_of_two_partitioners_in_a_circle_are_not_used_together() -> None:
    """The first one's stay."""
    verdicts = ask(crossing(), {"weaver": choosing(("cos", "tanh")), "loom": choosing(("sin", "exp"))})
    found = assignment(verdicts, ("weaver", "loom"), Options())
    assert found.backends == ("weaver",)
    assert Group("weaver", ("cos", "tanh")) in found.groups


def test_a_cluster_that_lost_a_node_is_lost() -> None:
    """A failure that names one node costs the whole cluster, and no other."""
    verdicts = ask(mlp(), {"weaver": choosing(("linear", "gelu"), ("tanh",))})
    lost = verdicts.without("weaver", ("gelu",), "gelu does not compile")
    assert named(lost.chosen("weaver")) == [("weaver", ("tanh",))]
    assert lost.by_backend["weaver"]["linear"] == refused("gelu does not compile")


def test_only_its_own_clusters_can_be_proposed_for_it() -> None:
    """A proposal that is one of them is used, another is dropped with the reason."""
    graph = mlp()
    verdicts = ask(graph, {"weaver": choosing(("linear", "gelu"))})
    offers = (Offered("plugin", (Proposal("weaver", ("linear", "gelu")), Proposal("weaver", ("gelu",), "part"))),)
    groups, events = proposed(graph, offers, verdicts, Options())
    assert named(groups) == [("weaver", ("linear", "gelu"))]
    assert [event.message for event in events] == [
        "proposal 'part' of plugin plugin: weaver takes only the clusters that its partitioner chose"
    ]


def test_a_region_has_the_clusters_that_lie_in_it() -> None:
    """One that crosses the region's end is no piece of it."""
    graph = mlp()
    verdicts = ask(graph, {"weaver": choosing(("linear",), ("gelu", "linear_1"))})
    (section,) = sections_of(graph, verdicts, (Region(("linear", "gelu"), "digest", ()),))
    assert section.pieces["weaver"] == (Group("weaver", ("linear",)),)
    assert section.left_over("weaver") == ("gelu",)


# --- Running ----------------------------------------------------------------------------------------------------------

WEAVER = """
from hub import Backend, BackendInfo, Cost, Executable, hookimpl

CLUSTERS = [("linear", "relu"), ("linear_1",), ("relu_1",)]

@hookimpl
def hub_backends():
    return [BackendInfo(name="weaver", factory="hub_weaver:Weaver", summary="")]

class Weaver(Backend):
    def partition(self, graph):
        {partition}
        return CLUSTERS

    def estimate(self, cluster, settings):
        return Cost(1e-9, 0.0, 0, "estimated", "as good as free")

    def compile(self, cluster, settings):
        assert cluster.node_names in CLUSTERS, cluster.node_names
        {compile}
        return Woven(cluster)

class Woven(Executable):
    def __init__(self, cluster):
        from torch import ops
        weights = list(cluster.constants.values())
        self.steps = {{
            "linear": lambda x: ops.aten.linear.default(x, *weights),
            "relu": ops.aten.relu.default,
        }}
        self.names = [name.partition("_")[0] for name in cluster.node_names]

    def __call__(self, x):
        import torch
        with torch.no_grad():
            for name in self.names:
                x = self.steps[name](x)
        return [x]
"""
Install = Callable[[str, str], None]


def net() -> nn.Module:
    """Return linear, relu, gelu, linear_1, relu_1, tanh."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.GELU(), nn.Linear(8, 4), nn.ReLU(), nn.Tanh()).eval()


def run(**options: Any) -> Plan:
    """Run the model with the partitioner, a toy for its gelu and eager for its tanh; return the plan."""
    given = {"tune": "off", "force": {"aten.gelu": "toy", "aten.tanh": "eager"}, "backends": ["weaver", "toy"], **options}
    torch._dynamo.reset()
    model = net()
    compiled: Any = cast("Any", torch).compile(model, backend="hub", options=given)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
        torch.testing.assert_close(compiled(X + 1), model(X + 1))
    return hub.plans(compiled)[-1]


def install(install_plugin: Install, partition: str = "", compiling: str = "") -> None:
    """Install the partitioner, with statements that begin its methods, and the toy."""
    install_plugin("weaver", WEAVER.format(partition=partition, compile=compiling))
    install_plugin("toy", toy(supports="Support('gelu' in str(node.target), 'only gelu')"))


def failures(plan: Plan) -> list[Event]:
    """Return the events about the partitioner that are more than notes."""
    return [event for event in plan.events if event.backend == "weaver" and event.kind != "note"]


CHOSEN = [
    ("weaver", ("linear", "relu")),
    ("toy", ("gelu",)),
    ("weaver", ("linear_1",)),
    ("weaver", ("relu_1",)),
    (EAGER, ("tanh",)),
]


@pytest.mark.parametrize("isolate", [True, False])
def test_its_clusters_run_whole_beside_eager_and_another_backend(isolate: bool, install_plugin: Install) -> None:
    """Adjacent clusters stay apart, and results are eager's."""
    install(install_plugin)
    plan = run(isolate=isolate)
    assert [(cluster.backend, cluster.nodes) for cluster in plan.clusters] == CHOSEN
    assert not failures(plan)


def test_a_node_that_fails_costs_its_cluster(install_plugin: Install) -> None:
    """The cluster is not tried again without the node."""
    fault = "from hub.errors import CompileError\n        "
    fault += "if len(cluster.nodes) > 1: raise CompileError('no relu', node='relu')"
    install(install_plugin, compiling=fault)
    with pytest.warns(HubWarning, match="no relu"):
        plan = run(isolate=False)
    assert [(cluster.backend, cluster.nodes) for cluster in plan.clusters] == [(EAGER, ("linear", "relu")), *CHOSEN[1:]]


def test_a_partitioner_that_ends_its_process_takes_nothing(install_plugin: Install) -> None:
    """It ran in a worker, as other answers of plugins do."""
    install(install_plugin, partition="import os; os._exit(3)")
    with pytest.warns(HubWarning):
        plan = run(isolate=True)
    assert "weaver" not in plan.backends
    assert any("exit status 3" in event.message for event in failures(plan))


def test_a_plan_file_has_to_keep_its_clusters_whole(install_plugin: Install, tmp_path: Path) -> None:
    """A plan that splits one is refused, with those that it chose; a plan that the hub wrote is replayed."""
    install(install_plugin)
    plan = run(isolate=False)
    path = tmp_path / "plan.json"
    write_plans(path, (plan,))
    again = run(isolate=False, plan=path, force={})
    assert [(cluster.backend, cluster.nodes) for cluster in again.clusters] == CHOSEN
    first, *rest = plan.clusters
    parts = (first.model_copy(update={"nodes": (name,), "operators": ()}) for name in first.nodes)
    write_plans(path, (plan.model_copy(update={"clusters": (*parts, *rest)}),))
    with pytest.raises(PlanError, match="no cluster that the partitioner of weaver chose") as caught:
        run(isolate=False, plan=path, force={})
    assert "linear, relu or linear_1 or relu_1" in str(caught.value.hint)
