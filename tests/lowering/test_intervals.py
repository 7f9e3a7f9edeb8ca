"""Intervals hold for every number that a program computes, and what no hazard is said of stays finite."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from hub.toolkit.intervals import ANY, Hazards, Interval, Intervals, constants_of

UNARY: Sequence[Callable[[Tensor], Tensor]] = (
    *(torch.neg, torch.abs, torch.square, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.relu),
    *(torch.sigmoid, torch.tanh, torch.sin, torch.log1p, torch.asin, torch.acos, torch.atanh, torch.sinh),
    *(lambda x: x**2, lambda x: x**3, lambda x: x**0.5, lambda x: x**-1, lambda x: x**-2, lambda x: x * x),
    *(lambda x: x + 1, lambda x: x + 1e-6, lambda x: 1 - x, lambda x: x * -2, lambda x: x / 4, lambda x: 3 / x),
    *(lambda x: x.clamp(min=0.1), lambda x: x.clamp(-1, 1), lambda x: x.clamp(max=0), lambda x: x.long().float()),
    *(lambda x: x.mean(-1, keepdim=True).expand_as(x), lambda x: x.sum(0, keepdim=True).expand_as(x)),
    *(lambda x: x - x.amax(-1, keepdim=True), lambda x: torch.softmax(x, -1), lambda x: x.cumsum(0)),
    *(
        lambda x: x.var(-1, keepdim=True).expand_as(x),
        lambda x: x.masked_fill(x > 1, 0.5),
        lambda x: x.t().contiguous().t(),
    ),
)
BINARY: Sequence[Callable[[Tensor, Tensor], Tensor]] = (
    *(torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, lambda x, y: torch.where(x > y, x, y)),
    *(lambda x, y: torch.sub(x, y, alpha=2), lambda x, y: x.clamp(y, y.abs() + 1)),
)


def program(seed: int) -> Callable[[Tensor], Tensor]:
    """Return a random program of up to eight operators, each on results of earlier ones."""
    choose = random.Random(seed)
    steps = [
        (choose.choice(BINARY), 2) if choose.random() < 0.3 else (choose.choice(UNARY), 1)
        for _ in range(choose.randint(2, 8))
    ]  # fmt: skip
    picks = [[choose.random() for _ in range(count)] for _, count in steps]

    def run(x: Tensor) -> Tensor:
        values = [x]
        for (function, _), places in zip(steps, picks, strict=True):
            # Later values more often: programs should be deep.
            values.append(function(*(values[-1 - int(place**2 * len(values))] for place in places)))
        return values[-1]

    return run


class Watching(fx.Interpreter):
    """An interpreter that keeps the value of each node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


@pytest.mark.parametrize("seed", range(150))
def test_intervals_hold_the_numbers_of_a_program(seed: int) -> None:
    """Each finite element lies in its node's interval; infinities and NaN occur in nodes with a hazard alone."""
    torch.manual_seed(seed)
    module = make_fx(program(seed), tracing_mode="fake")(torch.randn(4, 5))
    intervals, hazards = Intervals(constants_of(module)), Hazards(constants_of(module))
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    for node in nodes:
        intervals.add(node)
        hazards.add(node)
    for x in (torch.randn(4, 5), torch.zeros(4, 5), torch.randn(4, 5).round(), -torch.rand(4, 5)):
        watching = Watching(module)
        watching.run(x)
        for node in nodes:
            value = watching.values[node]
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if not hazards.may_hold_nan(node):
                assert value.abs().max() < 1e30 or value.isfinite().all() or _overflows(node, watching), node.format_node()
            low, high = intervals.of(node)
            known = value[value.isfinite()].double()
            slack = 1e-4 * (1 + known.abs())
            assert ((known >= low - slack) & (known <= high + slack)).all(), (node.format_node(), low, high)


def _overflows(node: fx.Node, watching: Watching) -> bool:
    """Return whether an argument is so large that the result is beyond float32: that is not followed."""
    values = [watching.values[source] for source in node.all_input_nodes]
    return any(isinstance(value, Tensor) and bool((value.abs() > 1e10).any()) for value in values)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.abs() + 1, Interval(1, float("inf"))),
        (lambda x: torch.sigmoid(x) * 3 - 1, Interval(-1, 2)),
        (lambda x: (x * x).mean(-1) + 0.5, Interval(0.5, float("inf"))),
        (lambda x: x.clamp(-2, 3).neg(), Interval(-3, 2)),
        (lambda x: 1 / (torch.tanh(x) + 2), Interval(1 / 3, 1)),
        (lambda x: (torch.sigmoid(x) + 0.5).long().float(), ANY),
        (lambda x: torch.sub(x, x.amax(-1, keepdim=True), alpha=2), ANY),
        (lambda x: x.log(), ANY),
    ],
)
def test_intervals_are_narrow(function: Callable[[Tensor], Tensor], expected: Interval) -> None:
    """As narrow as the operators say."""
    module = make_fx(function, tracing_mode="fake")(torch.randn(4, 5))
    intervals = Intervals(constants_of(module))
    for node in module.graph.nodes:
        if node.op == "call_function":
            intervals.add(node)
    last = module.graph.output_node().args[0]
    assert intervals.of(last) == pytest.approx(expected)


def test_a_weight_is_read_only_where_its_numbers_matter() -> None:
    """Weights are large: a transposed factor of a product is not looked through, a divisor is."""
    weight, scale = torch.full((5, 5), 2.0), torch.full((5,), 4.0)
    module = make_fx(lambda x: (x @ weight.t()) / scale.view(1, 5))(torch.randn(4, 5))
    read: list[fx.Node] = []

    class Constants(dict[fx.Node, Tensor]):
        def get(self, node: fx.Node, default: Any = None) -> Any:
            read.append(node)
            return super().get(node, default)

    constants = Constants(constants_of(module))
    intervals = Intervals(constants)
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("val", torch.empty(()))
            intervals.add(node)
    assert [constants[node].shape for node in read if node in constants] == [scale.shape]
