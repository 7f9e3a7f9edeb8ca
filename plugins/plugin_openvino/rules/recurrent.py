"""Rule for LSTM layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openvino import Output

from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output, size_of
from plugin_openvino.rules.elementwise import Rule
from plugin_openvino.rules.shapes import transposed

_I64 = torch.int64
_GATES = (1, 0, 2, 3)
"""PyTorch's gates in OpenVINO's order: OpenVINO stacks forget, input, cell, output; PyTorch input, forget, cell, output."""


def _lstm(call: Call) -> Any:
    """Chain one LSTMSequence per layer; input [B, T, D] or [T, B, D], states [layers * directions, B, H]."""
    is_batch_first, directions = bool(call.raw("batch_first")), 2 if call.raw("bidirectional") else 1
    hidden, cell = (call.value(state) for state in call.raw("hx"))
    value = call.tensor("input")
    value = value if is_batch_first else transposed(value, [1, 0, 2])
    last_hidden: list[Output] = []
    last_cell: list[Output] = []
    for layer in range(int(call.raw("num_layers"))):
        states = [_states_of(state, layer, directions) for state in (hidden, cell)]
        value, *last = _layer(value, states, _weights_of(call, layer, directions), directions)
        last_hidden.append(last[0])
        last_cell.append(last[1])
    return value if is_batch_first else transposed(value, [1, 0, 2]), _stacked(last_hidden), _stacked(last_cell)


def _states_of(states: Output, layer: int, directions: int) -> Output:
    """Select one layer's states: [layers * D, B, H] -> [B, D, H]."""
    start, end = indices([layer * directions]), indices([(layer + 1) * directions])
    return transposed(output(ops.slice(states, start, end, indices([1]), indices([0]))), [1, 0, 2])


def _stacked(states: Sequence[Output]) -> Output:
    """Join the layers' last states: each [B, D, H] -> [layers * D, B, H]."""
    parts = [transposed(state, [1, 0, 2]) for state in states]
    return output(ops.concat(parts, 0)) if len(parts) > 1 else parts[0]


def _weights_of(call: Call, layer: int, directions: int) -> list[Output]:
    """Return W [D, 4H, input], R [D, 4H, H] and B [D, 4H] of one layer, with gates in OpenVINO's order."""
    each = 4 if call.raw("has_biases") else 2
    params = [call.value(item) for item in call.raw("params")]
    chosen = [
        params[(layer * directions + index) * each : (layer * directions + index + 1) * each] for index in range(directions)
    ]
    biases = [output(ops.add(item[2], item[3])) if each == 4 else _no_bias(item[1]) for item in chosen]
    return [_joined([item[0] for item in chosen]), _joined([item[1] for item in chosen]), _joined(biases)]


def _no_bias(recurrent: Output) -> Output:
    return constant([0.0] * recurrent.get_partial_shape()[0].get_length(), torch.float32)


def _joined(parts: Sequence[Output]) -> Output:
    """Stack the directions of one kind of weight, with gates reordered."""
    return output(ops.concat([ops.unsqueeze(_reordered(part), indices([0])) for part in parts], 0))


def _reordered(weight: Output) -> Output:
    hidden = weight.get_partial_shape()[0].get_length() // 4
    rows = [gate * hidden + row for gate in _GATES for row in range(hidden)]
    return output(ops.gather(weight, indices(rows), constant(0, _I64)))


def _layer(value: Output, states: Sequence[Output], weights: Sequence[Output], directions: int) -> list[Output]:
    hidden_size = weights[1].get_partial_shape()[2].get_length()
    lengths = ops.broadcast(size_of(value, 1), size_of(value, 0))
    direction = "bidirectional" if directions == 2 else "forward"
    node = ops.lstm_sequence(value, *states, lengths, *weights, hidden_size, direction)
    steps, width = transposed(node.output(0), [0, 2, 1, 3]), directions * hidden_size
    joined = ops.reshape(steps, ops.concat([size_of(value, 0), size_of(value, 1), indices([width])], 0), False)
    return [output(joined), node.output(1), node.output(2)]


RULES: Mapping[str, Rule] = {"aten.lstm.input": _lstm}
