"""Recurrent layers unrolled step by step, for compilers without loops over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from hub.plugin.graph import Cluster
from hub.plugin.table import operator_name
from hub.toolkit.arguments import decomposed, with_weights
from hub.torch_private import gather_params, one_layer_lstm, rnn_helper


def unrolled(module: fx.GraphModule) -> None:
    """Unroll each LSTM of a program step by step: traced unchanged, PyTorch hands one to oneDNN."""
    for node in _lstms(module):
        node.target = lstm
    module.recompile()


def _lstms(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function" and operator_name(node) == "aten.lstm.input"]


def written_out(cluster: Cluster) -> Cluster:
    """Return a cluster with its LSTMs unrolled, for compilers that read clusters; unchanged if it has none."""
    if not _lstms(cluster.module):
        return cluster
    arguments = with_weights(cluster)
    unrolled(arguments.module)
    module = decomposed(arguments.module, {})
    placeholders = module.graph.find_nodes(op="placeholder")
    for name, node in zip(arguments.weights, placeholders[len(cluster.inputs) :], strict=True):
        setattr(module, name, cluster.constants[name])
        with module.graph.inserting_before(node):
            weight = module.graph.create_node("get_attr", name)  # `get_attr` requires a buffer
        weight.meta.update(node.meta)
        node.replace_all_uses_with(weight)
        module.graph.erase_node(node)
    module.recompile()
    return replace(cluster, module=module)


def lstm(
    input: torch.Tensor,  # noqa: A002 - PyTorch's own names and order
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result of `aten.lstm.input`, computed with products and elementwise functions. Sizes are numbers."""
    grouped = gather_params(params, has_biases, hx[0].size(2) != hx[1].size(2))
    hidden = list(zip(hx[0], hx[1], strict=True))
    options = has_biases, num_layers, dropout, train, bidirectional, batch_first
    output, last = rnn_helper(input, hidden, grouped, *options, one_layer_lstm)
    states, cells = zip(*last, strict=True)
    return output, torch.stack(states, 0), torch.stack(cells, 0)
