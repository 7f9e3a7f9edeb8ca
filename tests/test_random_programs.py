"""Random programs under random plans match eager: results, shared memory and what they write to their inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from hub.config.options import resolve
from hub.discovery.registry import registry
from hub.frontend.ownership import graphs_of
from hub.partition.verdicts import ask_backends
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name
from hub.testing.random_programs import FORMS, Input, Line, Program, check, clusters, programs
from tests.slices import NUMBER

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")  # Inductor's own imports

BACKENDS = registry().available()
COMPILED_SLOWLY = ("inductor", "iree")
"""Backends that start a compiler for each program, often for seconds per cluster."""
COMPILED_FAST = tuple(name for name in BACKENDS if name not in COMPILED_SLOWLY)


def examples(count: int) -> Any:
    """Return how many examples to try, the same ones for one commit; each one compiles, so the time is not limited."""
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


def check_compiled(program: Program, options: dict[str, Any]) -> Any:
    """Check a program under these options, and return the compiled function."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(program.function(), backend="hub", options={"tune": "off", **options}, dynamic=False)
    with torch.no_grad():
        check(program, compiled)
    return compiled


def captured(program: Program) -> tuple[Graph, ...]:
    """Return the graphs that the hub sees: one, or none if only inputs are returned."""
    return tuple(found.graph for found in graphs_of(check_compiled(program, {"backends": ("eager",)})))


def check_under_drawn_plan(data: st.DataObject, backends: Sequence[str], file: Path) -> None:
    """Draw a program and a plan for it over these backends, and check the program under that plan."""
    program = data.draw(programs())
    options = resolve({"backends": tuple(backends)}, {}, file.parent)
    plans = [
        {"clusters": data.draw(clusters(graph, ask_backends(graph, registry(), options)))} for graph in captured(program)
    ]
    if plans:
        file.write_text(json.dumps({"format": 1, "plans": plans}))
        check_compiled(program, {"plan": str(file)})


def check_with_drawn_backends(data: st.DataObject, backends: Sequence[str]) -> None:
    """Draw a program and a backend for each of its operators, and check the program with these forced."""
    program = data.draw(programs())
    operators = {operator_name(node).rpartition(".")[0] for graph in captured(program) for node in graph.nodes}
    names = sorted(name for name in operators if name.startswith("aten."))
    check_compiled(program, {"force": {name: data.draw(st.sampled_from(backends)) for name in names}})


@seed(NUMBER)
@given(data=st.data())
@examples(20)
def test_random_plans(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Under a plan cut at random, over backends that compile fast, programs match eager."""
    check_under_drawn_plan(data, COMPILED_FAST, tmp_path_factory.mktemp("plan") / "plan.json")


@seed(NUMBER)
@given(data=st.data())
@examples(10)
def test_random_backends_for_operators(data: st.DataObject) -> None:
    """With a backend at random forced for every operator, programs match eager."""
    check_with_drawn_backends(data, ["eager", *COMPILED_FAST])


@pytest.mark.parametrize("backend", COMPILED_SLOWLY)
@given(program=programs(most_lines=10))
@examples(4)
def test_one_slow_backend(backend: str, program: Program) -> None:
    """A backend that compiles slowly, given everything that it supports, matches eager."""
    check_compiled(program, {"backends": (backend,)})


@pytest.mark.slow
@given(data=st.data())
@examples(600)
def test_many_random_plans(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Under a plan cut at random, over all backends, many programs match eager."""
    check_under_drawn_plan(data, BACKENDS, tmp_path_factory.mktemp("plan") / "plan.json")


@pytest.mark.slow
@given(data=st.data())
@examples(600)
def test_many_random_backends_for_operators(data: st.DataObject) -> None:
    """With a backend at random forced for every operator, many programs match eager."""
    check_with_drawn_backends(data, ["eager", *BACKENDS])


@given(program=programs())
@examples(150)
def test_programs_agree_with_themselves(program: Program) -> None:
    """A drawn program runs, always with the same result, on new inputs each time."""
    check(program, program.function())


def _writes_to_an_input(program: Program) -> bool:
    given, fresh = program.arguments(), program.arguments()
    program.function()(*given)
    return not all(map(_same, given, fresh))


def _same(left: Any, right: Any) -> bool:
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def _returns_a_view_of_an_input(program: Program) -> bool:
    given = program.arguments()
    memory = [value.untyped_storage().data_ptr() for value in given if isinstance(value, torch.Tensor)]
    return any(value.untyped_storage().data_ptr() in memory for value in program.function()(*given))


def _returns_memory_twice(program: Program) -> bool:
    results = program.function()(*program.arguments())
    return len({value.untyped_storage().data_ptr() for value in results}) < len(results)


def _has_dead_code(program: Program) -> bool:
    last = program.lines[-1]
    return " = v" in last.text and last.target not in program.results


def _mixes_dtypes(program: Program) -> bool:
    return len({value.dtype for value in program.function()(*program.arguments())}) >= 3


TRAITS = {
    "writes to an input": _writes_to_an_input,
    "returns a view of an input": _returns_a_view_of_an_input,
    "returns memory twice": _returns_memory_twice,
    "has dead code": _has_dead_code,
    "mixes dtypes": _mixes_dtypes,
    "takes numbers": lambda program: any("s0" in line.text for line in program.lines),
    "makes two values in a line": lambda program: any(", v" in line.text.partition("=")[0] for line in program.lines),
}


@pytest.mark.parametrize("trait", TRAITS)
def test_programs_are_of_all_kinds(trait: str) -> None:
    """Some drawn program has the trait."""
    find(programs(), TRAITS[trait], settings=settings(examples(500), phases=[Phase.generate]))


def test_programs_have_many_operators() -> None:
    """More than 20 operators can be drawn, in place and out of place."""
    assert len(FORMS) - sum(form.writes for form in FORMS) > 60
    assert sum(form.writes for form in FORMS) > 10


PROGRAM = Program(
    inputs=(Input("x0", (3, 4), torch.float32, "contiguous", 0), Input("x1", (3, 4), torch.int64, "transposed", 1)),
    numbers={"s0": 2.0},
    lines=(
        Line("v2 = x0.sin()", "v2", torch.float32),
        Line("v3 = x1 + 1", "v3"),
        Line("x0.mul_(s0)", "x0"),
        Line("v4 = x0[0]", "v4"),
    ),
    results=("v2", "v3", "v4"),
)


def _right(x0: torch.Tensor, x1: torch.Tensor, s0: float) -> tuple[torch.Tensor, ...]:
    return x0.double().sin().float(), x1 + 1, x0.mul_(s0)[0]


def _with(position: int, spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return the right function with one result spoilt."""

    def wrong(*arguments: Any) -> tuple[torch.Tensor, ...]:
        results = list(_right(*arguments))
        results[position] = spoil(results[position])
        return tuple(results)

    return wrong


def _later_worse() -> Callable[..., Any]:
    calls: list[int] = []

    def wrong(*arguments: Any) -> tuple[torch.Tensor, ...]:
        calls.append(1)
        return _with(0, lambda value: value + len(calls) - 1)(*arguments)

    return wrong


WRONG = {
    "a value": (_with(0, lambda value: value + 1e-5), r"result 0 \(v2\): off by"),
    "a NaN": (_with(0, lambda value: value.where(value > 0, torch.nan)), "off by inf"),
    "a whole number": (_with(1, lambda value: value + (value == value.max())), r"result 1 \(v3\)"),
    "the strides": (_with(1, lambda value: value.contiguous()), r"strides \(4, 1\), \(1, 3\)"),
    "the dtype": (_with(0, lambda value: value.double()), "dtype"),
    "a copy for a view": (_with(2, lambda value: value.clone()), "share memory"),
    "an input not written": (lambda x0, x1, s0: (*_right(x0.clone(), x1, s0)[:2], x0[0]), "input x0 afterwards"),
    "one result too few": (lambda *given: _right(*given)[:2], "2 results, 3 expected"),
    "the second call": (_later_worse(), "off by 1"),
}


def test_a_right_program_passes() -> None:
    """Results that are rounded differently from eager's pass."""
    check(PROGRAM, _right)


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_program_is_refused(fault: str) -> None:
    """A result that is wrong in one respect is refused for that."""
    function, message = WRONG[fault]
    with pytest.raises(AssertionError, match=message):
        check(PROGRAM, function)
