"""Recurrent layers step by step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hub.testing.single import whole_cluster
from hub.toolkit.arguments import captured_sizes, specialised
from hub.toolkit.recurrence import unrolled, written_out


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_an_unrolled_lstm_is_the_same(bidirectional: bool, bias: bool, batch_first: bool) -> None:
    """Two layers give eager's steps and states, in operators that are no recurrent layer."""
    layer = nn.LSTM(4, 3, num_layers=2, bias=bias, bidirectional=bidirectional, batch_first=batch_first).eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(layer, (torch.randn(5, 2, 4),))
    found = specialised(cluster, captured_sizes(cluster), {}, prepare=unrolled)
    assert not [node for node in found.module.graph.nodes if "lstm" in str(node.target) or "rnn" in str(node.target)]
    given = [*values, *(cluster.constants[name] for name in found.weights)]
    with torch.no_grad():
        for got, wanted in zip(found.module(*(given[place] for place in found.fed)), cluster.module(*values), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cluster_is_written_out_with_its_weights_in_place(dynamic: bool) -> None:
    """The program computes the same, has no recurrent layer, and reads every weight under its own name."""
    layer = nn.LSTM(4, 3, num_layers=2, bidirectional=True).eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(layer, (torch.randn(5, 2, 4),), dynamic=dynamic)
    if dynamic:
        assert cluster.is_dynamic
    found = written_out(cluster)
    assert not [node for node in found.nodes if "lstm" in str(node.target) or "rnn" in str(node.target)]
    assert {*found.constants} == {*cluster.constants}
    with torch.no_grad():
        for got, wanted in zip(found.module(*values), cluster.module(*values), strict=True):
            torch.testing.assert_close(got, wanted)


def test_other_clusters_stay_as_they_are() -> None:
    """Without a recurrent layer nothing is traced again."""
    cluster, _ = whole_cluster(nn.Linear(4, 3), (torch.randn(2, 4),))
    assert written_out(cluster) is cluster
