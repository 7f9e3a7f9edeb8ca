"""Random programs on tensors, with eager's results and their exactness, and random plans for them. Needs hypothesis.

A program is straight-line Python: broadcasting, views, writes to inputs and to views, several results, some of which share
memory, dead code, mixed dtypes, numbers. Comparisons, argmax and casts to whole numbers take only values that float32 holds
exactly and that were never rounded: for others, summing in another order could rightly flip them.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from hypothesis import strategies as st

from hub.partition.group import EAGER
from hub.partition.verdicts import Verdicts
from hub.plugin.graph import Graph
from hub.testing.operators.sample import Layout, Made

Function = Callable[..., tuple[torch.Tensor, ...]]

ROUNDS = 4
"""Number of noisy runs that determine a tolerance; the largest deviation counts."""
EAGER_FACTOR = 4.0
"""Allowed multiple of eager's own error, and of the noise."""
ULPS = 8.0
"""Allowed roundings of the largest value."""
NOISE_ULPS = 4.0
"""Roundings by which a noisy run moves each rounded result: a backend's exp may be off by two, as may a short sum."""
LARGEST = 1e6
"""Largest value; lines that would exceed it are left out."""
_GRID = 256
"""Exact values are multiples of 1/256 below 256: sums of a hundred of them are exact in float32 in any order."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor input of a program: values on a coarse grid, so that float32 holds sums of them exactly."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout
    seed: int

    def build(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Make the tensor, always with the same values; in another dtype, with the same strides."""
        dtype = dtype or self.dtype
        fill = "booleans" if dtype is torch.bool else "integers"
        made = Made(self.shape, dtype, fill, low=-8, high=9, layout=self.layout)
        tensor = made.build(torch.Generator().manual_seed(self.seed))
        is_written = dtype.is_floating_point and self.layout != "expanded"
        return tensor.div_(4) if is_written else tensor


@dataclass(frozen=True, slots=True)
class Line:
    """One statement."""

    text: str
    target: str
    """The name that it defines or writes to."""
    rounded_to: torch.dtype | None = None
    """The dtype to which it rounds; None if it is exact."""


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """A function from tensors and numbers to a tuple of tensors."""

    inputs: tuple[Input, ...]
    numbers: Mapping[str, float]
    lines: tuple[Line, ...]
    results: tuple[str, ...]

    @property
    def source(self) -> str:
        """The function as Python source."""
        names = ", ".join((*(given.name for given in self.inputs), *self.numbers))
        body = [f"    {line.text}" for line in self.lines]
        return "\n".join((f"def program({names}):", *body, f"    return ({', '.join(self.results)},)", ""))

    def __repr__(self) -> str:
        given = "\n".join(f"# {item}" for item in (*self.inputs, dict(self.numbers)))
        return f"\n{given}\n{self.source}"

    def function(self) -> Function:
        """Return the function, with its source where Dynamo's messages find it."""
        filename = f"<random program {abs(hash(self.source)):x}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, filename, "exec"), namespace)
        return namespace["program"]

    def arguments(self) -> tuple[Any, ...]:
        """Return new arguments for one call, with the same values every time."""
        return (*(given.build() for given in self.inputs), *self.numbers.values())

    def in_float64(self, noise: torch.Generator | None = None) -> Mapping[str, torch.Tensor]:
        """Return the values of all names after a run in float64; with `noise`, rounded lines are off by a few roundings."""
        values: dict[str, Any] = {"torch": torch, **self.numbers}
        for given in self.inputs:
            values[given.name] = given.build(torch.float64 if given.dtype is torch.float32 else None)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # the dtype of divisions of whole numbers
        try:
            for line in self.lines:
                exec(line.text.replace("torch.float32", "torch.float64"), values)
                if noise is not None and line.rounded_to is not None:
                    _spoil(values[line.target], line.rounded_to, noise)
        finally:
            torch.set_default_dtype(before)
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _spoil(tensor: torch.Tensor, dtype: torch.dtype, noise: torch.Generator) -> None:
    """Move each element by up to `NOISE_ULPS` roundings of the largest one: a sum's error follows its largest terms."""
    if not tensor.numel():
        return
    step = NOISE_ULPS * torch.finfo(dtype).eps * float(tensor.abs().max().clamp(min=1.0))
    tensor.add_((torch.rand(tensor.shape, generator=noise, dtype=torch.float64) * 2 - 1) * step)


def check(program: Program, compiled: Function, *, calls: int = 2) -> None:
    """Raise AssertionError if calls of a compiled program return or write something other than eager.

    Form, shared memory, whole numbers and booleans must be equal. Floating-point values may differ from a float64 run by
    `EAGER_FACTOR` times the error of eager, plus the amount by which noise of a few roundings in each line moves that run.
    """
    eager = program.arguments()
    wanted = program.function()(*eager)
    made: list[tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]] = []
    for _ in range(calls):
        given = program.arguments()
        made.append((given, compiled(*given)))
    for given, got in made:  # only now: a later call may have overwritten an earlier one's results
        assert len(got) == len(wanted), f"{len(got)} results, {len(wanted)} expected"
        assert _shared(got, given) == _shared(wanted, eager), (
            f"results share memory with {_shared(got, given)}, {_shared(wanted, eager)} expected"
        )
        mine = dict(_named(program, got, given))
        for name, (key, value) in dict(_named(program, wanted, eager)).items():
            _check_one(program, name, key, mine[name][1], value)


def _named(
    program: Program, results: Sequence[torch.Tensor], arguments: Sequence[Any]
) -> Sequence[tuple[str, tuple[str, torch.Tensor]]]:
    """Return each tensor to compare, by what it is, with its name in the program."""
    after = [
        (f"input {given.name} afterwards", (given.name, value))
        for given, value in zip(program.inputs, arguments, strict=False)
    ]
    given_back = zip(program.results, results, strict=True)
    return [*after, *((f"result {at} ({name})", (name, value)) for at, (name, value) in enumerate(given_back))]


def _shared(results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return for each result the arguments and earlier results that it shares memory with."""
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    memory = [value.untyped_storage().data_ptr() if value.numel() else 0 for value in (*tensors, *results)]
    return tuple(
        tuple(other for other in range(at) if memory[at] and memory[other] == memory[at])
        for at in range(len(tensors), len(memory))
    )


def _check_one(program: Program, what: str, name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    for kind, mine, eager in (
        ("shape", got.shape, wanted.shape),
        ("dtype", got.dtype, wanted.dtype),
        ("strides", _strides(got), _strides(wanted)),
    ):
        assert mine == eager, f"{what}: {kind} {mine}, {eager} expected"
    if torch.equal(got, wanted):
        return
    assert wanted.dtype.is_floating_point, f"{what}: got {_shown(got)}, expected {_shown(wanted)}"
    exact = program.in_float64()[name].double()
    noisy = [program.in_float64(torch.Generator().manual_seed(seed))[name] for seed in range(ROUNDS)]
    noise = max(float((other.double() - exact).abs().max()) for other in noisy)
    own = float((wanted.double() - exact).abs().max())
    free = EAGER_FACTOR * (own + noise) + ULPS * torch.finfo(wanted.dtype).eps * float(exact.abs().max())
    worst = float((got.double() - exact).abs().nan_to_num(nan=math.inf).max())
    assert worst <= free, f"{what}: off by {worst:.3g}, {free:.3g} allowed; got {_shown(got)}, expected {_shown(wanted)}"


def _shown(tensor: torch.Tensor) -> str:
    return str(cast("Any", tensor).tolist())


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that matter: the stride of a dim with one element is never used."""
    is_empty = not tensor.numel()
    return tuple(step if size > 1 and not is_empty else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


# --- Drawing programs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """A template of a line; `{x}` and `{y}` stand for values, `{number}` for a number."""

    text: str
    kinds: str = "f"
    """Kinds that `x` may have: f for floating point, i for whole numbers, b for booleans."""
    others: str = ""
    """Kinds that `y` may have, if there is one."""
    rounds: bool = False
    """True if the result is rounded even with exact operands."""
    needs_exact: bool = False
    """True if a rounding in an operand could flip the result."""
    rank: int = 0
    """Least number of dims of `x`."""
    writes: bool = False
    """True if `x` is written."""
    names: int = 1
    """Number of values that it makes."""


def _forms(texts: str, **facts: Any) -> tuple[Form, ...]:
    return tuple(Form(text.strip(), **facts) for text in texts.strip().splitlines())


FORMS: tuple[Form, ...] = (
    *_forms(
        """
        {x}.sin()
        {x}.cos()
        {x}.tanh()
        {x}.sigmoid()
        {x}.erf()
        torch.exp({x}.clamp(-4, 4))
        torch.log1p({x}.abs())
        torch.sqrt({x}.abs() + 1)
        torch.rsqrt({x}.abs() + 1)
        torch.nn.functional.gelu({x})
        torch.nn.functional.silu({x})
        torch.nn.functional.softplus({x})
        """,
        rounds=True,
    ),
    *_forms(
        """
        {x}.softmax(-1)
        {x}.log_softmax(0)
        torch.nn.functional.layer_norm({x}, {x}.shape[-1:])
        {x}.mean(-1)
        {x}.mean((0, -1), keepdim=True)
        {x}.var(-1, unbiased=False)
        """,
        rounds=True,
        rank=1,
    ),
    *_forms(
        """
        {x} @ {x}.transpose(-1, -2)
        {x}.transpose(-1, -2).matmul({x})
        torch.nn.functional.linear({x}, {x}.reshape(-1, {x}.shape[-1])[:3])
        """,
        rounds=True,
        rank=2,
    ),
    *_forms("{x} @ {y}.transpose(-1, -2)", others="f", rounds=True, rank=2),
    *_forms("{x} / ({y}.abs() + 1)", kinds="fi", others="fi", rounds=True),
    *_forms(
        """
        torch.relu({x})
        {x}.clamp(-1, 1.5)
        {x}.neg()
        {x} * {number}
        {number} - {x}
        torch.nn.functional.leaky_relu({x}, 0.25)
        """
    ),
    *_forms(
        """
        {x}.abs()
        {x} + {number}
        {x}.square()
        {x}.clone()
        """,
        kinds="fi",
    ),
    *_forms(
        """
        {x} + {y}
        {x} - {y}
        {x} * {y}
        torch.maximum({x}, {y})
        torch.minimum({x}, {y})
        torch.add({x}, {y}, alpha=2)
        torch.where({y} > 0, {x}, {y})
        """,
        kinds="fi",
        others="fi",
    ),
    *_forms("torch.where({y}, {x}, {number})", others="b"),
    *_forms("{x}.masked_fill({y}, {number})", others="b"),
    *_forms("{x} + {y}", kinds="fib", others="fib"),
    *_forms("{x} * {y}", kinds="fib", others="b"),
    *_forms(
        """
        {x} > {y}
        {x} <= {y}
        {x} == {y}
        """,
        kinds="fi",
        others="fi",
        needs_exact=True,
    ),
    *_forms(
        """
        {x} > 0
        {x}.to(torch.int64, copy=True)
        {x}.bool()
        """,
        kinds="fib",
        needs_exact=True,
    ),
    *_forms("{x} & {y}", kinds="b", others="b"),
    *_forms("{x} ^ {y}", kinds="b", others="b"),
    *_forms("{x}.logical_not()", kinds="b"),
    *_forms("{x} // 3", kinds="i"),
    *_forms("{x} % 4", kinds="i"),
    *_forms("{x}.to(torch.float32, copy=True)", kinds="fib"),
    *_forms("{x}.to(torch.float64, copy=True)", kinds="fib"),
    *_forms(
        """
        {x}.sum(0)
        {x}.sum()
        {x}.sum(-1, keepdim=True)
        {x}.cumsum(0)
        """,
        kinds="fib",
        rank=1,
    ),
    *_forms(
        """
        {x}.amax(-1)
        {x}.amin(0, keepdim=True)
        {x}.sort(-1).values
        """,
        kinds="fi",
        rank=1,
    ),
    *_forms("{x}.argmax(-1)", kinds="fi", rank=1, needs_exact=True),
    *_forms("{x}.any(-1)", kinds="b", rank=1),
    *_forms(
        """
        {x}.unsqueeze(0)
        {x}.unsqueeze(-1)
        {x}.reshape(-1)
        {x}.expand(2, *{x}.shape)
        {x}.squeeze()
        {x}.contiguous()
        """,
        kinds="fib",
    ),
    *_forms(
        """
        {x}.transpose(0, -1)
        {x}[0]
        {x}[-1:]
        {x}[..., 1:]
        {x}[::2]
        {x}.flip(0)
        {x}.flatten()
        {x}.narrow(0, 0, 1)
        {x}.repeat_interleave(2, 0)
        {x}.roll(1, 0)
        {x}.select(-1, 0)
        """,
        kinds="fib",
        rank=1,
    ),
    *_forms(
        """
        {x}.diagonal()
        {x}.flatten(0, 1)
        {x}.movedim(0, -1)
        {x}.mT
        {x}.tril()
        """,
        kinds="fib",
        rank=2,
    ),
    *_forms("{x}.chunk(2, 0)", kinds="fib", rank=1, names=2),
    *_forms("{x}.split([1, {x}.shape[-1] - 1], -1)", kinds="fib", rank=1, names=2),
    *_forms("torch.broadcast_tensors({x}, {y})", kinds="fib", others="fib", names=2),
    *_forms("torch.cat([{x}.flatten(), {y}.flatten()])", kinds="fib", others="fib"),
    *_forms("torch.stack([{x}, {y}, {x}])", kinds="fib", others="fib"),
    *_forms("{x}[{y}.abs() % {x}.shape[0]]", kinds="fib", others="i", rank=1),
    *_forms("{x}.index_select(0, {y}.flatten().abs() % {x}.shape[0])", kinds="fib", others="i", rank=1),
    *_forms("torch.arange({x}.shape[0]) + {x}.shape[0]", kinds="fib", rank=1),
    *_forms("torch.full({x}.shape, 0.5)", kinds="fib"),
    *_forms("torch.zeros_like({x})", kinds="fib"),
    *_forms(
        """
        {x}.mul_({number})
        {x}.relu_()
        {x}.neg_()
        {x}.clamp_(-1, 1)
        """,
        writes=True,
    ),
    *_forms("{x}.tanh_()", rounds=True, writes=True),
    *_forms("{x}.zero_()", kinds="fib", writes=True),
    *_forms("{x}.add_(1)", kinds="fi", writes=True),
    *_forms("{x}[0] = 2", kinds="fi", rank=1, writes=True),
    *_forms("{x}[..., 0] = {y}", others="fib", rank=1, writes=True),
    *_forms("{x}[..., 0] = {y}", kinds="i", others="ib", rank=1, writes=True),
    *_forms("{x}.transpose(0, -1).mul_(2)", kinds="fi", rank=1, writes=True),
    *_forms("{x}.copy_({y})", kinds="f", others="fib", writes=True),
    *_forms("{x}.add_({y})", kinds="f", others="fib", writes=True),
    *_forms("{x}.add_({y})", kinds="i", others="ib", writes=True),
    *_forms("{x} += {y}", kinds="f", others="fi", writes=True),
    *_forms("{x}.mul_({y})", kinds="f", others="fb", writes=True),
    *_forms("{x}.masked_fill_({y}, 0.5)", kinds="f", others="b", writes=True),
)
"""The forms of lines. A line that eager refuses, for its shapes for example, is not used."""


@dataclass(slots=True)
class _Value:
    name: str
    tensor: torch.Tensor
    is_exact: bool

    @property
    def kind(self) -> str:
        return "b" if self.tensor.dtype is torch.bool else "f" if self.tensor.is_floating_point() else "i"

    @property
    def memory(self) -> int:
        return self.tensor.untyped_storage().data_ptr()

    @property
    def may_be_written(self) -> bool:
        """False if several elements share one place in memory, in which case eager refuses."""
        pairs = zip(self.tensor.shape, self.tensor.stride(), strict=True)
        return bool(self.tensor.numel()) and all(step or size == 1 for size, step in pairs)


class _Drawing:
    """A program under construction: it runs while it grows, so that each line is known to work."""

    def __init__(self, inputs: Sequence[Input], numbers: Mapping[str, float]) -> None:
        self.numbers = numbers
        self.values = [_Value(given.name, given.build(), is_exact=True) for given in inputs]
        self.kept = {value.memory for value in self.values if not value.may_be_written}
        """Memory of expanded inputs: PyTorch captures no write to a part of one either."""
        self.lines: list[Line] = []

    def fitting(self, form: Form) -> list[_Value]:
        """Return the values that can be the form's `x`."""
        return [
            value
            for value in self.values
            if value.kind in form.kinds
            and value.tensor.dim() >= form.rank
            and (value.is_exact or not form.needs_exact)
            and (not form.writes or (value.may_be_written and value.memory not in self.kept))
        ]

    def others(self, form: Form, x: _Value) -> list[_Value]:
        """Return the values that can be the form's `y`: memory written and memory read must not overlap in part."""
        return [
            value
            for value in self.values
            if value.kind in form.others
            and (value.is_exact or not (form.needs_exact or "> 0" in form.text))
            and not (form.writes and value.memory == x.memory)
        ]

    def add(self, form: Form, x: _Value, y: _Value | None, number: str) -> None:
        """Add a line, unless eager refuses it or its values grow too large."""
        first = len(self.values)
        names = [f"v{first + at}" for at in range(form.names)]
        text = form.text.format(x=x.name, y=y.name if y else "", number=number)
        text = text if form.writes else f"{', '.join(names)} = {text}"
        scope: dict[str, Any] = {"torch": torch, **self.numbers, **{value.name: value.tensor for value in self.values}}
        try:
            exec(text, scope)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return
        is_exact = x.is_exact and (y is None or y.is_exact) and not form.rounds
        if form.writes:
            self._written(text, x, is_exact=is_exact)
        else:
            self._made(text, form, x, [scope[name] for name in names], names, is_exact=is_exact)

    def _written(self, text: str, x: _Value, *, is_exact: bool) -> None:
        for value in self.values:
            if value.memory == x.memory:
                value.is_exact = value.is_exact and is_exact and _on_grid(value.tensor)
        self.lines.append(Line(text, x.name, _rounding(x.tensor, is_exact=x.is_exact)))

    def _made(
        self, text: str, form: Form, x: _Value, made: Sequence[torch.Tensor], names: Sequence[str], *, is_exact: bool
    ) -> None:
        if not all(map(_is_tame, made)):
            return
        if "argmax" in form.text and not _has_one_largest(x.tensor):
            return
        is_exact = is_exact and all(map(_on_grid, made))
        is_new = all(tensor.untyped_storage().data_ptr() not in {value.memory for value in self.values} for tensor in made)
        rounding = _rounding(made[0], is_exact=is_exact) if is_new and form.names == 1 else None
        self.lines.append(Line(text, names[0], rounding))
        self.values += [_Value(name, tensor, is_exact) for name, tensor in zip(names, made, strict=True)]


def _rounding(tensor: torch.Tensor, *, is_exact: bool) -> torch.dtype | None:
    return tensor.dtype if tensor.is_floating_point() and not is_exact else None


def _is_tame(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0 or tensor.numel() > 512:
        return False
    return tensor.dtype is torch.bool or bool((tensor.double().abs() <= LARGEST).all())


def _on_grid(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    scaled = tensor.double() * _GRID
    return bool(((scaled == scaled.round()) & (scaled.abs() <= _GRID * _GRID)).all())


def _has_one_largest(tensor: torch.Tensor) -> bool:
    """Return False if two elements of a row share the maximum: backends may then return the position of either."""
    return bool(((tensor == tensor.amax(-1, keepdim=True)).sum(-1) == 1).all())


_SIZES = st.sampled_from([1, 2, 3, 4, 5])
_DTYPES = st.sampled_from([torch.float32, torch.float32, torch.float32, torch.float64, torch.int64, torch.bool])
_LAYOUTS: Sequence[Layout] = ("contiguous", "contiguous", "transposed", "strided", "expanded")


@st.composite
def _inputs(draw: st.DrawFn) -> tuple[Input, ...]:
    columns, rows = draw(_SIZES), draw(_SIZES)
    shapes = [(rows, columns), (columns,), (1, columns), (rows, 1), (2, rows, columns), ()]
    found = [Input("x0", (rows, columns), torch.float32, draw(st.sampled_from(_LAYOUTS)), 0)]
    for number in range(1, draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(shapes))
        layout = draw(st.sampled_from(_LAYOUTS)) if len(shape) > 1 else "contiguous"
        found.append(Input(f"x{number}", shape, draw(_DTYPES), layout, number))
    return tuple(found)


@st.composite
def programs(draw: st.DrawFn, most_lines: int = 14) -> Program:
    """Draw a program of 3 to `most_lines` lines, all of which run."""
    inputs = draw(_inputs())
    numbers = {"s0": draw(st.sampled_from([0.5, -2.0, 2, 1.25]))}
    drawing = _Drawing(inputs, numbers)
    size = draw(st.integers(3, most_lines))
    while len(drawing.lines) < size:
        _draw_line(draw, drawing)
    names = [value.name for value in drawing.values]
    last = st.sampled_from(names[-4:])
    results = draw(st.lists(st.one_of(last, st.sampled_from(names)), min_size=1, max_size=4))
    return Program(inputs, numbers, tuple(drawing.lines), tuple(results))


def _draw_line(draw: st.DrawFn, drawing: _Drawing) -> None:
    form = draw(st.sampled_from(FORMS))
    if not (fitting := drawing.fitting(form)):
        return
    x = draw(st.sampled_from(fitting))
    y = None
    if form.others:
        if not (others := drawing.others(form, x)):
            return
        y = draw(st.sampled_from(others))
    number = draw(st.sampled_from(["2", "0.5", "-1", "s0"])) if "{number}" in form.text else ""
    drawing.add(form, x, y, number)


# --- Drawing plans ----------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn, graph: Graph, verdicts: Verdicts) -> list[dict[str, Any]]:
    """Draw the clusters of a plan file: the graph cut at random places, each piece assigned to a backend that accepts it.

    Pieces are consecutive nodes, so that a plan of them can always run, however small and pointless they are.
    """
    names = [node.name for node in graph.nodes]
    found: list[dict[str, Any]] = []
    start = 0
    while start < len(names):
        backend = draw(st.sampled_from([EAGER, *verdicts.by_backend]))
        wanted = draw(st.integers(1, 6))
        taken = 0
        while taken < wanted and start + taken < len(names) and verdicts.takes(backend, names[start + taken]):
            taken += 1
        chosen = names[start : start + max(taken, 1)]
        found.append({"backend": backend if taken else EAGER, "nodes": chosen})
        start += len(chosen)
    return found
