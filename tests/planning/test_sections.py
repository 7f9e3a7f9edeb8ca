"""Sections: what a backend would compile of a region."""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hub.partition.group import Group
from hub.partition.regions import Region
from hub.partition.verdicts import Verdicts
from hub.planning.sections import sections_of
from hub.plugin.graph import Graph
from hub.plugin.table import ACCEPTED


def test_a_piece_lies_on_one_device() -> None:
    """A run of nodes that a backend supports ends where the device changes."""
    with FakeTensorMode(), torch.no_grad():
        pair = torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")
        graph = Graph(make_fx(lambda x, y: (x.cos().exp(), y.sin()))(*pair), "two")
    names = tuple(node.name for node in graph.nodes)
    verdicts = Verdicts(graph, {"toy": dict.fromkeys(names, ACCEPTED)})
    (section,) = sections_of(graph, verdicts, (Region(names, "digest", ()),))
    assert section.pieces["toy"] == (Group("toy", names[:2]), Group("toy", names[2:]))
