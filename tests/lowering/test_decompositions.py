"""Operators said in others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from hub.toolkit.decompositions import (
    by_elements,
    completed,
    composites_said,
    keeping_nan,
    keeping_zeros,
    layered,
    views_through_one_dim,
)

VALUES = torch.tensor([nan, inf, -inf, -7.0, 0.0, 3.0, 9.0])
OTHERS = torch.tensor([1.0, nan, 2.0, -8.0, nan, 3.0, 4.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.maximum(x, OTHERS),
        lambda x: torch.minimum(x, OTHERS),
        lambda x: torch.max(x, OTHERS),
        lambda x: x.clamp(0, 6),
        lambda x: x.clamp(min=0.5),
        lambda x: x.clamp(max=2),
        lambda x: x.clamp(OTHERS, None),
        lambda x: x.clamp_min(1),
        lambda x: x.clamp_max(OTHERS),
        lambda x: torch.nn.functional.hardtanh(x, -2.0, 2.5),
        lambda x: torch.nn.functional.relu6(x),
        lambda x: x[3:].to(torch.int64).clamp(0, 5),
        lambda x: x[3:].to(torch.int64).clamp(0.5, 5.0),
    ],
)
def test_nan_is_kept(function: Callable[..., Any]) -> None:
    """Nothing but comparisons and choices is left, and the result is eager's, NaN included."""
    program = make_fx(function, decomposition_table=dict(keeping_nan()))(VALUES)
    left = {str(node.target) for node in program.graph.nodes}
    assert not [name for name in left if any(word in name for word in ("clamp", "maximum", "minimum", "hardtanh"))]
    torch.testing.assert_close(program(VALUES), function(VALUES), equal_nan=True, rtol=0, atol=0)


FLOATS = (
    torch.tensor([6.0, -7.5, 7.5, nan, inf, -0.1, 3.0, -3.0, 1e30, 5.0]),
    torch.tensor([0.1, 2, -2, 1, 2, 3, inf, -inf, 7, 0]),
)
PAIRS = torch.tensor([[1.0, 3.0, 3.0, nan, nan], [2.0, 2.0, 1.0, 0.0, -inf]])
WHOLE = torch.tensor([-7, 7, 2**62 + 1, -(2**62) - 1, 0])


def said(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Return a function's program as passed to torch-mlir, and its result."""
    program = make_fx(function, decomposition_table=dict(completed({})))(*inputs)
    return program, program(*inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        torch.fmod,
        torch.remainder,
        torch.floor_divide,
        lambda left, right: torch.div(left, right, rounding_mode="floor"),
        lambda left, right: torch.div(left, right, rounding_mode=None),
        lambda left, right: (left % -0.3, left // 0.3, left.fmod(0.1)),
        torch.fmax,
        torch.fmin,
        lambda left, right: left == left,
        lambda left, right: left < 0,
    ],
)
def test_single_elements_are_eagers(function: Callable[..., Any], dtype: torch.dtype) -> None:
    """Remainders, floors of quotients and comparisons are exact, also of NaN, infinities and zero."""
    given = [each.to(dtype) for each in FLOATS]
    torch.testing.assert_close(said(function, *given)[1], function(*given), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_of_negative_values_are_eagers(exponent: float, dtype: torch.dtype) -> None:
    """A power of a half is a square root: minus infinity gives NaN, and zero keeps its sign, both not in float16."""
    value = torch.tensor([-inf, inf, nan, -0.0, 0.0, -4.0, 4.0]).to(dtype)
    program, got = said(lambda x: x**exponent, value)
    wanted = value**exponent
    torch.testing.assert_close(got, wanted, equal_nan=True)
    assert torch.equal(got.signbit()[3:5], wanted.signbit()[3:5])
    assert not any("pow" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("function", [lambda x: x // 3, lambda x: x % -3, lambda x: x.fmod(3), lambda x: x.argmax()])
def test_integers_keep_all_bits(function: Callable[..., Any]) -> None:
    """Nothing goes through floating point."""
    program, got = said(function, WHOLE)
    assert torch.equal(got, function(WHOLE))
    assert not [node for node in program.graph.nodes if "val" in node.meta and node.meta["val"].is_floating_point()]


@pytest.mark.parametrize("values", [PAIRS, PAIRS.nan_to_num(5.0)], ids=["NaN", "ties"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.argmax(),
        lambda x: x.argmax(1),
        lambda x: x.argmin(0, keepdim=True),
        lambda x: tuple(x.max(1)),
        lambda x: tuple(x.min(0, keepdim=True)),
    ],
)
def test_places_of_extremes_are_eagers(function: Callable[..., Any], values: torch.Tensor) -> None:
    """The first place of NaN, else of the extreme, found among integers."""
    program, got = said(function, values)
    torch.testing.assert_close(got, function(values), equal_nan=True)
    found = [node for node in program.graph.nodes if "argm" in str(node.target)]
    assert {node.args[0].meta["val"].dtype for node in found} == {torch.int32}


@pytest.mark.parametrize("function", [torch.bitwise_left_shift, torch.bitwise_right_shift, torch.bitwise_xor])
def test_shifts_are_between_equal_shapes(function: Callable[..., Any]) -> None:
    """torch-mlir's repeat nothing; what is smaller is repeated before."""
    column, row = torch.tensor([[1], [300], [-7]]), torch.tensor([1, 2, 3])
    program, got = said(function, column, row)
    assert torch.equal(got, function(column, row))
    (shift,) = [node for node in program.graph.nodes if "bitwise" in str(node.target)]
    shapes = {node.meta["val"].shape for node in shift.args}
    assert shapes == ({torch.Size([3, 3])} if "shift" in str(function) else {column.shape, row.shape})


def test_an_rms_norm_is_said_before_pytorch_takes_it_apart() -> None:
    """A program's node becomes a function of ours, which gives eager's numbers, with weight or without."""
    value, weight = torch.randn(3, 4), torch.randn(4)

    def function(value: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rms_norm(value, [4], weight, 1e-5), torch.rms_norm(value, [4])

    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in ("value", "weight")]
    operator = torch.ops.aten.rms_norm.default
    calls = (
        graph.call_function(operator, (inputs[0], [4], inputs[1], 1e-5)),
        graph.call_function(operator, (inputs[0], [4])),
    )
    graph.output(calls)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    composites_said(module)
    assert not list(module.graph.find_nodes(op="call_function", target=operator))
    torch.testing.assert_close(module(value, weight), function(value, weight))


TABLES = {
    name: table()
    for name, table in (
        ("NaN", keeping_nan),
        ("zeros", keeping_zeros),
        ("views", views_through_one_dim),
        ("elements", by_elements),
    )
}


@pytest.mark.parametrize("table", TABLES)
def test_every_decomposition_takes_its_operators_arguments(table: str) -> None:
    """Programs give an operator's arguments by position, also those with defaults, unless its schema says otherwise."""
    for operator, function in TABLES[table].items():
        positional = [each.name for each in operator._schema.arguments if not each.kwarg_only]
        named = {each.name: None for each in operator._schema.arguments if each.kwarg_only}
        inspect.signature(function).bind(*positional, **named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", ["add", "sub", "rsub"])
def test_factors_of_sums_given_by_position_are_taken(operator: str, dtype: torch.dtype) -> None:
    """`aten.add.Scalar(x, 2, 3)` is x + 6."""
    function = getattr(torch.ops.aten, operator).Scalar
    value = torch.tensor([0.3, -7.0, 1e3], dtype=dtype)
    for rest in ((2, 3), (0.1, 3)):

        def program(x: torch.Tensor, /) -> Any:
            return function(x, *rest)  # noqa: B023 - called within the turn

        torch.testing.assert_close(said(program, value)[1], function(value, *rest), rtol=0, atol=0)


def test_what_a_later_table_leaves_is_the_earlier_ones() -> None:
    """torch-mlir has no rule for `aten.rsub`: if halves alone are ours, all other dtypes are its own table's."""
    theirs = {torch.ops.aten.rsub.Tensor: lambda left, right, alpha=1: right - left * alpha}
    table = dict(layered(theirs, by_elements()))
    for dtype in (torch.float32, torch.float16, torch.int64):
        program = make_fx(torch.rsub, decomposition_table=table)(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype))
        assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.rsub.Tensor)
