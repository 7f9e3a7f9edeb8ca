"""Every operator of the software device equals an independent reference to the bit, on any formats and attributes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugin_mdla.fixed import Format, dequantise, quantise
from plugin_mdla.program import Layer
from plugin_mdla.simulator.integer import IntegerLayer
from tests.plugin_mdla import reference

many = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
fractions = st.integers(0, 16)
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 3)


def integers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return integers of 16 bits, of all sizes: the ends, small ones and any."""
    shift = torch.randint(0, 16, shape, generator=generator)
    found = torch.randint(-32768, 32768, shape, generator=generator) >> shift
    return torch.where(torch.rand(shape, generator=generator) < 0.1, torch.tensor(-32768), found)


def run(
    kind: str,
    inputs: list[torch.Tensor],
    formats: list[int],
    result: int,
    shape: list[int],
    *,
    weight: torch.Tensor | None = None,
    weight_fraction: int = 0,
    bias: torch.Tensor | None = None,
    **attributes: Any,
) -> Any:
    """Run one layer of the device; the weight is given in integers."""
    real = None if weight is None else weight.double() / 2.0**weight_fraction
    layer = Layer(kind, "y", tuple("abc"[: len(inputs)]), tuple(shape), attributes, real, bias)
    form = None if weight is None else Format(16, weight_fraction)
    device = IntegerLayer(layer, [Format(16, fraction) for fraction in formats], form, Format(16, result))
    return device([value.double() for value in inputs]).integers.long().tolist()


def out_size(size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


@many
@given(seeds, fractions, fractions, fractions, sizes, sizes, sizes, st.booleans(), st.sampled_from([1, 2, "depthwise"]))
def test_conv(
    seed: int, source: int, form: int, result: int, kernel: int, stride: int, dilation: int, has_bias: bool, groups: Any
) -> None:
    """Conv: any groups, strides, dilations and pads, with and without bias."""
    g = torch.Generator().manual_seed(seed)
    channels = outs = 4 if groups == 2 else 2
    groups = channels if groups == "depthwise" else groups
    pads = torch.randint(0, 2, (2,), generator=g).tolist()
    height, width = (dilation * (kernel - 1) + torch.randint(1, 4, (2,), generator=g)).tolist()
    x, w = integers(g, 1, channels, height, width), integers(g, outs, channels // groups, kernel, kernel)
    bias = torch.randn(outs, generator=g) * 10 if has_bias else None
    size = [
        out_size(height, kernel, stride, pads[0], dilation),
        out_size(width, kernel, stride, pads[1], dilation),
    ]
    got = run(
        "Conv", [x], [source], result, [1, outs, *size], weight=w, weight_fraction=form, bias=bias,
        strides=(stride, stride), pads=(*pads, *pads), dilations=(dilation, dilation), groups=groups,
    )  # fmt: skip
    assert got == reference.conv(
        x.tolist(), w.tolist(), None if bias is None else bias.tolist(), strides=(stride, stride), pads=pads,
        dilations=(dilation, dilation), groups=groups, size=size, source=source, form=form, result=result,
    )  # fmt: skip


@many
@given(seeds, fractions, fractions, fractions, sizes, sizes, st.booleans(), st.sampled_from([1, 2]))
def test_conv_transpose(
    seed: int, source: int, form: int, result: int, kernel: int, stride: int, has_bias: bool, groups: int
) -> None:
    """ConvTranspose: scattered products, output padding included."""
    g = torch.Generator().manual_seed(seed)
    extra = int(torch.randint(0, stride, (), generator=g))
    pad = int(torch.randint(0, kernel, (), generator=g))
    x, w = integers(g, 1, 4, 3, 4), integers(g, 4, 2, kernel, kernel)
    bias = torch.randn(2 * groups, generator=g) if has_bias else None
    size = [(n - 1) * stride - 2 * pad + kernel + extra for n in (3, 4)]
    if min(size) < 1:
        return
    got = run(
        "ConvTranspose", [x], [source], result, [1, 2 * groups, *size], weight=w, weight_fraction=form, bias=bias,
        strides=(stride, stride), pads=(pad,) * 4, output_padding=(extra, extra), dilations=(1, 1), groups=groups,
    )  # fmt: skip
    assert got == reference.conv_transpose(
        x.tolist(), w.tolist(), None if bias is None else bias.tolist(), strides=(stride, stride), pads=(pad, pad),
        dilations=(1, 1), groups=groups, size=size, source=source, form=form, result=result,
    )  # fmt: skip


@many
@given(seeds, fractions, fractions, fractions, st.booleans(), st.integers(1, 12))
def test_gemm(seed: int, source: int, form: int, result: int, has_bias: bool, terms: int) -> None:
    """Gemm: sums of products and a bias."""
    g = torch.Generator().manual_seed(seed)
    x, w = integers(g, 2, terms), integers(g, 3, terms)
    bias = torch.randn(3, generator=g) * 100 if has_bias else None
    got = run("Gemm", [x], [source], result, [2, 3], weight=w, weight_fraction=form, bias=bias)
    wanted = reference.gemm(
        x.tolist(), w.tolist(), None if bias is None else bias.tolist(), source=source, form=form, result=result
    )
    assert got == wanted


@many
@given(seeds, fractions, fractions, fractions)
def test_batch_normalization(seed: int, source: int, form: int, result: int) -> None:
    """BatchNormalization: one factor and one shift a channel."""
    g = torch.Generator().manual_seed(seed)
    x, w, bias = integers(g, 2, 3, 2, 2), integers(g, 3), torch.randn(3, generator=g)
    got = run("BatchNormalization", [x], [source], result, [2, 3, 2, 2], weight=w, weight_fraction=form, bias=bias)
    as_filters = [[[[value]]] for value in w.tolist()]
    assert got == reference.conv(
        x.tolist(), as_filters, bias.tolist(), strides=(1, 1), pads=(0, 0), dilations=(1, 1), groups=3, size=(2, 2),
        source=source, form=form, result=result,
    )  # fmt: skip


@many
@given(seeds, fractions, sizes, sizes)
def test_max_pool(seed: int, fraction: int, kernel: int, stride: int) -> None:
    """MaxPool: the largest of each window; pads never win."""
    g = torch.Generator().manual_seed(seed)
    pad = int(torch.randint(0, kernel // 2 + 1, (), generator=g))
    x = integers(g, 1, 2, 5, 6)
    size = [out_size(5, kernel, stride, pad), out_size(6, kernel, stride, pad)]
    shape = {"kernel": (kernel, kernel), "strides": (stride, stride)}
    got = run("MaxPool", [x], [fraction], fraction, [1, 2, *size], pads=(pad,) * 4, **shape)
    assert got == reference.max_pool(x.tolist(), pads=(pad, pad), size=size, **shape)


@many
@given(seeds, fractions, st.integers(-8, 8), sizes, sizes, st.booleans())
def test_average_pool(seed: int, source: int, finer: int, kernel: int, stride: int, include_pad: bool) -> None:
    """AveragePool: the exact sum, divided once; pads count or do not."""
    g = torch.Generator().manual_seed(seed)
    pad = int(torch.randint(0, kernel // 2 + 1, (), generator=g))
    x, result = integers(g, 1, 2, 5, 6), max(0, source + finer)
    size = [out_size(5, kernel, stride, pad), out_size(6, kernel, stride, pad)]
    shape = {"kernel": (kernel, kernel), "strides": (stride, stride)}
    got = run("AveragePool", [x], [source], result, [1, 2, *size], pads=(pad,) * 4, count_include_pad=include_pad, **shape)
    wanted = reference.average_pool(
        x.tolist(), include_pad=include_pad, source=source, result=result, pads=(pad, pad), size=size, **shape
    )
    assert got == wanted


@many
@given(seeds, fractions, st.integers(-8, 8), st.integers(1, 9), st.integers(1, 9))
def test_global_average_pool(seed: int, source: int, finer: int, height: int, width: int) -> None:
    """GlobalAveragePool: one window as large as the image."""
    g = torch.Generator().manual_seed(seed)
    x, result = integers(g, 2, 2, height, width), max(0, source + finer)
    got = run("GlobalAveragePool", [x], [source], result, [2, 2, 1, 1])
    assert got == reference.average_pool(
        x.tolist(), include_pad=True, source=source, result=result, kernel=(height, width), strides=(1, 1), pads=(0, 0),
        size=(1, 1),
    )  # fmt: skip


def each(function: Callable[[int], int], values: Any) -> Any:
    return [each(function, value) for value in values] if isinstance(values, list) else function(values)


@many
@given(seeds, fractions)
def test_relu(seed: int, fraction: int) -> None:
    """Relu: nothing below zero."""
    x = integers(torch.Generator().manual_seed(seed), 1, 2, 3, 3)
    assert run("Relu", [x], [fraction], fraction, [1, 2, 3, 3]) == each(lambda value: max(0, value), x.tolist())


@many
@given(seeds, fractions, fractions, st.floats(-1, 0.999))
def test_leaky_relu(seed: int, source: int, result: int, slope: float) -> None:
    """LeakyRelu: the slope in Q1.15, one rounding."""
    x = integers(torch.Generator().manual_seed(seed), 1, 2, 3, 3)
    got = run("LeakyRelu", [x], [source], result, [1, 2, 3, 3], alpha=slope)
    assert got == each(lambda value: reference.leaky(value, slope, source, result), x.tolist())


# Tables hold 65,536 entries for each pair of formats: few pairs, many values.
pairs = st.sampled_from([(8, 8), (12, 14), (15, 15), (0, 14), (11, 3)])


@many
@given(seeds, pairs)
def test_sigmoid(seed: int, formats: tuple[int, int]) -> None:
    """Sigmoid: the exact function, rounded once."""
    _function("Sigmoid", seed, *formats)


@many
@given(seeds, pairs)
def test_tanh(seed: int, formats: tuple[int, int]) -> None:
    """Tanh: the exact function, rounded once."""
    _function("Tanh", seed, *formats)


def _function(kind: str, seed: int, source: int, result: int) -> None:
    x = integers(torch.Generator().manual_seed(seed), 1, 2, 3, 3)
    got = run(kind, [x], [source], result, [1, 2, 3, 3])
    assert got == each(lambda value: reference.function(kind, value, source, result), x.tolist())


def _two_operands(kind: str, exact: Any, seed: int, first: int, second: int, result: int, per_channel: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    x, y = integers(g, 1, 2, 3, 3), integers(g, 1, 2, *((1, 1) if per_channel else (3, 3)))
    wanted = [
        exact(a, b, first, second, result)
        for a, b in zip(x.flatten().tolist(), y.expand(x.shape).flatten().tolist(), strict=True)
    ]
    got = torch.tensor(run(kind, [x, y], [first, second], result, [1, 2, 3, 3])).flatten().tolist()
    assert got == wanted
    constant = run(kind, [x], [first], result, [1, 2, 3, 3], weight=y, weight_fraction=second)
    assert torch.tensor(constant).flatten().tolist() == wanted


@many
@given(seeds, fractions, fractions, fractions, st.booleans())
def test_add(seed: int, first: int, second: int, result: int, per_channel: bool) -> None:
    """Add: points aligned without loss, one rounding; the second operand may be a constant or one number a channel."""
    _two_operands("Add", reference.added, seed, first, second, result, per_channel)


@many
@given(seeds, fractions, fractions, fractions, st.booleans())
def test_mul(seed: int, first: int, second: int, result: int, per_channel: bool) -> None:
    """Mul: the exact product, one rounding."""
    _two_operands("Mul", reference.multiplied, seed, first, second, result, per_channel)


@many
@given(seeds, fractions, fractions, fractions)
def test_concat(seed: int, first: int, second: int, result: int) -> None:
    """Concat: every part in the format of the whole."""
    g = torch.Generator().manual_seed(seed)
    x, y = integers(g, 2, 1, 2, 2), integers(g, 2, 3, 2, 2)
    got = run("Concat", [x, y], [first, second], result, [2, 4, 2, 2], axis=1)
    for image in range(2):
        wanted = each(lambda v: reference.scaled(v, first, result), x[image].tolist())
        wanted += each(lambda v: reference.scaled(v, second, result), y[image].tolist())
        assert got[image] == wanted


@many
@given(seeds, fractions, sizes, sizes)
def test_upsample(seed: int, fraction: int, tall: int, wide: int) -> None:
    """Upsample: every element becomes a block."""
    x = integers(torch.Generator().manual_seed(seed), 1, 2, 3, 2)
    got = run("Upsample", [x], [fraction], fraction, [1, 2, 3 * tall, 2 * wide], scales=(tall, wide))
    for channel, plane in enumerate(x[0].tolist()):
        assert got[0][channel] == [
            [plane[row // tall][column // wide] for column in range(2 * wide)] for row in range(3 * tall)
        ]


@many
@given(
    st.floats(width=32),
    st.sampled_from([8, 16]),
    st.integers(0, 24),
)
def test_quantise(value: float, bits: int, fraction: int) -> None:
    """Real values: nearest, halves upward, saturating; NaN is 0; what did not fit is counted."""
    form = Format(bits, fraction)
    found = quantise(torch.tensor([value]), form)
    assert found.integers.tolist() == [reference.quantised(value, fraction, bits)]
    assert found.not_finite == (not math.isfinite(value))
    back = float(dequantise(found.integers, form))
    if math.isfinite(value) and not found.saturated:
        assert abs(back - value) <= 0.5 / 2**fraction
    elif math.isfinite(value):
        assert abs(value) > form.limit
