"""Proposals: plugins' own patterns become candidates where they can, and cost nothing but a note where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from hub import hookimpl
from hub.config.options import Options
from hub.discovery.plugins import Plugin
from hub.discovery.registry import Registry
from hub.errors import PlanError
from hub.partition.group import Group
from hub.partition.proposals import matches, offered_by_plugins, proposed
from hub.partition.verdicts import ask_backends
from hub.plan import Event
from hub.plugin.backend import Backend, BackendInfo, Proposal
from hub.plugin.entry import Entry
from hub.plugin.graph import Graph
from hub.plugin.table import ACCEPTED, Support, operator_name, refused
from hub.testing.single import capture

X = torch.ones(2, 8)


class Choosy(Backend):
    """A backend that supports all but tanh, and compiles nothing."""

    def supports(self, node: torch.fx.Node) -> Support:
        """Refuse one operator."""
        return refused("no tanh here") if "tanh" in operator_name(node) else ACCEPTED

    def compile(self, cluster: Any, settings: Any) -> Any:
        """Fail if called."""
        raise NotImplementedError


class Proposing:
    """A plugin that proposes what a function says."""

    def __init__(self, answer: Callable[[Graph], Any]) -> None:
        self.answer = answer

    @hookimpl
    def hub_candidates(self, graph: Graph) -> Any:
        """Return the proposals."""
        return self.answer(graph)


def ask(
    graph: Graph, *answers: Callable[[Graph], Any], options: Options | None = None
) -> tuple[tuple[Group, ...], tuple[Event, ...]]:
    """Return what `proposed` returns with one plugin for each answer, named p0, p1 ..., and the backend `choosy`."""
    plugins = tuple(Plugin.of(f"p{number}", Proposing(answer)) for number, answer in enumerate(answers))
    info = BackendInfo(
        name="choosy", factory=f"{__name__}:Choosy", summary="", devices=("cpu", "cuda"), max_relative_error=0.0
    )
    registry = Registry([Entry(info, "choosy", "1.0", ACCEPTED)], plugins)
    registry._loaded["choosy"] = Choosy()  # the test module is not importable by name
    chosen = options or Options()
    asked = offered_by_plugins(graph, registry)
    return proposed(graph, asked, ask_backends(graph, registry, chosen), chosen)


def mlp() -> Graph:
    """Return linear, gelu, linear, gelu, tanh."""
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4), nn.GELU(), nn.Tanh())
    return capture(model, (X,)).graph


def gelu_of_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute the pattern of these tests."""
    return F.gelu(F.linear(x, weight, bias))


EXAMPLE = (torch.ones(2, 4), torch.ones(3, 4), torch.ones(3))


def offers(*node_sets: Iterable[str], backend: str = "choosy") -> Callable[[Graph], Any]:
    """Return an answer that proposes these nodes."""
    return lambda graph: [Proposal(backend, tuple(nodes), "pattern") for nodes in node_sets]


def test_a_plugin_proposes_a_pattern_of_an_mlp() -> None:
    """Every gelu of a linear layer becomes a group of its plugin's backend."""

    def answer(graph: Graph) -> Iterable[Proposal]:
        for nodes in matches(graph, gelu_of_linear, EXAMPLE):
            yield Proposal("choosy", nodes, "gelu of linear")

    groups, events = ask(mlp(), answer)
    assert groups == (Group("choosy", ("linear", "gelu")), Group("choosy", ("linear_1", "gelu_1")))
    assert not events


def test_a_proposal_over_two_devices_is_refused() -> None:
    """A cluster's results lie on one; the note names those that were proposed."""
    with FakeTensorMode(), torch.no_grad():
        pair = torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")
        graph = Graph(make_fx(lambda x, y: (x.cos(), y.sin()))(*pair), "two")
    groups, events = ask(graph, offers(["cos"], ["cos", "sin"]))
    assert groups == (Group("choosy", ("cos",)),)
    (event,) = events
    assert event.message.endswith("its results lie on cuda:0 and cuda:1, those of a cluster on one device")


def test_nodes_come_in_topological_order_and_once() -> None:
    """The names do not matter, nor which plugin proposes them."""
    groups, events = ask(mlp(), offers(["gelu", "linear", "gelu"]), offers(["linear", "gelu"]))
    assert groups == (Group("choosy", ("linear", "gelu")),)
    assert not events


@pytest.mark.parametrize(
    ("nodes", "backend", "reason"),
    [
        (["linear", "nothing"], "choosy", "no call nodes of graph.*: nothing"),
        (["arg0_1"], "choosy", "no call nodes of graph.*: arg0_1"),
        (["linear"], "nobody", "backend 'nobody' is not used here"),
        (["linear"], "eager", "backend 'eager' is not used here"),
        (["gelu_1", "tanh"], "choosy", "choosy does not take it: no tanh here"),
        (["linear", "linear_1"], "choosy", "not convex: a path leaves the cluster and comes back through gelu"),
        ([], "choosy", "it names no node"),
    ],
)
def test_an_unusable_proposal_is_dropped_with_the_reason(nodes: list[str], backend: str, reason: str) -> None:
    """Unknown nodes and backends, refused nodes, and sets that are not convex; the plugin's others stay."""
    groups, events = ask(mlp(), lambda graph: [Proposal(backend, tuple(nodes), "odd"), *offers(["linear"])(graph)])
    assert groups == (Group("choosy", ("linear",)),)
    assert [(event.kind, event.stage, event.backend) for event in events] == [("refused", "support", backend)]
    with pytest.raises(AssertionError, match=rf"^proposal 'odd' of plugin p0: {reason}$"):
        raise AssertionError(events[0].message)


def test_pinned_nodes_cannot_be_proposed() -> None:
    """What must run in eager does so, and the event says why."""
    graph = capture(nn.Dropout(0.5).train(), (X,)).graph
    groups, events = ask(graph, offers([graph.nodes[0].name]))
    assert not groups
    assert "random" in events[0].message


def test_options_go_before_proposals() -> None:
    """Operators forced elsewhere, and backends that are not allowed, cannot be proposed."""
    forced, excluded = Options(force={"aten.gelu": "eager"}), Options(exclude=("choosy",))
    for options, reason in ((forced, "forced to eager"), (excluded, "'choosy' is not allowed")):
        groups, events = ask(mlp(), offers(["linear", "gelu"]), options=options)
        assert not groups
        assert reason in events[0].message


def test_elements_of_a_tuple_come_with_it() -> None:
    """Tuples cross no cluster's edge: elements join their producer, and cannot stand without it."""
    graph = capture(lambda x: torch.sub(*x.split(4, dim=1)), (X,)).graph  # pyright: ignore[reportArgumentType]
    groups, events = ask(graph, offers(["split"], ["getitem"]))
    assert groups == (Group("choosy", ("split", "getitem", "getitem_1")),)
    assert "getitem is an element of split" in events[0].message


def fails_late(graph: Graph) -> Iterable[Proposal]:
    """Propose, and raise."""
    yield Proposal("choosy", (graph.nodes[0].name,))
    raise RuntimeError("out of ideas")


def changes(graph: Graph) -> Iterable[Proposal]:
    """Propose, and change the graph."""
    graph.by_name["gelu"].target = torch.ops.aten.sin.default
    return [Proposal("choosy", ("gelu",))]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fails_late, "raised RuntimeError: out of ideas"),
        (lambda _: ["linear"], "raised TypeError: 'linear' is a str, not a Proposal"),
        (lambda _: [Proposal("choosy", (3,))], "has a name that is not text"),  # pyright: ignore[reportArgumentType]
        (lambda _: 3, "raised TypeError"),
        (changes, "changed the graph"),
    ],
)
def test_a_hook_that_fails_costs_its_plugin_only(answer: Callable[[Graph], Any], message: str) -> None:
    """The failing plugin proposes nothing, the others as before."""
    groups, events = ask(mlp(), answer, offers(["gelu"]))
    assert groups == (Group("choosy", ("gelu",)),)
    assert [(event.kind, event.stage) for event in events] == [("failed", "support")]
    assert "hub_candidates of plugin p0" in events[0].message
    assert message in events[0].message


def test_nothing_proposed_is_nothing_said() -> None:
    """None and an empty list are fine."""
    assert ask(mlp(), lambda _: None, lambda _: []) == ((), ())


# --- matches ----------------------------------------------------------------------------------------------------------


def test_a_pattern_is_found_wherever_it_occurs() -> None:
    """Shapes and dtypes do not count; occurrences come in topological order."""
    assert matches(mlp(), gelu_of_linear, EXAMPLE) == (("linear", "gelu"), ("linear_1", "gelu_1"))


def test_a_pattern_may_be_a_graph() -> None:
    """Constants of a pattern's graph stand for any value, as its inputs do."""
    inner = capture(nn.Sequential(nn.Linear(4, 4), nn.GELU()), (torch.ones(1, 4),)).graph
    assert matches(mlp(), inner.module.graph) == (("linear", "gelu"), ("linear_1", "gelu_1"))


def test_a_pattern_may_be_a_module() -> None:
    """A module's weights stand for any weights."""
    assert matches(mlp(), nn.Sequential(nn.Linear(4, 3), nn.GELU()), EXAMPLE[:1]) == (
        ("linear", "gelu"),
        ("linear_1", "gelu_1"),
    )


def test_literals_count_unless_ignored() -> None:
    """A GELU of another kind, or a view of other sizes, is no match, or is one."""

    def tanh_like(*inputs: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(*inputs), approximate="tanh")

    assert matches(mlp(), tanh_like, EXAMPLE) == ()
    graph = capture(lambda x: x.view(4, 4).relu(), (X,)).graph  # pyright: ignore[reportArgumentType]
    pattern = (lambda x: x.view(2, 1).relu(), (torch.ones(2),))
    assert matches(graph, *pattern) == ()
    assert matches(graph, *pattern, ignore_literals=True) == (("view", "relu"),)


def test_matches_do_not_overlap_nor_leak() -> None:
    """Of three relus two make a pair; a pair whose inner value is read elsewhere is none."""
    relus = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    pair = (lambda x: x.relu().relu(), (torch.ones(2),))
    assert len(matches(capture(relus, (X,)).graph, *pair)) == 1
    leaking = capture(lambda x: (lambda y: y.relu() + y)(x.relu()), (X,)).graph  # pyright: ignore[reportArgumentType]
    assert matches(leaking, *pair) == ()


def test_a_fused_attention_is_found_in_a_transformer() -> None:
    """The pattern with more than one path: queries, keys and values of one input."""

    def attention(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, q) @ F.linear(x, k).transpose(-1, -2), dim=-1) @ F.linear(x, v)

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(8, 8) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in (0, 3):
                x = x + attention(x, *self.weights[i : i + 3])
            return x

    found = matches(capture(Layers(), (X,)).graph, attention, (torch.ones(3, 4), *[torch.ones(4, 4)] * 3))
    assert [len(nodes) for nodes in found] == [7, 7]


def test_a_pattern_that_is_none_is_refused() -> None:
    """A pattern without operators, or one that cannot be traced, is an error with a next step."""
    with pytest.raises(PlanError, match="no operators"):
        matches(mlp(), lambda x: x, (X,))
    with pytest.raises(PlanError, match=r"cannot be traced.*boom"):
        matches(mlp(), lambda x: (_ for _ in ()).throw(ValueError("boom")), (X,))
