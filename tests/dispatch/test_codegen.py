"""The generated dispatch code: values are deleted after their last use, and at no other place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.dispatch.codegen import _names_in
from hub.frontend.ownership import graphs_of


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("gelu_1 = op_aten_gelu_default(view, approximate='tanh')", {"gelu_1", "op_aten_gelu_default", "view"}),
        ("mean_1 = op_mean(x, [-1], keepdim=True)", {"mean_1", "op_mean", "x", "1", "True"}),
        ("a = op(b == c, 'it\\'s', \"d\")", {"a", "op", "b", "c"}),
        ("try:  # c0: disc, 3 nodes", {"try"}),
    ],
)
def test_names_are_those_of_values(line: str, names: set[str]) -> None:
    """Texts, comments and the names of options are none."""
    assert _names_in(line) == names


def options_like_nodes(x: torch.Tensor) -> torch.Tensor:
    """Return what operators compute whose options are called like other operators."""
    quotient = torch.div(x.tanh().floor() + x, 3.0, rounding_mode="floor")
    return nn.functional.gelu(quotient.sigmoid() * x, approximate="tanh") + x.mean()


@pytest.mark.parametrize("forced", ["aten.gelu", "aten.tanh", "aten.floor", "aten.div", "aten.mean"])
def test_an_option_that_is_called_like_a_node_is_no_use_of_it(forced: str) -> None:
    """The node may run within a cluster, so that the code has no such value: it could not be deleted."""
    options: dict[str, Any] = {"tune": "off", "backends": ["onnxruntime"], "force": {forced: "eager"}}
    compiled = torch.compile(options_like_nodes, backend="hub", options=options)
    x = torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), options_like_nodes(x))
    assert {cluster.backend for cluster in hub.plans(compiled)[0].clusters} == {"onnxruntime", "eager"}


@pytest.mark.parametrize("name", ["versions", "error", "overlaps", "args", "c0", "c0_failed", "start", "value_1"])
@pytest.mark.parametrize("writes", [False, True])
def test_operators_may_be_called_like_the_programs_own_names(name: str, writes: bool) -> None:
    """A node is named after its operator, and anyone may define one."""
    library = f"hub_named_{name}_{writes}"
    with torch.library._scoped_library(library, "DEF") as defined:
        defined.define(f"{name}(Tensor x) -> Tensor")
        defined.impl(name, lambda x: x + 1, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{library}::{name}", torch.empty_like, lib=defined)
        operator = getattr(getattr(torch.ops, library), name)

        def program(x: torch.Tensor) -> torch.Tensor:
            y = operator(x.tanh() * 2)
            if writes:
                x.mul_(2)
            return y.relu() * y + (y * 3).cos()

        options: dict[str, Any] = {"tune": "off", "backends": ["onnxruntime"]}
        compiled = torch.compile(program, backend="hub", options=options)
        x = torch.randn(4, 8)
        with torch.no_grad():
            given, mine = x.clone(), x.clone()
            torch.testing.assert_close(compiled(mine), program(given))
            torch.testing.assert_close(mine, given)
        assert any(name in node.name for node in graphs_of(compiled)[0].graph.nodes)
