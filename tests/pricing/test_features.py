"""What a price model sees of a set of nodes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import fx, nn

from hub.pricing.features import KINDS, VERSION, features_of
from hub.testing.single import Captured, capture, whole_cluster


class Block(nn.Module):
    """A product, a transcendental, a transposition and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 48)
        self.norm = nn.LayerNorm(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.nn.functional.gelu(self.linear(x)).transpose(0, 1))


INPUTS = (torch.randn(10, 32),)


@pytest.fixture(scope="module")
def block() -> Captured:
    return capture(Block().eval(), INPUTS)


def of(captured: Captured) -> dict[str, float]:
    return features_of(captured.graph.nodes, captured.graph.weights)


def test_work_and_bytes_are_those_of_one_call(block: Captured) -> None:
    """A product counts two operations a multiply-add; inputs, results and weights count apart, at the edge only."""
    found = of(block)
    assert found["flops_product"] == 2 * 10 * 32 * 48
    assert (found["read_bytes"], found["written_bytes"]) == (4 * 10 * 32, 4 * 10 * 48)
    assert found["weight_bytes"] == 4 * (32 * 48 + 48 + 10 + 10)
    assert found["inner_bytes"] == 3 * 4 * 10 * 48
    assert found["intensity"] == found["flops"] / (found["read_bytes"] + found["written_bytes"] + found["weight_bytes"])


def test_every_node_has_one_kind(block: Captured) -> None:
    """Nodes are counted by what bounds their operator."""
    found = of(block)
    counts = {kind: found[f"count_{kind}"] for kind in KINDS if found[f"count_{kind}"]}
    assert counts == {"product": 1, "transcendental": 1, "movement": 1, "normalisation": 1}
    assert sum(counts.values()) == found["nodes"]


def test_sizes_of_the_largest_product_are_given(block: Captured) -> None:
    """Rows, columns and summed length of the product with most operations are features."""
    found = of(block)
    assert (found["product_m"], found["product_n"], found["product_k"], found["product_batch"]) == (10, 48, 32, 1)


def test_a_batch_of_products_counts_its_batch_apart() -> None:
    """The rows of a batched product are those of one of its products."""
    found = of(capture(Products(), (torch.randn(3, 5, 7), torch.randn(3, 7, 11))))
    assert [found[f"product_{name}"] for name in ("batch", "m", "k", "n")] == [3, 5, 7, 11]


class Products(nn.Module):
    """A batch of matrix products."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.bmm(left, right)


def test_convolutions_are_told_from_depthwise_ones() -> None:
    """A convolution with one channel a group is no product in disguise, and has a kind of its own."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 5, padding=2, groups=8)).eval()
    found = of(capture(model, (torch.randn(1, 3, 16, 16),)))
    assert (found["count_convolution"], found["count_depthwise"]) == (1, 1)
    assert found["flops_convolution"] == 2 * 8 * 16 * 16 * 3 * 9
    sizes = [found[f"convolution_{name}"] for name in ("in", "out", "kernel", "pixels", "rank")]
    assert sizes == [3, 8, 9, 256, 2]


def test_transposed_convolutions_count_their_inputs() -> None:
    """Each element of a transposed convolution's input is multiplied with a whole filter."""
    found = of(capture(nn.ConvTranspose2d(4, 6, 2, stride=2).eval(), (torch.randn(1, 4, 8, 8),)))
    assert found["flops_convolution"] == 2 * (4 * 8 * 8) * (6 * 2 * 2)


def test_recurrent_networks_count_every_step() -> None:
    """An LSTM multiplies each of its weights at each step of each sequence."""
    graph = fx.symbolic_trace(nn.Identity()).graph
    x, state, *weights = (graph.placeholder(name) for name in ("x", "h", "c", "w", "u", "b"))
    for node, shape in zip((x, state, *weights), ((2, 5, 8), (1, 2, 4), (1, 2, 4), (16, 8), (16, 4), (16,)), strict=True):
        node.meta["val"] = torch.empty(shape)
    arguments = (x, [state, weights[0]], weights[1:], True, 1, 0.0, False, False, True)
    node = graph.call_function(torch.ops.aten.lstm.input, arguments)
    node.meta["val"] = (torch.empty(2, 5, 4), torch.empty(1, 2, 4), torch.empty(1, 2, 4))
    assert features_of([node])["flops_recurrent"] == 2 * (2 * 5) * (16 * 8 + 16 * 4)


def test_nodes_of_a_graph_and_of_its_cluster_look_the_same(block: Captured) -> None:
    """A region prices alike before and after it is cut out as a cluster."""
    cluster, _ = whole_cluster(Block().eval(), INPUTS)
    assert features_of(cluster.nodes) == of(block)


def test_a_weight_that_is_no_constant_is_an_input(block: Captured) -> None:
    """Without names of weights, as in training, parameters are read like any other input."""
    found = features_of(block.graph.nodes)
    assert found["weight_bytes"] == 0
    assert found["read_bytes"] == of(block)["read_bytes"] + of(block)["weight_bytes"]


def test_a_part_of_a_graph_reads_and_writes_at_its_own_edge(block: Captured) -> None:
    """What lies between two parts is written by the first and read by the second."""
    names = [node.name for node in block.graph.nodes]
    first, second = (features_of(part, block.graph.weights) for part in (block.graph.nodes[:2], block.graph.nodes[2:]))
    assert len(names) == 4
    assert first["written_bytes"] == second["read_bytes"] == 4 * 10 * 48


def test_symbolic_sizes_count_as_first_seen() -> None:
    """Features of a graph with symbolic sizes are those of the call it was captured on."""
    dynamic = of(capture(Block().eval(), INPUTS, dynamic=True))
    assert dynamic["flops_product"] == 2 * 10 * 32 * 48


def test_features_are_plain_numbers_with_a_version(block: Captured) -> None:
    """They come back from JSON as they went in."""
    found = of(block)
    assert json.loads(json.dumps(found)) == found
    assert found["version"] == VERSION


def test_every_set_of_nodes_has_the_same_features(block: Captured) -> None:
    """Features that a set of nodes has nothing of are 0, so that every set gives the same names."""
    assert features_of(block.graph.nodes[1:2]).keys() == of(block).keys()
