"""Small programs of several operators on which the suite's checks run; a backend is checked on those that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin.graph import Cluster
from hub.testing.conformance.draw import Drawing, Inputs
from hub.testing.operators import SAMPLES, case_cluster
from hub.torch_private import pytree

BATCH = 5
"""Free size of every program; different from all its other sizes, so that only this one becomes symbolic."""

Sketch = Callable[[Drawing], Sequence[fx.Node]]


@dataclass(frozen=True, slots=True)
class Program:
    """A cluster that any process can draw again, with other weights, and with fixed or symbolic sizes."""

    name: str
    sketch: Sketch | None = None
    """None for a sample of a single operator, whose name is "aten.relu.default 0"."""

    def draw(self, *, dynamic: bool = False, seed: int = 0) -> tuple[Cluster, Inputs]:
        """Return the cluster with weights from this seed, and the values of its inputs, which do not depend on the seed."""
        if self.sketch is None:
            return _sample_cluster(self.name, dynamic=dynamic, seed=seed)
        drawing = Drawing(dynamic=dynamic, seed=seed)
        cluster = drawing.cluster("program", self.sketch(drawing))
        return cluster, drawing.inputs


def program_of(name: str) -> Program:
    """Return a program by its name. Raise KeyError or IndexError for an unknown name."""
    if name in PROGRAMS:
        return PROGRAMS[name]
    overload, position = name.split()
    _ = SAMPLES[overload][int(position)]
    return Program(name)


def single(overload: str, position: int) -> Program:
    """Return the program that is one sample call of an operator; all tensors after the first are weights."""
    return Program(f"{overload} {position}")


def _sample_cluster(name: str, *, dynamic: bool, seed: int) -> tuple[Cluster, Inputs]:
    overload, position = name.split()
    cluster, inputs = case_cluster(overload, SAMPLES[overload][int(position)], dynamic=dynamic, constants=range(1, 64))
    for value in cluster.constants.values():
        if value.is_floating_point():
            value.mul_(1.0 + 0.5 * seed)
    return cluster, inputs


def is_varied(name: str) -> bool:
    """Return whether a sample reads a float tensor of several elements: others reveal little about a backend."""
    overload, position = name.split()
    sample = SAMPLES[overload][int(position)]
    tensors = [leaf for leaf in pytree.tree_leaves(sample.build()) if isinstance(leaf, torch.Tensor)]
    return sample.has_values and bool(tensors) and tensors[0].is_floating_point() and tensors[0].numel() > 1


def _mlp(d: Drawing) -> Sequence[fx.Node]:
    hidden = d.call("aten.linear.default", d.input(d.normal(BATCH, 8), free=(0,)), d.weight(16, 8), d.weight(16))
    return [
        d.call("aten.tanh.default", d.call("aten.linear.default", d.call("aten.relu.default", hidden), d.weight(4, 16)))
    ]


def _elementwise(d: Drawing) -> Sequence[fx.Node]:
    x, y = (d.input(d.normal(BATCH, 6), free=(0,)) for _ in range(2))
    total = d.call("aten.add.Tensor", x, y)
    return [d.call("aten.relu.default", total), d.call("aten.mul.Tensor", total, d.call("aten.sigmoid.default", x))]


def _products(d: Drawing) -> Sequence[fx.Node]:
    x = d.input(d.normal(BATCH, 8), free=(0,))
    return [d.call("aten.relu.default", d.call("aten.addmm.default", d.weight(16), x, d.weight(8, 16)))]


def _norm(d: Drawing) -> Sequence[fx.Node]:
    x = d.input(d.normal(BATCH, 3, 8), free=(0,))
    scaled = d.call("aten.layer_norm.default", x, [8], d.weight(8), d.weight(8), 1e-5)
    return [d.call("aten.softmax.int", d.call("aten.gelu.default", scaled), -1)]


def _attention(d: Drawing) -> Sequence[fx.Node]:
    queries, keys, values = (d.input(d.normal(BATCH, 2, 6, 4), free=(0,)) for _ in range(3))
    return [d.call("aten.scaled_dot_product_attention.default", queries, keys, values)]


def _convolution(d: Drawing) -> Sequence[fx.Node]:
    image = d.input(d.normal(BATCH, 3, 8, 8), free=(0,))
    found = d.call("aten.conv2d.default", image, d.weight(4, 3, 3, 3), d.weight(4), [1, 1], [1, 1])
    pooled = d.call("aten.max_pool2d.default", d.call("aten.relu.default", found), [2, 2], [2, 2])
    return [d.call("aten.mean.dim", pooled, [2, 3])]


def _tokens(d: Drawing) -> Sequence[fx.Node]:
    vectors = d.call("aten.embedding.default", d.weight(11, 8), d.input(d.indices(BATCH, 6, below=11), free=(0,)))
    return [d.call("aten.sum.dim_IntList", vectors, [1])]


def _reductions(d: Drawing) -> Sequence[fx.Node]:
    x = d.input(d.normal(BATCH, 7), free=(0,))
    return [
        d.call("aten.amax.default", x, [-1]),
        d.call("aten.mean.dim", x, [-1], True),
        d.call("aten.argmax.default", x, -1),
    ]


_SKETCHES: Mapping[str, Sketch] = {
    "mlp": _mlp,
    "products": _products,
    "norm": _norm,
    "convolution": _convolution,
    "tokens": _tokens,
    "elementwise": _elementwise,
    "attention": _attention,
    "reductions": _reductions,
}

PROGRAMS: Mapping[str, Program] = {name: Program(name, sketch) for name, sketch in _SKETCHES.items()}
"""Programs by name; those with weights come first, because most checks examine the first one that a backend accepts."""


def other_inputs(inputs: Sequence[Any], seed: int) -> Inputs:
    """Return inputs of the same kinds with other values: float values are drawn anew, all others stay."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value in inputs
    )
