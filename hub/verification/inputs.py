"""Generated inputs: the kinds of values on which compilers are wrong, with the memory layout of the real inputs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import fx

from hub.plugin.graph import Cluster
from hub.plugin.table import operator_name, tensors_of
from hub.verification.parts import parts_of, whole_of
from hub.verification.sizes import Change, Form, is_well_shaped, other_sizes
from hub.verification.ties import has_ties
from hub.verification.tolerance import longest_sum

Inputs = tuple[Any, ...]
Draw = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""Function that draws values for a real tensor: a flat CPU tensor of `span(real)` elements of its dtype."""

Make = Callable[[Cluster, Inputs, torch.Generator], Iterator[Inputs]]

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating dtypes whose values are varied; others (float8) keep their real values."""
COMPLEX = (torch.complex64, torch.complex128)
"""Complex dtypes whose real and imaginary parts are varied, as floating values are."""
USUAL_INTEGER = 2**20
"""Largest integer whose sums with a few others are exact in float32; larger ones are guarded if they change results."""
WIDE_INTEGERS = (torch.int32, torch.int64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_MASKED = "aten._unsafe_masked_index"
"""Operators whose indices are not checked, because a mask goes with them: other masks or indices would read out of
bounds."""
_PLACES = 3
"""Number of elements of an input that become infinite or NaN."""
_ROOM = 16.0
"""Headroom in the dtype for a sum of squares of huge values, by which each value is divided: weights multiply it."""
_ZEROS = 0.6
"""Fraction of elements that are equal when ties are tried, among the largest and the smallest ones, too."""
_SEED = 4
_CPU = torch.device("cpu")
"""Device on which values are drawn, whatever the default device: its generator gives the same values everywhere."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of generated inputs."""

    name: str
    make: Make
    """Function that returns nothing if the cluster has no such input, else attempts; the first one that eager accepts
    counts."""
    unusual: tuple[torch.dtype, ...] = ()
    """Dtypes of the inputs that get values that models rarely see; if they change results, calls are guarded."""
    has_tiny: bool = False
    """True if inputs are so small that some machines' arithmetic flushes them to zero."""
    is_certain: bool = False
    """True if it is always tried, however little time is left, because no guard could protect calls from what it finds."""


def generated(kind: Kind, cluster: Cluster, inputs: Sequence[Any]) -> Iterator[Inputs]:
    """Yield a kind's attempts for a cluster, from its real inputs. Equal arguments give equal values in every process."""
    attempts = kind.make(cluster, tuple(inputs), torch.Generator(_CPU).manual_seed(_SEED))
    if not any(operator_name(node).startswith(_MASKED) for node in cluster.nodes):
        return attempts
    return (_with_real_indices(attempt, inputs) for attempt in attempts if _is_of_sizes(attempt, inputs))


def _with_real_indices(attempt: Inputs, inputs: Sequence[Any]) -> Inputs:
    return tuple(value if _is_varied(real) else copied(real) for value, real in zip(attempt, inputs, strict=True))


def _is_of_sizes(attempt: Inputs, inputs: Sequence[Any]) -> bool:
    pairs = zip(attempt, inputs, strict=True)
    return all(value.shape == real.shape if isinstance(real, torch.Tensor) else value == real for value, real in pairs)


# --- Memory -----------------------------------------------------------------------------------------------------------


def span(value: torch.Tensor) -> int:
    """Return the number of elements of memory from a tensor's first to its last element, both included."""
    if value.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))


def in_layout_of(value: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Return values as a tensor with the shape, strides and device of another one."""
    return flat.to(value.device).as_strided(value.shape, value.stride())


def copied(value: Any) -> Any:
    """Return a copy in its own memory, with equal strides, gaps and overlaps; other values are returned unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach().resolve_conj().resolve_neg()
    flat = plain.as_strided((span(plain),), (1,), plain.storage_offset()).clone()
    return flat.as_strided(plain.shape, plain.stride())


def _is_varied(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (*FLOATING, *COMPLEX) and value.numel() > 0


# --- Floating values --------------------------------------------------------------------------------------------------


def _normal(value: torch.Tensor, generator: torch.Generator, *, scale: float = 1.0) -> torch.Tensor:
    return _signed_as(value, torch.randn(span(value), generator=generator, dtype=torch.float64, device=_CPU) * scale)


def _signed_as(value: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Return drawn values with the sign that all real values share, if they do: no model takes the logarithm of -1."""
    sign = _common_sign(value)
    return (drawn if sign == 0 else drawn.abs() * sign).to(value.dtype)


def _common_sign(value: torch.Tensor) -> int:
    if not bool(value.any()):
        return 0
    return 1 if bool((value >= 0).all()) else -1 if bool((value <= 0).all()) else 0


def _wide(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _normal(value, generator, scale=10.0)


def _large(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _normal(value, generator, scale=1e2 if value.dtype is torch.float16 else 1e4)


def _tiny(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # The fourth root keeps cubes of such values normal.
    return _normal(value, generator, scale=torch.finfo(value.dtype).tiny ** 0.25)


def _denormal(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.rand(span(value), generator=generator, dtype=torch.float64, device=_CPU) * 2 - 1
    return _signed_as(value, drawn * torch.finfo(value.dtype).tiny)


def _huge(cluster: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
    """Yield values as large as sums of squares allow; for clusters that are not finite on these, as higher powers allow."""
    terms = longest_sum(cluster)
    for power in (2, 4, 8):
        yield from _floats(_with_room_for(power, terms))(cluster, inputs, generator)


def _with_room_for(power: int, terms: int) -> Draw:
    def draw(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        largest = torch.finfo(value.dtype).max ** (1 / power) / (_ROOM * terms)
        return _signed_as(
            value, (torch.rand(span(value), generator=generator, dtype=torch.float64, device=_CPU) * 2 - 1) * largest
        )

    return draw


def _constant(number: float) -> Draw:
    return lambda value, _: torch.full((span(value),), number, dtype=value.dtype, device=_CPU)


def _equal(value: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    """Return values among which many are 0.7, which has no exact binary form, so that sums of it are rounded."""
    return _signed_as(value, torch.full((span(value),), 0.7, dtype=torch.float64, device=_CPU))


def _floats(draw: Draw) -> Make:
    """Vary every floating input; integers and booleans keep their real values, since integers may be indices."""

    def make(_: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
        if any(map(_is_varied, inputs)):
            yield tuple(_drawn(value, draw, generator) for value in inputs)

    return make


def _drawn(value: Any, draw: Draw, generator: torch.Generator) -> Any:
    if not _is_varied(value):
        return copied(value)
    parts = parts_of(value)
    return whole_of(in_layout_of(parts, draw(parts, generator)), value)


def _placed(*numbers: float) -> Make:
    """Put numbers at a few positions of every floating input; the other values are real."""

    def make(_: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
        if any(map(_is_varied, inputs)):
            yield tuple(_with_numbers(value, numbers, generator) for value in inputs)

    return make


def _with_numbers(value: Any, numbers: Sequence[float], generator: torch.Generator) -> Any:
    copy = copied(value)
    if _is_varied(value):
        parts = parts_of(copy)
        places = torch.randperm(parts.numel(), generator=generator, device=_CPU)[:_PLACES]
        for index, place in enumerate(places):
            # One by one, since elements may share memory.
            parts[tuple(map(int, np.unravel_index(int(place), parts.shape)))] = numbers[index % len(numbers)]
    return copy


# --- All inputs at once -----------------------------------------------------------------------------------------------


def _normals(_: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
    """Vary everything: integers within the range of the real ones and 0, so that indices stay indices; then fewer of them.

    0 is the value of padding and masks, which a first example may lack.
    """
    if not any(isinstance(value, torch.Tensor) and value.numel() for value in inputs):
        return
    for integers in ("with zeros", "in range", "real"):
        yield tuple(_random(value, generator, integers) for value in inputs)


def _random(value: Any, generator: torch.Generator, integers: Literal["with zeros", "in range", "real"]) -> Any:
    if _is_varied(value):
        return _drawn(value, _normal, generator)
    if not isinstance(value, torch.Tensor) or not value.numel():
        return copied(value)
    if value.dtype is torch.bool:
        return in_layout_of(value, torch.rand(span(value), generator=generator, device=_CPU) < 0.5)
    if integers != "real" and _is_integer(value):
        numbers = (int(value.min()), int(value.max()), *([0] if integers == "with zeros" else []))
        low, high = min(numbers), max(numbers) + 1
        if high - low < torch.iinfo(torch.int64).max > high:
            drawn = torch.randint(low, high, (span(value),), generator=generator, device=_CPU)
            if integers == "with zeros":
                drawn[len(drawn) // 2] = 0
            return in_layout_of(value, drawn.to(value.dtype))
    return copied(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in INTEGERS


_HARMLESS_NAMES = """
add sub rsub mul neg abs sign square relu eq ne lt le gt ge where maximum minimum clamp clamp_min clamp_max min max amin
amax argmin argmax sum mean cumsum any all bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or
logical_xor logical_not masked_fill to _to_copy type_as clone contiguous copy view _unsafe_view reshape flatten permute
transpose t expand unsqueeze squeeze slice select cat stack flip roll repeat
"""
_HARMLESS = frozenset(_HARMLESS_NAMES.split())
"""Operators that may get arbitrary integers. Others use integers as indices, which some of eager's kernels do not check
(`embedding_dense_backward`), as sizes, or as divisors: the least number divided by -1 stops the process."""


def _many_zeros(cluster: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
    """Vary every floating input if elements are sorted: among equal elements other than 0, a rounding moves some."""
    return _floats(_sparse)(cluster, inputs, generator) if any(map(has_ties, cluster.nodes)) else iter(())


def _sparse(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    drawn = _normal(value, generator)
    return torch.where(torch.rand(len(drawn), generator=generator, device=_CPU) < _ZEROS, 0, drawn)


def _integers(draw: Draw, dtypes: Collection[torch.dtype]) -> Make:
    """Vary integers of some dtypes if only arithmetic reads integers; everything else keeps its real values."""

    def make(cluster: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
        is_drawn = [isinstance(value, torch.Tensor) and value.dtype in dtypes and value.numel() > 0 for value in inputs]
        if any(is_drawn) and not any(map(_takes_no_extremes, cluster.nodes)):
            yield tuple(
                in_layout_of(value, draw(value, generator)) if is_on else copied(value)
                for value, is_on in zip(inputs, is_drawn, strict=True)
            )

    return make


def _large_integers(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return both ends of a narrow dtype; for wide ones, integers exact in float32, in which some compilers compute."""
    kind = torch.iinfo(value.dtype)
    return _one_of((min(kind.max, USUAL_INTEGER), max(kind.min, -USUAL_INTEGER)), value, generator)


def _extreme(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    kind = torch.iinfo(value.dtype)
    return _one_of((kind.max, kind.min, kind.max - 1, kind.min + 1), value, generator)


def _one_of(ends: Sequence[int], value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.tensor([*ends, 0, 1, 2], dtype=value.dtype, device=_CPU)
    return numbers[torch.randint(0, len(numbers), (span(value),), generator=generator, device=_CPU)]


def _takes_no_extremes(node: fx.Node) -> bool:
    name = operator_name(node)
    reads_integers = any(tensor.dtype in INTEGERS for tensor in tensors_of(node))
    return reads_integers and name.split(".")[1 if "." in name else 0] not in _HARMLESS


def _booleans(is_true: bool) -> Make:
    def make(_: Cluster, inputs: Inputs, _generator: torch.Generator) -> Iterator[Inputs]:
        if any(isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.numel() for value in inputs):
            yield tuple(_all(value) for value in inputs)

    def _all(value: Any) -> Any:
        is_bool = isinstance(value, torch.Tensor) and value.dtype is torch.bool
        return in_layout_of(value, torch.full((span(value),), is_true, device=_CPU)) if is_bool else copied(value)

    return make


def _of_size(*changes: Change) -> Make:
    """Change every symbolic size, by the first change that the program accepts; draw values as for the first kind."""

    def make(cluster: Cluster, inputs: Inputs, generator: torch.Generator) -> Iterator[Inputs]:
        for forms in other_sizes(cluster.inputs, inputs, changes):
            resized = tuple(
                _resized(value, form[0], form[1], generator) if isinstance(form, tuple) else form
                for value, form in zip(inputs, forms, strict=True)
            )
            if is_well_shaped(cluster, resized):
                yield resized

    return make


def _resized(
    value: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    if _is_varied(value) and value.is_complex():
        doubled = *(2 * step for step in stride), 1
        # Copied, because PyTorch cannot make a fake tensor of complex numbers in a view of real ones.
        return copied(whole_of(_resized(parts_of(value), (*shape, 2), doubled, generator), value))
    if not _is_varied(value):
        return _repeated(value, shape, stride)
    size = span(torch.empty_strided(shape, stride, dtype=value.dtype, device="meta"))
    flat = _signed_as(value, torch.randn(size, generator=generator, dtype=torch.float64, device=_CPU))
    return flat.to(value.device).as_strided(shape, stride)


def _repeated(value: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Return the real values in another shape, repeated from the first: indices stay indices."""
    size = span(torch.empty_strided(shape, stride, dtype=value.dtype, device="meta"))
    real = value.detach().cpu().reshape(-1)
    places = torch.arange(size, device=_CPU) % max(len(real), 1)
    flat = real[places] if len(real) else torch.zeros(size, dtype=value.dtype, device=_CPU)
    return flat.to(value.device).as_strided(shape, stride)


_LONG = 16
"""Least size of a long dimension."""


def slightly_larger(cluster: Cluster, inputs: Sequence[Any], most: int = 5) -> Iterator[Inputs]:
    """Yield inputs whose symbolic sizes are larger by one to `most`, as far as the program accepts them.

    Short dimensions change only if no longer one can, to keep the work about the same. Inputs of fixed sizes are the given
    ones; the others repeat the given values. Indices that the program computes from sizes may be out of range in them,
    which eager reports and a compiler may not. Yields nothing for a program whose eager operators would not report it.
    """
    if any(operator_name(node).startswith(_MASKED) for node in cluster.nodes):
        return
    for more in range(1, most + 1):
        for forms in other_sizes(cluster.inputs, inputs, (_longer(more, least=_LONG), _longer(more, least=0))):
            found = tuple(itertools.starmap(_in_form, zip(inputs, forms, strict=True)))
            if is_well_shaped(cluster, found):
                yield found
                break


def _longer(more: int, *, least: int) -> Change:
    """Return the change of all sizes from `least` on by `more`."""
    return lambda _, size: size + more if size >= least else size


def _in_form(value: Any, form: Form) -> Any:
    if not isinstance(form, tuple):
        return form
    return value if form[0] == tuple(value.shape) else _repeated(value, *form)


NORMAL = Kind("normal", _normals, is_certain=True)
MANY_ZEROS = Kind("many zeros", _many_zeros, is_certain=True)
NAN = Kind("NaN", _placed(float("nan")), unusual=(*FLOATING, *COMPLEX))
INFINITIES = Kind("infinities", _placed(float("inf"), float("-inf")), unusual=(*FLOATING, *COMPLEX))

KINDS: tuple[Kind, ...] = (
    NORMAL,
    MANY_ZEROS,
    # Some executables are wrong only beyond a range, which a first example may not leave; later kinds may have to wait.
    Kind("wide", _floats(_wide), is_certain=True),
    NAN,
    INFINITIES,
    Kind("extreme integers", _integers(_extreme, WIDE_INTEGERS), unusual=WIDE_INTEGERS),
    Kind("another size", _of_size(lambda _, size: size + 1, lambda _, size: 2 * size), is_certain=True),
    # These sizes reveal arithmetic on sizes in float32, and an index that runs over one size to the end of another.
    Kind("sizes apart", _of_size(lambda place, size: size + 1 + 2 * place, lambda place, size: (place + 2) * size)),
    Kind("half the size", _of_size(lambda _, size: size // 2)),
    Kind("several times the size", _of_size(lambda _, size: 4 * size + 3, lambda _, size: 5 * size)),
    Kind("large", _floats(_large)),
    Kind("zeros", _floats(_constant(0.0))),
    Kind("all equal", _floats(_equal)),
    Kind("all false", _booleans(is_true=False)),
    Kind("all true", _booleans(is_true=True)),
    Kind("size one", _of_size(lambda _, __: 1), is_certain=True),
    Kind("size zero", _of_size(lambda _, __: 0), is_certain=True),
    Kind("tiny", _floats(_tiny), has_tiny=True),
    Kind("large integers", _integers(_large_integers, INTEGERS)),
    Kind("huge", _huge),
    Kind("denormal", _floats(_denormal), has_tiny=True),
    Kind("negative zeros", _floats(_constant(-0.0))),
)
"""Kinds in order of importance: those skipped when time runs out come last, except for certain ones."""


N_DRAWN = 24
"""Number of combinations of sizes that are drawn."""


def _size_drawn(number: int) -> Change:
    """Return a change to a size between 2 and twice the captured one, or 40; small and large sizes are equally frequent.

    Other numbers give other sizes.
    """

    def change(place: int, size: int) -> int:
        highest, n_steps = math.log(max(2 * size, 40)), 64
        steps = (math.log(2) + (highest - math.log(2)) * step / n_steps for step in range(n_steps + 1))
        choices = list(dict.fromkeys(round(math.exp(step)) for step in steps))  # 33 at least
        random.Random(place).shuffle(choices)
        return choices[number]

    return change


DRAWN_SIZES: tuple[Kind, ...] = tuple(
    Kind(f"sizes drawn {number}", _of_size(_size_drawn(number))) for number in range(N_DRAWN)
)
"""Combinations of sizes as in real calls, tried only after the first answer."""
