"""Ranges of a model's values on samples: a JSON file by name of value, with what distinguishes models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.plugin import (
    Cluster,
    ConstantsRefused,
    elements,
    operator_name,
    tensor_digest,
    value_of,
)

from .program import Layer, Program

VERSION = 2


@dataclass(frozen=True, slots=True)
class Range:
    """The range of one value on the samples."""

    operator: str
    shape: tuple[int, ...]
    largest: float
    """The largest magnitude."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ranges of one model's values, by the names of its graph's nodes."""

    ranges: Mapping[str, Range]
    weights: Mapping[str, str]
    """Digests of the weights, by name: ranges under one set of weights do not apply to another."""
    samples: int

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        values = {name: [found.operator, list(found.shape), found.largest] for name, found in self.ranges.items()}
        text = json.dumps(
            {"version": VERSION, "samples": self.samples, "values": values, "weights": {**self.weights}}, indent=1
        )
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(text)
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read a file. Raise ConstantsRefused if it is missing, corrupt or of another version."""
        try:
            found = json.loads(path.read_text())
            if found["version"] != VERSION:
                raise ValueError(f"it has version {found['version']}, {VERSION} is read here")
            ranges = {
                name: Range(str(operator), tuple(map(int, shape)), float(largest))
                for name, (operator, shape, largest) in found["values"].items()
            }
            weights = {str(name): str(digest) for name, digest in found["weights"].items()}
            return cls(ranges, weights, int(found["samples"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConstantsRefused(
                f"cannot read calibration file {path}: {type(error).__name__}: {error}",
                backend="mdla",
                hint="make one with `hub mdla calibrate MODEL --samples inputs.pt -o FILE`",
            ) from error

    def ranges_of(self, program: Program, cluster: Cluster) -> dict[str, float]:
        """Return the largest magnitude of every value of a program.

        Raise ConstantsRefused if a value is not in the file, or has another operator or shape there, or if weights differ.
        """
        nodes: Mapping[str, Any] = {node.name: node for node in cluster.module.graph.nodes}
        known = {name: self._largest(name, nodes[name]) for name in program.inputs}
        known |= {layer.name: self._largest(layer.node, nodes[layer.node]) for layer in program.layers if layer.node}
        for name, weight in cluster.constants.items():
            if self.weights.get(name) != tensor_digest(weight):
                raise _foreign(f"weight {name} has other values than the samples were shown to")
        return with_bounds(program, known)

    def _largest(self, name: str, node: Any) -> float:
        found = self.ranges.get(name)
        value = value_of(node)
        shape = tuple(elements(value)[0].shape)
        if found is None:
            raise _foreign(f"it knows no value {name}")
        # The cluster does not know which operator computed an input.
        is_input = node.op == "placeholder"
        if found.shape != shape or not (is_input or found.operator == operator_name(node)):
            mine = f"{operator_name(node)} {list(shape)}"
            raise _foreign(f"value {name} is {found.operator} {list(found.shape)} in it, {mine} here")
        return found.largest


def with_bounds(program: Program, known: Mapping[str, float]) -> dict[str, float]:
    """Return ranges of all values: the known ones of the graph's own values, and bounds for intermediate steps.

    Steps are bounded even if a run has computed them: one of relu6 is zero until an input exceeds 6.
    """
    ranges = {name: known[name] for name in program.inputs}
    for layer in program.layers:
        ranges[layer.name] = known[layer.name] if layer.node else _bound(layer, ranges)
    return ranges


def _bound(layer: Layer, ranges: Mapping[str, float]) -> float:
    """Return a bound for an intermediate step, which samples do not cover, from its operands' ranges."""
    if layer.kind in ("Sigmoid", "Tanh"):
        return 1.0
    constant = 0.0 if layer.weight is None else float(layer.weight.abs().max())
    operands = [ranges[name] for name in layer.inputs]
    if layer.kind == "Add":
        return sum(operands) + constant
    if layer.kind == "Mul":
        return math.prod(operands) * (1.0 if layer.weight is None else constant)
    return max(operands)


def _foreign(reason: str) -> ConstantsRefused:
    return ConstantsRefused(
        f"the calibration file was made for another model, or for other weights: {reason}",
        backend="mdla",
        hint="calibrate this model: `hub mdla calibrate MODEL --samples inputs.pt -o FILE`",
    )
