"""Different programs never have equal keys: tried on random pairs, far apart and one change apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from hub.partition.extract import extract
from hub.plugin.graph import Cluster, Graph

aten = torch.ops.aten

# A program is plain data. Values are named by when they first appear, and what is not read is not there, so that two
# programs differ if and only if their canonical texts do:
#   program = (calls, outputs, facts)      call = (operator, sources, attributes)
#   source = ("input", number, form) | ("constant", number, form, values) | ("call", number)
#   form = (shape, layout, dtype, offset)      a shape's sizes are numbers, or the letters of symbols
#   fact = (template, letters): what is known of symbols
BINARY = {"add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "max": aten.maximum.default}
UNARY = {
    "relu": aten.relu.default,
    "neg": aten.neg.default,
    "slope": aten.leaky_relu.default,
    "clamp": aten.clamp.default,
    "softmax": aten.softmax.int,
    "permute": aten.permute.default,
    "sum": aten.sum.dim_IntList,
}
ALPHA = ("add", "sub")
ATTRIBUTES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "add": ((1,), (2,), (-1,), (1.0,)),
    "sub": ((1,), (2,), (-1,), (1.0,)),
    "slope": ((0.01,), (0.02,), (1.0,), (0.0,), (-0.0,)),
    "clamp": ((None, 1), (0, None), (0, 1), (0, 1.0), (None, 1.5)),
    "softmax": ((0,), (1,), (-1,)),
    "permute": (([1, 0],), ([0, 1],)),
    "sum": (([0], True), ([1], True), ([0, 1], True)),
}
SHAPES = ((3, 3), (1, 3), (3, 1))
OPEN_SHAPES = (("n", 3), ("m", 3), (3, "n"), ("n", "m"), ("n", "n"), (1, 3), (3, 3))
SIZES = {"n": 6, "m": 8}
DTYPES = {
    **{"bool": torch.bool, "int64": torch.int64},
    **{"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64},
}
NUMBER, FLOAT = 1, 2
"""Ranks of dtypes above those of booleans."""
MIN_RANK = {"sub": NUMBER, "relu": NUMBER, "neg": NUMBER, "clamp": NUMBER, "slope": FLOAT, "softmax": FLOAT}

# One of each group at most may be known, and of the first two groups not both: then none of them follows from others.
BOUNDS = (("{0} <= 100", ("n",)), ("{0} <= 50", ("n",)), ("{0} <= 100", ("m",)))
ORDERS = (("{0} < {1}", ("n", "m")), ("{0} + 1 < {1}", ("n", "m")))
DIVISORS = tuple((f"{{0}} % {number} == 0", (name,)) for name, number in (("n", 2), ("n", 3), ("m", 2), ("m", 4)))
HOLDS: dict[str, Callable[..., Any]] = {
    "{0} <= 100": lambda a: a <= 100,
    "{0} <= 50": lambda a: a <= 50,
    "{0} < {1}": lambda a, b: a < b,
    "{0} + 1 < {1}": lambda a, b: a + 1 < b,
    "{0} % 2 == 0": lambda a: a % 2 == 0,
    "{0} % 3 == 0": lambda a: a % 3 == 0,
    "{0} % 4 == 0": lambda a: a % 4 == 0,
}


# --- Drawing ----------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn, shapes: Sequence[tuple[Any, ...]] = SHAPES, most_calls: int = 6) -> tuple[Any, ...]:
    """Draw a program; if it has symbols, facts about them may be known."""
    calls: list[Any] = []
    seen: dict[str, list[Any]] = {"input": [], "constant": []}
    for number in range(draw(st.integers(1, most_calls))):
        operator = draw(st.sampled_from((*BINARY, *UNARY)))
        read = tuple(draw_source(draw, number, seen, shapes) for _ in range(2 if operator in BINARY else 1))
        call = (operator, read, draw(st.sampled_from(ATTRIBUTES.get(operator, ((),)))))
        calls.append(call if typed((*calls, call)) else _simpler(call))
    outputs = draw(st.sets(st.integers(0, len(calls) - 1), min_size=1))
    return tuple(calls), tuple(sorted(outputs)), draw(facts()) if shapes is OPEN_SHAPES else ()


def _simpler(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a call that works on every dtype and shape."""
    _, (first, *others), _ = call
    return ("mul", (first, first), ()) if others else ("permute", (first,), ([1, 0],))


@st.composite
def forms(draw: st.DrawFn, shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Draw shape, layout, dtype and offset of a tensor."""
    shape, layout = draw(st.sampled_from(shapes)), draw(st.sampled_from(("rows", "columns")))
    return (shape, layout, draw(st.sampled_from(tuple(DTYPES))), 0 if is_open(shape) else draw(st.sampled_from((0, 0, 4))))


@st.composite
def facts(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw what is known about symbols."""
    first = draw(st.sampled_from((None, *BOUNDS, *ORDERS)))
    return tuple(fact for fact in (first, draw(st.sampled_from((None, *DIVISORS)))) if fact)


def draw_source(
    draw: st.DrawFn, number: int, seen: dict[str, list[Any]], shapes: Sequence[tuple[Any, ...]]
) -> tuple[Any, ...]:
    kinds = ["input", "constant", *(["call"] * 3 if number else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "call":
        return ("call", draw(st.integers(0, number - 1)))
    position = draw(st.integers(0, len(seen[kind])))
    if position == len(seen[kind]):
        values = (draw(st.integers(0, 2)), draw(st.integers(0, 8))) if kind == "constant" else ()
        own = [shape for shape in shapes if not is_open(shape)] if kind == "constant" else shapes
        seen[kind].append((kind, position, draw(forms(own)), *values))
    return seen[kind][position]


def is_open(shape: tuple[Any, ...]) -> bool:
    return any(isinstance(size, str) for size in shape)


def typed(calls: Sequence[Any]) -> bool:
    """Return True if each call accepts its sources' dtypes, and shapes that fit one another."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    for operator, read, attributes in calls:
        sources = [found[source[1]] if source[0] == "call" else (source[2][2], source[2][0]) for source in read]
        ranks = [rank(dtype) for dtype, _ in sources]
        shape = broadcast([shape for _, shape in sources])
        is_exact = not any(isinstance(value, float) for value in attributes)
        if shape is None or min(ranks) < MIN_RANK.get(operator, 0) or (max(ranks) < FLOAT and not is_exact):
            return False
        found.append((dtype_of(operator, [dtype for dtype, _ in sources]), shape_of(operator, shape, attributes)))
    return True


def rank(dtype: str) -> int:
    return {"bool": 0, "int64": NUMBER}.get(dtype, FLOAT)


def dtype_of(operator: str, dtypes: Sequence[str]) -> str:
    result = torch.promote_types(DTYPES[dtypes[0]], DTYPES[dtypes[-1]])
    name = str(result).removeprefix("torch.")
    return "int64" if operator == "sum" and rank(name) < FLOAT else name


def broadcast(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    sizes = [set(pair) - {1} for pair in zip(*shapes, strict=True)]
    return tuple(next(iter(found), 1) for found in sizes) if all(len(found) <= 1 for found in sizes) else None


def shape_of(operator: str, shape: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Any, ...]:
    if operator == "permute":
        return tuple(shape[dim] for dim in attributes[0])
    return tuple(1 if operator == "sum" and dim in attributes[0] else size for dim, size in enumerate(shape))


# --- Building ---------------------------------------------------------------------------------------------------------


def tensor(form: tuple[Any, ...], values: tuple[int, int] = (0, 0)) -> torch.Tensor:
    shape, layout, dtype, offset = form
    rows, columns = shape
    size = rows * columns
    flat = torch.zeros(size + offset, dtype=DTYPES[dtype])[offset:]
    flat[values[1] % size] = values[0]
    return flat.reshape(rows, columns) if layout == "rows" else flat.reshape(columns, rows).t()


def fake(form: tuple[Any, ...], mode: FakeTensorMode, symbols: dict[str, Any]) -> torch.Tensor:
    """Return an input without values."""
    shape, layout, dtype, _ = form
    if not is_open(shape):
        return mode.from_tensor(tensor(form), static_shapes=True)
    rows, columns = (symbols.get(size, size) for size in shape)
    with mode:
        if layout == "rows":
            return torch.empty(rows, columns, dtype=DTYPES[dtype])
        return torch.empty(columns, rows, dtype=DTYPES[dtype]).t()


def symbols_of(mode: FakeTensorMode, known: Sequence[Any]) -> dict[str, Any]:
    """Return a symbolic size for each letter, and record what is known about them."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    found: dict[str, Any] = {
        name: mode.from_tensor(torch.empty(size), symbolic_context=context, source=ConstantSource(name)).shape[0]
        for name, size in SIZES.items()
    }
    for template, letters in known:
        assert HOLDS[template](*(found[letter] for letter in letters))
    return found


def cluster_of(program: tuple[Any, ...], prefix: str) -> Cluster:
    """Build a program under names that begin with `prefix`."""
    calls, outputs, known = program
    graph, mode, weights = fx.Graph(), FakeTensorMode(shape_env=ShapeEnv()), {}
    symbols = symbols_of(mode, known) if any(is_open(source[2][0]) for source in sources_of(calls)) else {}
    sources: dict[tuple[str, int], fx.Node] = {}
    for kind, number, form, *values in sources_of(calls):
        node = sources[kind, number] = graph.placeholder(f"{prefix}{kind}{number}")
        node.meta["val"] = fake(form, mode, symbols)
        if kind == "constant":
            weights[node.name] = tensor(form, (values[0], values[1]))
    made: list[fx.Node] = []
    for position, (operator, read, attributes) in enumerate(calls):
        args = [made[source[1]] if source[0] == "call" else sources[source[0], source[1]] for source in read]
        kwargs = {"alpha": attributes[0]} if operator in ALPHA else {}
        extra = () if operator in ALPHA else attributes
        target = BINARY[operator] if operator in BINARY else UNARY[operator]
        node = graph.call_function(target, (*args, *extra), kwargs, name=f"{prefix}{position}")
        with mode:
            node.meta["val"] = target(*(source.meta["val"] for source in args), *extra, **kwargs)
        made.append(node)
    graph.output(tuple(made[number] for number in outputs))
    whole = Graph(fx.GraphModule(torch.nn.Module(), graph), "g", weights=tuple(weights))
    return extract(whole, [node.name for node in made], "c", weights)


def sources_of(calls: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield inputs and constants, each once, in order of first use."""
    seen: set[tuple[str, int]] = set()
    for _, read, _ in calls:
        for source in read:
            if source[0] != "call" and source[:2] not in seen:
                seen.add(source[:2])
                yield source


# --- Comparing --------------------------------------------------------------------------------------------------------


def canonical(program: tuple[Any, ...]) -> str:
    """Return text in which 1, 1.0, 0.0 and -0.0 differ; constants' values as laid out in memory; letters in order."""
    calls, outputs, known = program
    numbers: dict[tuple[str, int], int] = {}
    letters: dict[str, str] = {}
    for source in sources_of(calls):
        numbers[source[:2]] = sum(kind == source[0] for kind, _ in numbers)
        for size in source[2][0]:
            if isinstance(size, str):
                letters.setdefault(size, f"s{len(letters)}")
    texts = [(name, tuple(placed(source, numbers, letters) for source in read), given) for name, read, given in calls]
    told = [template.format(*map(letters.get, about)) for template, about in known if set(about) <= set(letters)]
    return repr((texts, outputs, sorted(told)))


def placed(source: tuple[Any, ...], numbers: dict[tuple[str, int], int], letters: dict[str, str]) -> Any:
    if source[0] == "call":
        return source
    (shape, layout, dtype, offset), values = source[2], source[3:]
    name = (source[0], numbers[source[:2]])
    if source[0] == "input":
        return (*name, tuple(letters.get(size, size) for size in shape), layout, dtype, offset)
    # Where a constant begins in its storage says nothing of it. The layout of one row or column is in its strides.
    value, position = min(values[0], 1) if dtype == "bool" else values[0], values[1]
    return (*name, shape, layout, dtype, value, position % (shape[0] * shape[1]) if value else 0)


# --- Programs one change apart ----------------------------------------------------------------------------------------


def edits(program: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Return the programs that are one change away, with the kind of the change."""
    calls, outputs, known = program
    subsets = (chosen for size in range(1, len(calls) + 1) for chosen in combinations(range(len(calls)), size))
    found = {"outputs": [(calls, chosen, known) for chosen in subsets], "facts": _other_facts(program)}
    for position, (what, call) in _other_calls(calls):
        found.setdefault(what, []).append(((*calls[:position], call, *calls[position + 1 :]), outputs, known))
    for what, old, new in _other_sources(calls):
        changed = tuple((name, tuple(new if one == old else one for one in read), given) for name, read, given in calls)
        found.setdefault(what, []).append((changed, outputs, known))
    text = canonical(program)
    sound = {what: [one for one in others if typed(one[0]) and canonical(one) != text] for what, others in found.items()}
    return {what: others for what, others in sound.items() if others}


def _other_calls(calls: Sequence[Any]) -> Iterator[tuple[int, tuple[str, Any]]]:
    for position, (operator, read, attributes) in enumerate(calls):
        if operator in BINARY:
            alike = (name for name in BINARY if (name in ALPHA) == (operator in ALPHA))
            yield from ((position, ("operator", (name, read, attributes))) for name in alike)
            yield position, ("order of operands", (operator, read[::-1], attributes))
            yield from ((position, ("one operand twice", (operator, (one, one), attributes))) for one in read)
        for other in ATTRIBUTES.get(operator, ()):
            yield position, ("attributes", (operator, read, other))
        for place in range(len(read)):
            for number in range(position):
                rewired = (*read[:place], ("call", number), *read[place + 1 :])
                yield position, ("wiring", (operator, rewired, attributes))


def _other_sources(calls: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    for source in sources_of(calls):
        kind, number, (shape, layout, dtype, offset), *values = source
        other = "columns" if layout == "rows" else "rows"
        yield "strides", source, (kind, number, (shape, other, dtype, offset), *values)
        for name in DTYPES:
            yield "dtype", source, (kind, number, (shape, layout, name, offset), *values)
        shapes = (*SHAPES, *OPEN_SHAPES) if is_open(shape) else SHAPES
        for size in shapes:
            yield "shape", source, (kind, number, (size, layout, dtype, 0 if is_open(size) else offset), *values)
        if kind == "input" and not is_open(shape):
            yield "offset", source, (kind, number, (shape, layout, dtype, 4 - offset))
        for value in range(3) if kind == "constant" else ():
            yield "constant", source, (kind, number, source[2], value, values[1])
            yield "constant", source, (kind, number, source[2], values[0], values[1] + value)


def _other_facts(program: tuple[Any, ...]) -> list[Any]:
    calls, outputs, known = program
    fewer = [tuple(fact for fact in known if fact != one) for one in known]
    firsts, divisors = (*BOUNDS, *ORDERS), DIVISORS
    more = [(*known, one) for group in (firsts, divisors) if not set(group) & set(known) for one in group]
    return [(calls, outputs, others) for others in (*fewer, *more)]


@st.composite
def near_pairs(draw: st.DrawFn, shapes: Sequence[tuple[Any, ...]] = SHAPES) -> tuple[Any, Any]:
    """Draw a program, and one that is one change away."""
    program = draw(programs(shapes))
    found = edits(program)
    assume(found)
    return program, draw(st.sampled_from(found[draw(st.sampled_from(sorted(found)))]))


def check_equal(program: tuple[Any, ...]) -> None:
    assert cluster_of(program, "a").digest == cluster_of(program, "b").digest


def check_different(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assume(canonical(one) != canonical(other))
    assert cluster_of(one, "a").digest != cluster_of(other, "a").digest


SHORT = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SHORTER = settings(SHORT, max_examples=30)  # symbols take ten times as long to build
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
LONGER = settings(LONG, max_examples=2_000)
HOURS = pytest.mark.timeout(7200)
"""On a machine with other work, ten thousand pairs take longer than other tests may."""


@SHORT
@given(programs())
def test_equal_programs_built_twice_have_equal_keys(program: Any) -> None:
    """Under other names."""
    check_equal(program)


@SHORTER
@given(programs(OPEN_SHAPES))
def test_equal_programs_over_symbols_have_equal_keys(program: Any) -> None:
    """Each time with symbols of its own."""
    check_equal(program)


@SHORT
@given(programs(), programs())
def test_different_programs_have_different_keys(one: Any, other: Any) -> None:
    """Of random pairs."""
    check_different(one, other)


@SHORT
@given(near_pairs())
def test_programs_one_change_apart_have_different_keys(pair: Any) -> None:
    """Of one operator, attribute, order of operands, wire, stride, dtype, shape, offset, constant or output."""
    check_different(*pair)


@SHORTER
@given(near_pairs(OPEN_SHAPES))
def test_programs_over_symbols_one_change_apart_have_different_keys(pair: Any) -> None:
    """Of one size, or of one thing that is known of sizes, too."""
    check_different(*pair)


PLAIN = ((3, 3), "rows", "float32", 0)
OPEN = (("n", "m"), "rows", "float32", 0)
X, OPEN_X, OPEN_Y = ("input", 0, PLAIN), ("input", 0, OPEN), ("input", 1, OPEN)
C = ("constant", 0, PLAIN, 1, 4)


def three_calls(first: Any, second: Any, known: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Return a program that has something of every kind to change."""
    middle = ("softmax", (("call", 0),), (1,))
    return (("sub", (first, second), (1,)), middle, ("sub", (("call", 0), ("call", 1)), (2,))), (2,), known


CHANGES = {"sizes": three_calls(X, C), "symbols": three_calls(OPEN_X, OPEN_X, (ORDERS[0], DIVISORS[0]))}


@pytest.mark.parametrize("name", CHANGES)
def test_every_single_change_gives_a_program_another_key(name: str) -> None:
    """All that are one change away, so that no kind of change depends on being drawn."""
    found = edits(CHANGES[name])
    calls = {"operator", "attributes", "order of operands", "one operand twice", "wiring", "outputs"}
    values = {"shape", "strides", "dtype"}
    assert set(found) == calls | values | ({"facts"} if name == "symbols" else {"offset", "constant"})
    before = cluster_of(CHANGES[name], "a").digest
    for other in (one for others in found.values() for one in others):
        assert cluster_of(other, "a").digest != before, canonical(other)


def test_the_same_program_under_other_letters_is_the_same() -> None:
    """What is compared is what the programs are, not what they are called."""
    other = tuple(("input", number, (("m", "n"), "rows", "float32", 0)) for number in range(2))
    one = ((("add", (OPEN_X, OPEN_Y), (1,)),), (0,), ())
    assert canonical(one) == canonical(((("add", other, (1,)),), (0,), ()))


@pytest.mark.slow
@HOURS
@LONG
@given(programs(), near_pairs(), programs())
def test_ten_thousand_pairs_have_different_keys(program: Any, pair: Any, other: Any) -> None:
    """And equal ones equal keys."""
    check_equal(program)
    check_different(*pair)
    check_different(program, other)


@pytest.mark.slow
@HOURS
@LONGER
@given(near_pairs(OPEN_SHAPES))
def test_two_thousand_pairs_over_symbols_have_different_keys(pair: Any) -> None:
    """And equal ones equal keys."""
    check_equal(pair[0])
    check_different(*pair)
