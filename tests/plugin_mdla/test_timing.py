"""The time model against published figures, and what it takes into account."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plugin_mdla.program import Layer, Program
from plugin_mdla.timing import CALL_S, MEMORY_BYTES_PER_S, bus_bytes, call_s, device_s, layer_times, utilisation


class Sketch:
    """A program drawn layer by layer; weights have sizes and no values."""

    def __init__(self, *shape: int) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self.layers: list[Layer] = []

    def add(self, kind: str, shape: tuple[int, ...], *inputs: str, weight: Any = None, **attributes: Any) -> str:
        name = f"v{len(self.layers)}"
        weight = None if weight is None else torch.empty(weight, device="meta")
        self.layers.append(Layer(kind, name, inputs, shape, attributes, weight))
        self.shapes[name] = shape
        return name

    def conv(self, source: str, outs: int, kernel: int, stride: int = 1, *, groups: int = 1, pad: int | None = None) -> str:
        images, ins, *size = self.shapes[source]
        pad = kernel // 2 if pad is None else pad
        new = [(side + 2 * pad - kernel) // stride + 1 for side in size]
        weight = (outs, ins // groups, kernel, kernel)
        return self.add("Conv", (images, outs, *new), source, weight=weight, groups=groups)

    def pool(self, source: str, kernel: int, stride: int, *, pad: int = 0) -> str:
        images, channels, *size = self.shapes[source]
        return self.add("MaxPool", (images, channels, *((s + 2 * pad - kernel) // stride + 1 for s in size)), source)

    def sum(self, one: str, other: str) -> str:
        return self.add("Add", self.shapes[one], one, other)

    def join(self, *parts: str) -> str:
        images, _, *size = self.shapes[parts[0]]
        return self.add("Concat", (images, sum(self.shapes[part][1] for part in parts), *size), *parts)

    def head(self, source: str, classes: int = 1000) -> Program:
        images, channels, *_ = self.shapes[source]
        mean = self.add("GlobalAveragePool", (images, channels, 1, 1), source)
        return self.program(self.conv(mean, classes, 1))

    def program(self, output: str) -> Program:
        return Program({"x": self.shapes["x"]}, tuple(self.layers), (output,))


def resnet18() -> Program:
    net = Sketch(1, 3, 224, 224)
    y = net.pool(net.conv("x", 64, 7, 2), 3, 2, pad=1)
    for outs in (64, 128, 256, 512):
        for stride in (1 if outs == 64 else 2, 1):
            short = net.conv(y, outs, 1, 2) if stride == 2 else y
            y = net.sum(net.conv(net.conv(y, outs, 3, stride), outs, 3), short)
    return net.head(y)


def resnet50() -> Program:
    net = Sketch(1, 3, 224, 224)
    y = net.pool(net.conv("x", 64, 7, 2), 3, 2, pad=1)
    for middle, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and middle > 64 else 1
            short = net.conv(y, 4 * middle, 1, stride) if block == 0 else y
            y = net.sum(net.conv(net.conv(net.conv(y, middle, 1, stride), middle, 3), 4 * middle, 1), short)
    return net.head(y)


def alexnet() -> Program:
    """Return its convolutions: 93.6 frames/s leave no time for reading 117 MB of linear weights each."""
    net = Sketch(1, 3, 224, 224)
    y = net.pool(net.conv("x", 64, 11, 4, pad=2), 3, 2)
    y = net.pool(net.conv(y, 192, 5), 3, 2)
    y = net.conv(net.conv(net.conv(y, 384, 3), 256, 3), 256, 3)
    return net.program(net.pool(y, 3, 2))


INCEPTIONS = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None,
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), None,
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def googlenet() -> Program:
    net = Sketch(1, 3, 224, 224)
    y = net.pool(net.conv("x", 64, 7, 2), 3, 2, pad=1)
    y = net.pool(net.conv(net.conv(y, 64, 1), 192, 3), 3, 2, pad=1)
    for widths in INCEPTIONS:
        if widths is None:
            y = net.pool(y, 3, 2, pad=1)
            continue
        one, before3, three, before5, five, pooled = widths
        y = net.join(
            net.conv(y, one, 1), net.conv(net.conv(y, before3, 1), three, 3), net.conv(net.conv(y, before5, 1), five, 5),
            net.conv(net.pool(y, 3, 1, pad=1), pooled, 1),
        )  # fmt: skip
    return net.head(y)


PUBLISHED = {
    "resnet18": (resnet18, 4, 21.4, 0.15),
    "alexnet": (alexnet, 4, 93.6, 0.05),
    "alexnet by hand": (alexnet, 1, 100.0, 0.10),
    "resnet50 by hand": (resnet50, 1, 17.0, 0.11),
    "googlenet by hand": (googlenet, 1, 36.0, 0.05),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rates_are_met_within_the_stated_error(name: str) -> None:
    """Frames a second against the papers'; compiled code reads weights once a compute unit, hand-written code once."""
    net, loads, published, error = PUBLISHED[name]
    assert 1 / device_s(net(), weight_loads=loads) == pytest.approx(published, rel=error)


def test_published_traffic_is_met() -> None:
    """ResNet-18 moves 2.2 GB/s at 21.4 frames/s: 103 MB a frame."""
    moved = sum(item.moved_bytes for item in layer_times(resnet18()))
    assert moved == pytest.approx(2.2e9 / 21.4, rel=0.05)


def test_layers_wait_for_the_slower_of_arithmetic_and_memory() -> None:
    """256 channels at 32x32 take their products' time, 512 at 7x7 wait for weights."""
    net = Sketch(1, 256, 32, 32)
    program = net.program(net.conv("x", 256, 3))
    assert device_s(program) == pytest.approx(256 * 256 * 9 * 32 * 32 / 64e9)
    net = Sketch(1, 512, 7, 7)
    program = net.program(net.conv("x", 512, 3))
    moved = 2 * (4 * 512 * 512 * 9 + 2 * 512 * 49)
    assert device_s(program) == pytest.approx(moved / MEMORY_BYTES_PER_S)
    assert device_s(program, value_bytes=1) == pytest.approx(moved / 2 / MEMORY_BYTES_PER_S)


def test_clusters_divide_products_and_boards_divide_images() -> None:
    """Two clusters halve what arithmetic bounds; two boards have three images of five."""
    net = Sketch(5, 256, 32, 32)
    program = net.program(net.conv("x", 256, 3))
    assert device_s(program, clusters=2) == pytest.approx(device_s(program) / 2)
    assert device_s(program, boards=2) == pytest.approx(device_s(program) * 3 / 5)
    assert device_s(program, boards=9) == pytest.approx(device_s(program) / 5)


def test_traces_that_do_not_fill_sixteen_units_waste_some() -> None:
    """A 7x7 filter of three channels, a depthwise one, and one of 64 channels."""
    net = Sketch(1, 3, 32, 32)
    stem = net.conv("x", 64, 7, 2)
    net.conv(net.conv(stem, 64, 3, groups=64), 64, 1)
    assert [utilisation(layer) for layer in net.layers] == [21 / 32, 1 / 16, 1.0]


def test_sums_and_relus_after_convolutions_cost_what_they_read() -> None:
    """A ReLU, and parts of a concatenation, are free; a sum reads its other operand; a pool is a pass of its own."""
    net = Sketch(1, 16, 8, 8)
    y = net.conv("x", 16, 1)
    y = net.sum(y, "x")
    y = net.add("Relu", net.shapes[y], y)
    y = net.join(y, "x")
    program = net.program(net.pool(y, 2, 2))
    values = 16 * 8 * 8
    assert [item.moved_bytes for item in layer_times(program)[1:]] == [2 * values, 0, 0, 2 * (2 * values + 2 * values // 4)]


def test_the_bus_and_the_call_are_part_of_it() -> None:
    """Every input and output crosses once, two bytes a value."""
    net = Sketch(1, 16, 8, 8)
    program = net.program(net.conv("x", 4, 1))
    assert bus_bytes(program) == 2 * (16 + 4) * 64
    assert call_s(program) == pytest.approx(CALL_S + device_s(program) + bus_bytes(program) / 2e9)
