"""What calls leave behind, and whether two runs of a call left the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hub.errors import type_of
from tests.opdb.calls import DTYPES, Arguments, Call, copied, joined, widened
from tests.opdb.rounding import Rounding

EAGER_FACTOR = 4.0
"""How many times eager's own largest error against float64 is free, for another order of the same sums: the hub's own."""
ULPS = 8.0
"""Roundings of the largest value that are free: a derivative is a chain of a few operations, which may be fused."""
SMOOTH = 1e-2
"""A reference that moves by more than this part of itself where inputs move by one rounding jumps: that is no noise."""
ROUNDED = 3
"""Runs with every operator's results rounded at random: sums of large terms that cancel out move in these only."""

Run = Callable[[Sequence[Arguments]], list[Any]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one call gave, and what it did to its arguments."""

    results: tuple[Any, ...]
    """Leaves of the result."""
    structure: str
    arguments: tuple[torch.Tensor, ...]
    """Tensors among the arguments, as they are afterwards."""
    shared: tuple[tuple[int, ...], ...]
    """For each result: the arguments, then the earlier results (from -1 downward), that it shares memory with."""
    gradients: tuple[torch.Tensor | None, ...] = ()
    """Of the arguments that want one, in order, for a random direction of the results."""

    @cached_property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return every tensor by its role."""
        named = {f"result {at}": value for at, value in enumerate(self.results)}
        named |= {f"argument {at} afterwards": value for at, value in enumerate(self.arguments)}
        named |= {f"gradient {at}": value for at, value in enumerate(self.gradients)}
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def perform(calls: Sequence[Call], run: Run, *, seed: int = 0) -> tuple[Outcome, ...] | Exception:
    """Return what each call leaves behind if `run` makes them all, or what was raised. The calls' own arguments stay."""
    given = [copied(call.arguments) for call in calls]
    is_training = calls[0].cell.mode == "training"
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.set_grad_enabled(is_training):
                results = run(given)
            wanted = (
                [call.for_gradients(result) for call, result in zip(calls, results, strict=True)] if is_training else []
            )
            gradients = _gradients(wanted, given) if is_training else [()] * len(calls)
            return tuple(map(_outcome, given, results, gradients))
        except Exception as error:  # noqa: BLE001 - what a call raises is its outcome
            return error


def in_eager(calls: Sequence[Call], *, seed: int = 0) -> tuple[Outcome, ...] | Exception:
    """Return what PyTorch itself makes of the calls."""
    return perform(calls, joined(calls), seed=seed)


def _outcome(given: Arguments, result: Any, gradients: tuple[torch.Tensor | None, ...]) -> Outcome:
    leaves, structure = pytree.tree_flatten(result)
    arguments = _tensors(given)
    return Outcome(tuple(leaves), str(structure), arguments, _shared(leaves, arguments), gradients)


def _shared(results: Sequence[Any], arguments: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    memory = [_memory(value) for value in (*arguments, *results)]
    found: list[tuple[int, ...]] = []
    for position in range(len(results)):
        mine = memory[len(arguments) + position]
        with_arguments = [at for at in range(len(arguments)) if mine is not None and memory[at] == mine]
        with_results = [-1 - at for at in range(position) if mine is not None and memory[len(arguments) + at] == mine]
        found.append((*with_arguments, *with_results))
    return tuple(found)


def _memory(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    return value.untyped_storage().data_ptr()


def _tensors(values: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor))


def _gradients(results: Sequence[Any], given: Sequence[Arguments]) -> list[tuple[torch.Tensor | None, ...]]:
    """Return the gradients of each call's tensors, taken all at once: a compiled program's backward runs only once."""
    leaves = [[value for value in _tensors(arguments) if value.requires_grad] for arguments in given]
    outputs = [
        [value for value in _tensors(result) if value.requires_grad and value.layout is torch.strided] for result in results
    ]
    leaves = [found if mine else [] for found, mine in zip(leaves, outputs, strict=True)]
    outputs = [mine if found else [] for found, mine in zip(leaves, outputs, strict=True)]
    directions = [direction for mine in outputs for direction in _directions(mine)]
    if not directions:
        return [()] * len(leaves)
    every = iter(torch.autograd.grad([*chain(*outputs)], [*chain(*leaves)], directions, allow_unused=True))
    return [tuple(islice(every, len(found))) for found in leaves]


def _directions(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in outputs]


class References:
    """What a call gives in float64, and how far that moves where inputs, or all that operators give, move by a rounding."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def of(self, name: str, like: torch.Tensor) -> tuple[torch.Tensor, float] | None:
        """Return the values of a tensor of the outcome, and their noise; None if the call has no float64 form."""
        exact, *moved = self._runs
        if exact is None or name not in exact.tensors:
            return None
        values = plain(exact.tensors[name])
        if values.shape != plain(like).shape:
            return None
        others = [plain(other.tensors[name]) for other in moved if other is not None and name in other.tensors]
        return values.double(), max((_distance(values, other) for other in others), default=0.0)

    @cached_property
    def _runs(self) -> list[Outcome | None]:
        calls = [widened(self._call, moved_by=step) for step in (0.0, 1.0, -1.0, 0.5)]
        found = [in_eager([call]) for call in calls]
        for seed in range(ROUNDED):
            with Rounding(DTYPES[self._call.cell.dtype], seed):
                found.append(in_eager([calls[0]]))
        return [None if isinstance(outcome, Exception) else outcome[0] for outcome in found]


def _distance(values: torch.Tensor, moved: torch.Tensor) -> float:
    if values.shape != moved.shape or not values.numel():
        return 0.0
    apart = torch.nan_to_num((values.double() - moved.double()).abs(), nan=0.0, posinf=0.0).max()
    scale = torch.nan_to_num(values.double().abs(), nan=0.0, posinf=0.0).max()
    return float(apart) if apart <= SMOOTH * scale else 0.0


def difference(call: Call, got: Outcome, wanted: Outcome) -> str:
    """Return what is not as wanted, "" if all is. Values count if the call promises any."""
    if got.structure != wanted.structure:
        return f"result is a {got.structure}, {wanted.structure} expected"
    for at, (mine, eager) in enumerate(zip(got.results, wanted.results, strict=True)):
        if problem := _form(mine, eager):
            return f"result {at}: {problem}"
    if got.shared != wanted.shared:
        return f"results share memory with {got.shared}, {wanted.shared} expected"
    if problem := _gradient_forms(got, wanted):
        return problem
    return _values(call, got, wanted) if call.has_values else ""


def _form(got: Any, wanted: Any) -> str:
    if not isinstance(wanted, torch.Tensor):
        is_same = type(got) is type(wanted) and (got == wanted or (got != got and wanted != wanted))
        return "" if is_same else f"{got!r}, {wanted!r} expected"
    if not isinstance(got, torch.Tensor):
        return f"{type_of(got)}, a tensor expected"
    for what in ("layout", "dtype", "shape", "device", "requires_grad"):
        if getattr(got, what) != getattr(wanted, what):
            return f"{what} {getattr(got, what)}, {getattr(wanted, what)} expected"
    if wanted.layout is torch.strided and wanted.numel():
        mine, eager = _strides(got), _strides(wanted)
        return "" if mine == eager else f"strides {mine}, {eager} expected"
    return ""


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that matter: a dim of one element is never stepped along."""
    return tuple(step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _gradient_forms(got: Outcome, wanted: Outcome) -> str:
    if len(got.gradients) != len(wanted.gradients):
        return f"{len(got.gradients)} gradients, {len(wanted.gradients)} expected"
    for at, (mine, eager) in enumerate(zip(got.gradients, wanted.gradients, strict=True)):
        if mine is None or eager is None:
            # Where nothing flows into an input, eager may say None and a compiled graph zeros: an optimizer steps alike.
            if any(value is not None and bool(value.count_nonzero()) for value in (mine, eager)):
                return f"gradient {at}: {'none' if mine is None else 'one'}, {'none' if eager is None else 'one'} expected"
        elif (mine.shape, mine.dtype, mine.layout) != (eager.shape, eager.dtype, eager.layout):
            return f"gradient {at}: {mine.dtype} {list(mine.shape)}, {eager.dtype} {list(eager.shape)} expected"
    return ""


def _values(call: Call, got: Outcome, wanted: Outcome) -> str:
    references = References(call)
    for name, eager in wanted.tensors.items():
        mine = got.tensors.get(name)
        if mine is None or is_same(mine, eager):
            continue  # a gradient of zeros on one side
        if problem := _too_far(plain(mine), plain(eager), references.of(name, eager)):
            return f"{name}: {problem}"
    return ""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a dense one of real numbers."""
    tensor = tensor.detach()
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    dense = dense.resolve_conj().resolve_neg()
    return torch.view_as_real(dense) if dense.is_complex() else dense


def is_same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return True if two tensors are equal, NaN equal to NaN."""
    mine, eager = plain(got), plain(wanted)
    if mine.shape != eager.shape:
        return False
    return torch.equal(mine, eager) or bool(((mine == eager) | ((mine != mine) & (eager != eager))).all())


def _too_far(got: torch.Tensor, wanted: torch.Tensor, reference: tuple[torch.Tensor, float] | None) -> str:
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)}, {list(wanted.shape)} expected"
    if not wanted.is_floating_point():
        return _message(got, wanted, (got != wanted).double())
    exact, noise = (wanted.double(), 0.0) if reference is None else reference
    mine, eager = got.double(), wanted.double()
    finite = eager.isfinite() & exact.isfinite()
    agree = (mine == eager) | (mine.isnan() & eager.isnan())
    if bool((~finite & ~agree).any()) or bool((finite & ~mine.isfinite()).any()):
        return f"NaN or infinity: {_message(got, wanted, ((~finite & ~agree) | (finite & ~mine.isfinite())).double())}"
    zero = torch.zeros((), dtype=torch.float64)
    own = float(torch.where(finite, (eager - exact).abs(), zero).max())
    scale = float(torch.where(finite, exact.abs(), zero).max())
    kind = torch.finfo(wanted.dtype)
    allowed = EAGER_FACTOR * own + ULPS * kind.eps * scale + noise + kind.tiny
    excess = torch.where(finite, (mine - exact).abs() - allowed, zero)
    return _message(got, wanted, excess.clamp(min=0.0)) if bool((excess > 0).any()) else ""


def _message(got: torch.Tensor, wanted: torch.Tensor, badness: torch.Tensor) -> str:
    index = tuple(int(at) for at in torch.unravel_index(badness.argmax(), badness.shape))
    count = int((badness > 0).sum())
    return f"{count} of {badness.numel()} wrong; at {list(index)} {got[index].item()!r}, {wanted[index].item()!r} expected"
