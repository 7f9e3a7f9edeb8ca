"""Lowers recurrent layers: one ONNX node per layer, for both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub.plugin import CompileError

from .call import Call, lowers

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""PyTorch's gates in ONNX's order (LSTM: input, forget, cell, output; GRU: reset, update, new)."""


@lowers("lstm.input")
def lstm(call: Call) -> tuple[str, ...]:
    """Return long short-term memory: outputs of every step, last hidden states, last cells."""
    hidden, cells = call.inputs("hx")
    return _layers(call, "LSTM", (hidden, cells))


@lowers("gru.input")
def gru(call: Call) -> tuple[str, ...]:
    """Return a gated recurrent unit: outputs of every step, last hidden states."""
    return _layers(call, "GRU", (call.input("hx"),))


def _layers(call: Call, kind: str, states: Sequence[str]) -> tuple[str, ...]:
    if any(map(call.hazards.may_hold_nan, call.node.all_input_nodes)):
        raise CompileError(f"NaN or infinity may arise before {kind}, which loses it", node=call.node.name)
    directions, count = (2 if call["bidirectional"] else 1), call["num_layers"]
    value = call.transpose(call.input("input"), [1, 0, 2]) if call["batch_first"] else call.input("input")
    starts = [_split_layers(call, state, count, directions) for state in states]
    ends: list[tuple[str, ...]] = []
    for layer in range(count):
        value, *last = _layer(call, kind, layer, value, [start[layer] for start in starts], directions)
        ends.append(tuple(last))
    finals = [parts[0] if count == 1 else call.op("Concat", *parts, axis=0) for parts in zip(*ends, strict=True)]
    return (call.transpose(value, [1, 0, 2]) if call["batch_first"] else value, *finals)


def _split_layers(call: Call, state: str, count: int, directions: int) -> Sequence[str]:
    """Return initial states [layers x directions, B, H] as one [directions, B, H] per layer."""
    return (state,) if count == 1 else call.ops("Split", state, call.ints(*[directions] * count), n_outputs=count, axis=0)


def _layer(call: Call, kind: str, layer: int, value: str, states: Sequence[str], directions: int) -> tuple[str, ...]:
    """Return one layer over [T, B, I]: outputs [T, B, directions H], and last states [directions, B, H]."""
    each = 4 if call["has_biases"] else 2
    params = call.inputs("params")[layer * directions * each : (layer + 1) * directions * each]
    hidden = _hidden(call)
    weights = [
        _stacked(call, [_reordered(call, kind, params[way * each + part]) for way in range(directions)])
        for part in range(each)
    ]
    bias = call.op("Concat", *weights[2:], axis=1) if call["has_biases"] else ""
    extra: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    outputs = call.ops(
        kind, value, weights[0], weights[1], bias, "", *states, n_outputs=1 + len(states), hidden_size=hidden,
        direction="bidirectional" if directions == 2 else "forward", **extra,
    )  # fmt: skip
    steps = call.op("Reshape", call.transpose(outputs[0], [0, 2, 1, 3]), call.ints(0, 0, directions * hidden))
    return (steps, *outputs[1:])


def _hidden(call: Call) -> int:
    return call["params"][1].meta["val"].shape[1]


def _reordered(call: Call, kind: str, matrix: str) -> str:
    """Return a [gates x H, ...] matrix or vector with its gates in ONNX's order; ORT reorders constants only once."""
    gates = _GATES[kind]
    parts = call.ops("Split", matrix, n_outputs=len(gates), axis=0, num_outputs=len(gates))
    return call.op("Concat", *(parts[gate] for gate in gates), axis=0)


def _stacked(call: Call, directions: Sequence[str]) -> str:
    parts = [call.unsqueeze(part, 0) for part in directions]
    return parts[0] if len(parts) == 1 else call.op("Concat", *parts, axis=0)
