"""The device's arithmetic once more, slowly: Python integers and fractions, element by element, from the specification.

Shares no code with the plugin. Tensors are nested lists [N][C][H][W] of integers; a format is its number of fraction bits.
"""

from __future__ import annotations

import math
from fractions import Fraction

Image = list


def rounded(value: Fraction, bits: int) -> int:
    """Return the nearest integer, halves upward, cut to `bits`."""
    whole = math.floor(value + Fraction(1, 2))
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, whole))


def scaled(integer: int, source: int, result: int, bits: int = 16) -> int:
    """Return an integer of `source` fraction bits in a format of `result`."""
    shift = source - result
    whole = integer << -shift if shift <= 0 else (integer + (1 << (shift - 1))) >> shift
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, whole))


def quantised(value: float, fraction: int, bits: int = 16) -> int:
    """Return a real value as an integer."""
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return (1 << (bits - 1)) - 1 if value > 0 else -(1 << (bits - 1))
    return rounded(Fraction(value) * Fraction(2) ** fraction, bits)


def conv(x, weight, bias, *, strides, pads, dilations, groups, size, source, form, result):
    """Convolve; `bias` are real values, which join the products at their own fraction."""
    height, width = len(x[0][0]), len(x[0][0][0])
    each = len(x[0]) // groups
    per_group = len(weight) // groups
    images = []
    for image in x:
        channels = []
        for out, filters in enumerate(weight):
            plane = []
            for row in range(size[0]):
                line = []
                for column in range(size[1]):
                    total = quantised(bias[out], source + form, 47) if bias is not None else 0
                    for offset, taps in enumerate(filters):
                        channel = image[out // per_group * each + offset]
                        for i, tap_row in enumerate(taps):
                            for j, tap in enumerate(tap_row):
                                y = row * strides[0] - pads[0] + i * dilations[0]
                                z = column * strides[1] - pads[1] + j * dilations[1]
                                if 0 <= y < height and 0 <= z < width:
                                    total += channel[y][z] * tap
                    line.append(scaled(total, source + form, result))
                plane.append(line)
            channels.append(plane)
        images.append(channels)
    return images


def conv_transpose(x, weight, bias, *, strides, pads, dilations, groups, size, source, form, result):
    """Scatter each input element over the output: weight [I][O / groups][kh][kw]."""
    ins, outs = len(x[0]) // groups, len(weight[0])
    images = []
    for image in x:
        totals = [
            [[quantised(bias[out], source + form, 47) if bias is not None else 0] * size[1] for _ in range(size[0])]
            for out in range(outs * groups)
        ]
        for channel, plane in enumerate(image):
            group = channel // ins
            for row, line in enumerate(plane):
                for column, value in enumerate(line):
                    for out in range(outs):
                        for i, taps in enumerate(weight[channel][out]):
                            for j, tap in enumerate(taps):
                                y = row * strides[0] - pads[0] + i * dilations[0]
                                z = column * strides[1] - pads[1] + j * dilations[1]
                                if 0 <= y < size[0] and 0 <= z < size[1]:
                                    totals[group * outs + out][y][z] += value * tap
        images.append([[[scaled(v, source + form, result) for v in line] for line in plane] for plane in totals])
    return images


def gemm(x, weight, bias, *, source, form, result):
    """Multiply [N][I] by [O][I]."""
    return [
        [
            scaled(
                sum(a * b for a, b in zip(row, taps, strict=True))
                + (quantised(bias[out], source + form, 47) if bias is not None else 0),
                source + form,
                result,
            )
            for out, taps in enumerate(weight)
        ]
        for row in x
    ]


def windows(plane, *, kernel, strides, pads, size):
    """Yield, for each output element, the elements of its window that lie inside the image."""
    for row in range(size[0]):
        yield [
            [
                plane[y][z]
                for y in range(row * strides[0] - pads[0], row * strides[0] - pads[0] + kernel[0])
                for z in range(column * strides[1] - pads[1], column * strides[1] - pads[1] + kernel[1])
                if 0 <= y < len(plane) and 0 <= z < len(plane[0])
            ]
            for column in range(size[1])
        ]


def max_pool(x, **shape):
    return [[[[max(window) for window in row] for row in windows(plane, **shape)] for plane in image] for image in x]


def average_pool(x, *, include_pad, source, result, **shape):
    whole = shape["kernel"][0] * shape["kernel"][1]

    def mean(window):
        return rounded(Fraction(sum(window), whole if include_pad else len(window)) * Fraction(2) ** (result - source), 16)

    return [[[[mean(window) for window in row] for row in windows(plane, **shape)] for plane in image] for image in x]


def leaky(value: int, slope: float, source: int, result: int) -> int:
    factor = Fraction(1) if value >= 0 else Fraction(quantised(slope, 15), 1 << 15)
    return rounded(Fraction(value) * factor * Fraction(2) ** (result - source), 16)


def function(name: str, value: int, source: int, result: int) -> int:
    real = value / 2.0**source
    if name == "Tanh":
        found = math.tanh(real)
    else:
        found = 1 / (1 + math.exp(-real)) if real >= 0 else math.exp(real) / (1 + math.exp(real))
    return quantised(found, result)


def added(a: int, b: int, first: int, second: int, result: int) -> int:
    total = Fraction(a) / Fraction(2) ** first + Fraction(b) / Fraction(2) ** second
    return rounded(total * Fraction(2) ** result, 16)


def multiplied(a: int, b: int, first: int, second: int, result: int) -> int:
    return scaled(a * b, first + second, result)
