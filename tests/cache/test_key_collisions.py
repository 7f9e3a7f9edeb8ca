"""Different programs never have equal keys: tried on random pairs, far apart and one change apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses import FakeTensorMode

from hub.graph import Cluster, Graph
from hub.partition.extract import extract

aten = torch.ops.aten

# A program is plain data. Values are named by when they first appear, and what is not read is not there, so that two
# programs differ if and only if their data do:
#   program = (calls, outputs)      call = (operator, sources, attributes)
#   source = ("input", number, form) | ("constant", number, form, values) | ("call", number)
#   form = (shape, layout, dtype, offset)
BINARY = {"add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "max": aten.maximum.default}
UNARY: dict[str, tuple[Any, tuple[tuple[Any, ...], ...]]] = {
    "relu": (aten.relu.default, ((),)),
    "neg": (aten.neg.default, ((),)),
    "slope": (aten.leaky_relu.default, ((0.01,), (0.02,), (1.0,), (0.0,), (-0.0,))),
    "clamp": (aten.clamp.default, ((None, 1), (0, None), (0, 1), (0, 1.0), (None, 1.5))),
    "softmax": (aten.softmax.int, ((0,), (1,), (-1,))),
    "permute": (aten.permute.default, (([1, 0],), ([0, 1],))),
    "sum": (aten.sum.dim_IntList, (([0], True), ([1], True), ([0, 1], True))),
}
SHAPES = ((3, 3), (1, 3), (3, 1))
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}


@st.composite
def forms(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draws shape, layout, dtype and offset of a tensor."""
    layout, offset = draw(st.sampled_from(("rows", "columns"))), draw(st.sampled_from((0, 0, 4)))
    return (draw(st.sampled_from(SHAPES)), layout, draw(st.sampled_from(("float32", "float64"))), offset)


@st.composite
def programs(draw: st.DrawFn, most_calls: int = 6) -> tuple[Any, ...]:
    """Draws a program."""
    calls: list[Any] = []
    seen: dict[str, list[Any]] = {"input": [], "constant": []}
    for number in range(draw(st.integers(1, most_calls))):
        operator = draw(st.sampled_from((*BINARY, *UNARY)))
        sources = [draw_source(draw, number, seen) for _ in range(2 if operator in BINARY else 1)]
        attributes = (draw(st.sampled_from((1, 2, 1.0))),) if operator in ("add", "sub") else ()
        if operator in UNARY:
            attributes = draw(st.sampled_from(UNARY[operator][1]))
        calls.append((operator, tuple(sources), attributes))
    outputs = draw(st.sets(st.integers(0, len(calls) - 1), min_size=1))
    return tuple(calls), tuple(sorted(outputs))


def draw_source(draw: st.DrawFn, number: int, seen: dict[str, list[Any]]) -> tuple[Any, ...]:
    kinds = ["input", "constant", *(["call"] * 3 if number else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "call":
        return ("call", draw(st.integers(0, number - 1)))
    position = draw(st.integers(0, len(seen[kind])))
    if position == len(seen[kind]):
        values = (draw(st.integers(0, 2)), draw(st.integers(0, 8))) if kind == "constant" else ()
        seen[kind].append((kind, position, draw(forms()), *values))
    return seen[kind][position]


def tensor(form: tuple[Any, ...], values: tuple[int, int] = (0, 0)) -> torch.Tensor:
    shape, layout, dtype, offset = form
    rows, columns = shape
    size = rows * columns
    flat = torch.zeros(size + offset, dtype=DTYPES[dtype])[offset:]
    flat[values[1] % size] = values[0]
    return flat.reshape(rows, columns) if layout == "rows" else flat.reshape(columns, rows).t()


def cluster_of(program: tuple[Any, ...], prefix: str) -> Cluster:
    """Builds a program under names that begin with `prefix`."""
    calls, outputs = program
    graph, values, weights = fx.Graph(), {}, {}
    made: list[fx.Node] = []
    sources: dict[tuple[str, int], fx.Node] = {}
    for _, read, _ in calls:
        for kind, number, *rest in read:
            if kind != "call" and (kind, number) not in sources:
                node = graph.placeholder(f"{prefix}{kind}{number}")
                sources[kind, number] = node
                values[node] = tensor(rest[0])
                if kind == "constant":
                    weights[node.name] = tensor(rest[0], (rest[1], rest[2]))
    with FakeTensorMode() as mode:
        for node, value in values.items():
            node.meta["val"] = mode.from_tensor(value)
        for position, (operator, read, attributes) in enumerate(calls):
            args = [made[source[1]] if source[0] == "call" else sources[source[0], source[1]] for source in read]
            kwargs = {"alpha": attributes[0]} if operator in ("add", "sub") else {}
            extra = () if operator in BINARY else attributes
            target = BINARY[operator] if operator in BINARY else UNARY[operator][0]
            node = graph.call_function(target, (*args, *extra), kwargs, name=f"{prefix}{position}")
            node.meta["val"] = target(*(source.meta["val"] for source in args), *extra, **kwargs)
            made.append(node)
    graph.output(tuple(made[number] for number in outputs))
    whole = Graph(fx.GraphModule(torch.nn.Module(), graph), "g", weights=tuple(weights))
    return extract(whole, [node.name for node in made], "c", weights)


def canonical(program: tuple[Any, ...]) -> str:
    """Text in which 1, 1.0, 0.0 and -0.0 differ; values of constants as they come to lie in memory."""
    calls, outputs = program
    return repr(([(name, tuple(map(placed, read)), attributes) for name, read, attributes in calls], outputs))


def placed(source: tuple[Any, ...]) -> Any:
    if source[0] != "constant":
        return source
    shape, _, _, offset = source[2]
    form = (*source[2][:3], 0)  # where a constant begins in its storage says nothing of the constant
    value, position = source[3:]
    return (*source[:2], form, offset, value, position % (shape[0] * shape[1]) if value else 0)


@st.composite
def near_pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draws a program, and the same with one call's operator, attributes or sources changed, or other outputs."""
    calls, outputs = draw(programs())
    position = draw(st.integers(0, len(calls) - 1))
    operator, read, attributes = calls[position]
    what = draw(st.sampled_from(("operator", "order", "attributes", "outputs", "constant")))
    if what == "operator" and operator in BINARY:
        other = draw(st.sampled_from([name for name in BINARY if (name in ("add", "sub")) == (operator in ("add", "sub"))]))
        changed = (other, read, attributes)
    elif what == "order" and len(read) == 2 and all(source[0] == "call" for source in read):
        changed = (operator, read[::-1], attributes)
    elif what == "attributes" and operator in UNARY:
        changed = (operator, read, draw(st.sampled_from(UNARY[operator][1])))
    elif what == "constant" and any(source[0] == "constant" for source in read):
        number = next(source[1] for source in read if source[0] == "constant")
        value = draw(st.integers(0, 2))
        return (calls, outputs), (tuple(with_value(call, number, value) for call in calls), outputs)
    else:
        more = draw(st.sets(st.integers(0, len(calls) - 1), min_size=1))
        return (calls, outputs), (calls, tuple(sorted(more)))
    return (calls, outputs), ((*calls[:position], changed, *calls[position + 1 :]), outputs)


def with_value(call: tuple[Any, ...], number: int, value: int) -> tuple[Any, ...]:
    operator, read, attributes = call
    sources = tuple((*source[:3], value, source[4]) if source[:2] == ("constant", number) else source for source in read)
    return operator, sources, attributes


def check_equal(program: tuple[Any, ...]) -> None:
    assert cluster_of(program, "a").digest == cluster_of(program, "b").digest


def check_different(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assume(canonical(one) != canonical(other))
    assert cluster_of(one, "a").digest != cluster_of(other, "a").digest


SHORT = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


@SHORT
@given(programs())
def test_equal_programs_built_twice_have_equal_keys(program: Any) -> None:
    """Under other names."""
    check_equal(program)


@SHORT
@given(programs(), programs())
def test_different_programs_have_different_keys(one: Any, other: Any) -> None:
    """Of random pairs."""
    check_different(one, other)


@SHORT
@given(near_pairs())
def test_programs_one_change_apart_have_different_keys(pair: Any) -> None:
    """Of one operator, one attribute, one order of operands, one constant, one output."""
    check_different(*pair)


@pytest.mark.slow
@LONG
@given(programs(), near_pairs(), programs())
def test_ten_thousand_pairs_have_different_keys(program: Any, pair: Any, other: Any) -> None:
    """And equal ones equal keys."""
    check_equal(program)
    check_different(*pair)
    check_different(program, other)
