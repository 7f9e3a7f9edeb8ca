"""Predict the time of a call on the board: for each layer the slower of arithmetic and memory, then the bus.

The model is Snowflake, the best documented design: 250 MHz and 256 multiply-accumulate units, in four compute units of
64 that share an image's pixels, with 4.2 GB/s of memory.

- **Arithmetic.** Sixteen units add up one output along a *trace*, a row of the filter in all channels, which are
  contiguous in memory. A trace that is no multiple of sixteen leaves units idle: the 7x7 stem's 21 products take two
  steps of sixteen (66 %), a depthwise filter's one product takes a step (6 %).
- **Memory.** Activations are read and written once. Each compute unit reads the weights for itself (`WEIGHT_LOADS`), so
  layers with few pixels and many weights wait for memory: ResNet-18's last stage takes 16 ms, not 6. A ReLU, and a sum
  with the result of a convolution, are applied before results are written; parts of a concatenation are written in
  place. Every other layer is a pass over memory.
- **Clusters** divide a layer's products, not its bytes; **boards** divide the images of a batch.

Sources: Gokhale et al., arXiv 1708.02579 (hand-written code), and Chang et al., arXiv 1708.00117 (the compiler's code, and
its traffic: ResNet-18 2.2 GB/s at 21.4 frames/s, 103 MB a frame; AlexNet 1.2 GB/s at 93.6, 13 MB). That traces run along
filter rows, and that weights are read once per compute unit, are assumptions. These figures support them, except for
AlexNet's traffic, which the model puts at 22 MB: its layers do not wait for memory either way. The README has the errors
by net.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .program import Layer, Program
from .settings import Settings

CLOCK_HZ = 250e6
UNITS = 256
"""Number of multiply-accumulate units of one cluster."""
TRACE = 16
"""Number of units that work on one output."""
MEMORY_BYTES_PER_S = 4.2e9
"""Bandwidth of one channel of the board's DDR3."""
WEIGHT_LOADS = 4
"""Times that compiled code reads a weight: once per compute unit, by ResNet-18's traffic. Hand-written code: 1."""
BUS_BYTES_PER_S = 2.0e9
"""PCIe as the boards use it, both directions one after the other; an assumption."""
CALL_S = 2e-4
"""Seconds of driver and interrupt per call; an assumption."""

_FREE = ("Relu", "LeakyRelu", "Concat")


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The estimate of one layer."""

    name: str
    arithmetic_s: float
    moved_bytes: float
    """Bytes to and from the board's memory."""

    @property
    def memory_s(self) -> float:
        """Seconds of its traffic."""
        return self.moved_bytes / MEMORY_BYTES_PER_S

    @property
    def run_s(self) -> float:
        """Seconds of the layer: arithmetic and memory overlap."""
        return max(self.arithmetic_s, self.memory_s)


def layer_times(
    program: Program, clusters: int = 1, *, value_bytes: int = 2, weight_loads: int = WEIGHT_LOADS
) -> tuple[LayerTime, ...]:
    """Predict each layer of one call on one board."""
    shapes = program.shapes
    kinds = {layer.name: layer for layer in program.layers}
    return tuple(
        LayerTime(
            layer.name,
            layer.macs / (utilisation(layer) * CLOCK_HZ * UNITS * clusters) if layer.has_products else 0.0,
            value_bytes * (_activations(layer, shapes, kinds) + weight_loads * _weights(layer)),
        )
        for layer in program.layers
    )


def utilisation(layer: Layer) -> float:
    """Return the share of units that do work, given how traces fill steps of sixteen; 1 if nothing is added up."""
    if layer.weight is None or layer.kind == "BatchNormalization" or not layer.has_products:
        return 1.0
    if layer.kind == "Gemm":
        trace = layer.weight.shape[1]
    else:
        groups = layer.attributes["groups"]
        channels = layer.weight.shape[0] // groups if layer.kind == "ConvTranspose" else layer.weight.shape[1]
        # With groups, a filter's channels at the next pixel do not follow those at this one.
        trace = channels * layer.weight.shape[3] if groups == 1 else channels
    return trace / (TRACE * math.ceil(trace / TRACE))


def _activations(layer: Layer, shapes: Mapping[str, Sequence[int]], layers: Mapping[str, Layer]) -> int:
    """Return the number of activation values that a layer reads and writes in memory."""
    if layer.kind in _FREE:
        return 0
    result = math.prod(layer.shape)
    if layer.kind == "Add" and any(name in layers and layers[name].has_products for name in layer.inputs):
        return result  # the other operand is read if both are activations; else nothing that matters
    return result + sum(math.prod(shapes[name]) for name in layer.inputs)


def _weights(layer: Layer) -> int:
    return sum(tensor.numel() for tensor in (layer.weight, layer.bias) if tensor is not None)


def device_s(
    program: Program, clusters: int = 1, boards: int = 1, *, value_bytes: int = 2, weight_loads: int = WEIGHT_LOADS
) -> float:
    """Predict the seconds of one call on the device, without the bus."""
    total_s = sum(item.run_s for item in layer_times(program, clusters, value_bytes=value_bytes, weight_loads=weight_loads))
    return total_s * _share(program, boards)


def _share(program: Program, boards: int) -> float:
    """Return the share of a batch that one board computes."""
    images = max((shape[0] for shape in program.inputs.values()), default=1)
    return math.ceil(images / boards) / images


def bus_bytes(program: Program, *, value_bytes: int = 2) -> int:
    """Return the bytes that cross the bus in one call."""
    shapes = program.shapes
    return value_bytes * sum(math.prod(shapes[name]) for name in (*program.inputs, *program.outputs))


def call_s(program: Program, clusters: int = 1, boards: int = 1, *, value_bytes: int = 2) -> float:
    """Predict the seconds of one call, bus included."""
    bus_s = bus_bytes(program, value_bytes=value_bytes) / BUS_BYTES_PER_S
    return CALL_S + device_s(program, clusters, boards, value_bytes=value_bytes) + bus_s


def predicted_s(program: Program, settings: Settings) -> float:
    """Predict the seconds of one call under a user's settings."""
    return call_s(program, settings.clusters, settings.boards, value_bytes=settings.value_bytes)
