"""The planning context: what a decision is based on."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hub.planning.context import is_on_accelerators
from hub.plugin.graph import Graph


@pytest.mark.parametrize(("devices", "expected"), [("cuda:0 cuda:1", True), ("cuda:0 cpu", False), ("cpu cpu", False)])
def test_a_graph_on_accelerators_alone_is_known(devices: str, expected: bool) -> None:
    """One result on the CPU is enough for its threads to matter; an empty graph has nothing on an accelerator."""
    with FakeTensorMode(), torch.no_grad():
        pair = [torch.empty(2, device=device) for device in devices.split()]
        module = make_fx(lambda x, y: (x.cos(), y.sin()))(*pair)
        empty = make_fx(lambda x, y: (x, y))(*pair)
    assert is_on_accelerators(Graph(module, "two")) is expected
    assert not is_on_accelerators(Graph(empty, "none"))
