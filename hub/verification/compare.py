"""Compares an executable's outputs with eager's: form, memory, inputs and numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hub.errors import AccuracyError, ContractError, type_of
from hub.plugin.canonical import as_bytes
from hub.plugin.graph import Cluster
from hub.plugin.table import dtype_name
from hub.torch_private import set_version_counters
from hub.verification.copies import compact_copy, write_back
from hub.verification.parts import parts_of
from hub.verification.reference import MANY_NUDGES, Outputs, Reference
from hub.verification.tolerance import EAGER_FACTOR, Tolerance

NOTHING = 1e-2
"""Ratio to eager's largest error below which an exact output is nothing but roundings: those of float64, and those of
inputs that were rounded before, such as the statistics that a normalization saves for its backward."""
_N_SUSPECTED = 3
"""Calls after each of which a weight must have changed before the executable is blamed, and not another thread."""
EVEN = 30.0
"""Largest ratio of a rounding to the typical one, and of the typical one to its change when inputs are perturbed."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The backend whose outputs are compared, and the error budget."""

    cluster: Cluster
    backend: str
    tolerance: Tolerance
    accuracy: float | None
    """Largest allowed max|error| / max|reference|; None means as exact as eager."""

    @classmethod
    def of(cls, cluster: Cluster, backend: str, accuracy: float | None) -> Judge:
        """Return the judge of one backend's executables for a cluster."""
        return cls(cluster, backend, Tolerance.of(cluster), accuracy)

    def broken(self, text: str) -> ContractError:
        """Return the error for a broken contract."""
        return ContractError(text, backend=self.backend, cluster=self.cluster.name)


# --- Inputs -----------------------------------------------------------------------------------------------------------


class Snapshot:
    """Inputs in their current state: detects later whether they were written to, and restores them."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        """Copy the inputs, which `values` holds."""
        self.values = tuple(inputs)
        self._kept = [compact_copy(value) for value in inputs]
        self._versions = [_version(value) for value in inputs]

    def written(self) -> tuple[int, ...]:
        """Return the positions of the inputs that have been written to since."""
        facts = zip(self.values, self._kept, self._versions, strict=True)
        return tuple(
            position
            for position, (value, copy, version) in enumerate(facts)
            if isinstance(value, torch.Tensor) and (_version(value) != version or not is_same(value, copy))
        )

    def restore(self, positions: Iterable[int]) -> None:
        """Restore the old values and version counters of these inputs, so that the writes leave no trace."""
        with torch.no_grad():
            for position in positions:
                value, version = self.values[position], self._versions[position]
                write_back(value, self._kept[position])
                if version is not None:
                    # Otherwise autograd would refuse to go back through an input that it has saved, and executables would
                    # be rebuilt.
                    set_version_counters((value,), (version,))

    def written_by(self, executable: Callable[..., Any], n_inputs: int) -> tuple[int, ...]:
        """Return the positions of what has changed that this executable writes to, and not another thread.

        It runs on copies of the first `n_inputs`, to which no other thread can write. The rest are weights, which cannot be
        exchanged for copies: they get their old values for some calls, and one counts if each call changes it again.
        """
        changed = self.written()
        newest = {position: self.values[position].clone() for position in changed if position >= n_inputs}
        found = {*changed}
        for _ in range(_N_SUSPECTED if newest else 1):
            self.restore(newest)
            given = [compact_copy(value) for value in self._kept[:n_inputs]]
            copies = Snapshot(given)
            with contextlib.suppress(Exception):  # it may have written before it failed
                executable(*given)
            found &= {*copies.written(), *(position for position in self.written() if position in newest)}
        with torch.no_grad():
            for position in newest.keys() - found:
                write_back(self.values[position], newest[position])
        return tuple(sorted(found))


def _version(value: Any) -> int | None:
    """Return the version counter of a tensor. Inference tensors have none."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def is_same(value: torch.Tensor, copy: torch.Tensor) -> bool:
    """Return whether two tensors of one form have equal bytes: NaN equals itself, and -0 is not 0."""
    return not value.numel() or torch.equal(_bytes(value), _bytes(copy))


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return as_bytes(value.detach().resolve_conj().resolve_neg())


def check_inputs(judge: Judge, snapshot: Snapshot) -> None:
    """Restore the inputs and raise ContractError if the executable wrote to one."""
    if written := snapshot.written():
        snapshot.restore(written)
        raise judge.broken(f"the executable wrote to its input {judge.cluster.input_names[written[0]]}")


# --- Form and memory --------------------------------------------------------------------------------------------------


def check_form(judge: Judge, outputs: Sequence[Any], expected: Outputs, inputs: Sequence[Any]) -> None:
    """Raise ContractError for a wrong number, type, shape, dtype or device, and for memory sharing unlike eager's."""
    if len(outputs) != len(expected):
        raise judge.broken(f"{len(outputs)} outputs, {len(expected)} expected")
    names = judge.cluster.output_names
    for name, got, want in zip(names, outputs, expected, strict=True):
        if not isinstance(got, torch.Tensor):
            raise judge.broken(f"output {name} is {type_of(got)}, no tensor")
        for what, found, wanted in (
            ("shape", tuple(got.shape), tuple(want.shape)),
            ("dtype", got.dtype, want.dtype),
            ("device", got.device, want.device),
            ("layout", got.layout, want.layout),
        ):
            if found != wanted:
                raise judge.broken(f"output {name} has {what} {found}, {wanted} expected")
    check_memory(judge, outputs, expected, inputs)


def check_memory(judge: Judge, outputs: Sequence[torch.Tensor], expected: Outputs, inputs: Sequence[Any]) -> None:
    """Raise ContractError if outputs share memory with inputs or weights, or with each other where eager's do not."""
    given, weights = _storages(inputs), _storages(judge.cluster.constants.values())
    for name, got in zip(judge.cluster.output_names, outputs, strict=True):
        if got.numel() and _storage(got) in given:
            raise judge.broken(f"output {name} shares memory with an input")
        if got.numel() and _storage(got) in weights:
            raise judge.broken(f"output {name} shares memory with a weight")
    for first, second in shared(outputs):
        if _storage(expected[first]) != _storage(expected[second]):
            names = judge.cluster.output_names
            raise judge.broken(f"outputs {names[first]} and {names[second]} share memory")


def check_apart(judge: Judge, earlier: Sequence[torch.Tensor], later: Sequence[torch.Tensor]) -> None:
    """Raise ContractError if outputs of two calls, both still alive, share memory."""
    taken = _storages(earlier)
    for name, got in zip(judge.cluster.output_names, later, strict=True):
        if got.numel() and _storage(got) in taken:
            raise judge.broken(f"output {name} is in memory that an earlier call returned")


def check_untouched(judge: Judge, outputs: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]) -> None:
    """Raise ContractError if outputs of an earlier call have changed."""
    for name, got, copy in zip(judge.cluster.output_names, outputs, copies, strict=True):
        if not is_same(got, copy):
            raise judge.broken(f"a later call wrote to output {name} of an earlier one")


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _storages(values: Iterable[Any]) -> set[int]:
    return {_storage(value) for value in values if isinstance(value, torch.Tensor) and value.numel()}


def shared(outputs: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Yield pairs of outputs that begin at the same address. Otherwise, outputs may lie in one block of memory."""
    first: dict[int, int] = {}
    for position, value in enumerate(outputs):
        if value.numel() and (other := first.setdefault(value.data_ptr(), position)) != position:
            yield other, position


# --- Numbers ----------------------------------------------------------------------------------------------------------


def real_error(judge: Judge, outputs: Sequence[torch.Tensor], reference: Reference, where: str) -> float:
    """Compare numbers on real inputs, strictly; return the largest max|error| / max|reference|.

    Differences as large as those that one rounding of the inputs causes are allowed, as long as half of the digits agree.
    An index or a branch chosen differently is a different answer to its reader, however close the choice was in eager.

    `where` names the call in messages. Raises AccuracyError.
    """
    errors = [
        _Output(judge, reference, index, got, where).strict_error() for index, got in enumerate(outputs) if got.numel()
    ]
    return max(errors, default=0.0)


def check_values(
    judge: Judge,
    outputs: Sequence[torch.Tensor],
    reference: Reference,
    where: str,
    *,
    usual_outputs: Sequence[torch.Tensor] | None = None,
) -> float:
    """Compare numbers on any inputs; return the largest max|error| / max|reference| that counts. Raises AccuracyError.

    More is tolerated than on real inputs: four times eager's own error, and differences as large as those that one rounding
    of the inputs causes, jumps among them. For tiny inputs, `usual_outputs` are those on real inputs: an error that is
    a rounding relative to those is allowed, and denormal inputs may be taken for zero. An infinity or NaN that no run of
    eager gives is never tolerated, except for infinities of the right sign where sums may overflow.
    """
    errors = [
        _Output(
            judge, reference, index, got, where, None if usual_outputs is None else usual_outputs[index]
        ).forgiving_error()
        for index, got in enumerate(outputs)
        if got.numel()
    ]
    return max(errors, default=0.0)


@dataclass(frozen=True, slots=True)
class _Distance:
    """Distance of one output from the exact one, element by element, in float64."""

    error: torch.Tensor
    """Infinite if one is finite and the other is not; 0 if there is nothing to compare."""
    allowed: torch.Tensor
    exact: torch.Tensor
    scale: torch.Tensor
    """Largest finite value among the elements of one order of magnitude."""
    is_lost: torch.Tensor
    """True if eager itself loses more than half of the digits of the exact element, or if one of them is not a number."""

    @property
    def wrong(self) -> torch.Tensor:
        return self.error > self.allowed

    @property
    def relative(self) -> float:
        """Largest error among the elements that are not wrong, over the largest value."""
        largest, scale = float(self.error.masked_fill(self.wrong, 0.0).max()), float(self.scale.max())
        return largest / scale if scale else 0.0


class _Output:
    """One output of one call, together with eager's."""

    def __init__(
        self,
        judge: Judge,
        reference: Reference,
        index: int,
        got: torch.Tensor,
        where: str,
        usual_outputs: torch.Tensor | None = None,
    ) -> None:
        self.judge, self.reference, self.index, self.where = judge, reference, index, where
        self.usual_outputs = usual_outputs
        self.got, self.want = parts_of(got), parts_of(reference.outputs[index])
        self.dtype = self.want.dtype

    def strict_error(self) -> float:
        """Return the error relative to the largest value. Raise AccuracyError if it is larger than allowed.

        An output may differ from the exact result by a tolerance even if eager has no error. An output that close to eager
        is close enough to the exact result, whatever eager's own error, so float64 is computed only for the others.
        """
        if not self.want.is_floating_point():
            self._check_equal(self.got != self.want)
            return 0.0
        if (near := self._near_error()) is not None:
            return near
        wide = None if self.judge.accuracy is not None else self._wide()
        is_reference = wide is not None and self._can_be_wider
        distance = self._distance(self.want.double() if wide is None else wide, is_reference=is_reference)
        if (budget := self._budget_of_nothing(distance.exact)) is not None:
            return self._judged(distance, distance.error > budget)
        if bool(distance.is_lost.any()):  # float64 may take another branch, which is a different answer there
            eagers = torch.where(distance.is_lost, self.want.double(), distance.exact)
            distance = self._distance(eagers, is_reference=is_reference)
        wrong = distance.wrong
        if bool(wrong.any()):  # a sum whose terms largely cancel cannot be more exact than its inputs
            noise = (self.judge.tolerance.roundings * self._noise(0.0)).clamp(max=self._half * distance.scale)
            wrong &= distance.error > distance.allowed + noise
        return self._judged(distance, wrong)

    def _budget_of_nothing(self, exact: torch.Tensor) -> float | None:
        """Return the tolerance if the exact output is zero and eager's is only roundings; None if it is more than that.

        Sums that cancel give such outputs, such as the gradient of a bias before a normalization. No program reproduces
        eager's roundings. They are in all elements, about as large in each, and change if the inputs are perturbed by a
        rounding. If instead one of two branches was taken, only some elements differ from zero.
        """
        want = self.want.double()
        own = float((want - exact).abs().max())
        if not 0 < own < math.inf or not float(exact.abs().max()) <= NOTHING * own:
            return None
        usual = float(want.abs().median())
        moves = float(self._noise(0.0).median())
        is_noise = float(want.abs().max()) <= EVEN * usual <= EVEN * EVEN * moves
        return EAGER_FACTOR * own + self.judge.tolerance.slack(self.dtype) if is_noise else None

    def forgiving_error(self) -> float:
        """Return the error as `strict_error` does, with the tolerances of `check_values`."""
        if torch.equal(self.got, self.want):
            return 0.0
        if not self.want.is_floating_point():
            self._check_equal(self._unequal_if_flushed(self._firmly_unequal()))
            return 0.0
        if (near := self._near_error()) is not None:
            return near
        wide = self._wide()
        exact = self.want.double() if wide is None else wide
        distance = self._distance(exact, is_reference=wide is None or self._can_be_wider)
        is_judged_last = distance.is_lost & ~self.got.isfinite()
        wrong = distance.wrong & ~self._overflows(distance) & ~is_judged_last
        if bool(wrong.any()):
            wrong &= distance.error > distance.allowed + self._moves * self._noise(self._step)
        if bool(wrong.any()) and self.usual_outputs is not None:
            wrong &= (distance.error > self._usual_rounding(self.usual_outputs)) & self._is_unlike_flushed(distance)
        return self._judged(distance, wrong)

    def _judged(self, distance: _Distance, wrong: torch.Tensor) -> float:
        """Return the error relative to the largest value. Raises AccuracyError if any element is still wrong."""
        if not bool(wrong.any()):
            wrong = self._is_out_of_nowhere(distance)
        if bool(wrong.any()):
            raise self._failure(distance, wrong)
        return distance.relative

    def _near_error(self) -> float | None:
        """Return the error relative to the largest value if it is allowed even for an exact eager; else None."""
        if (error := self._plain_error()) is not None:
            return error
        near = self._distance(self.want.double(), is_reference=True)
        return None if bool(near.wrong.any()) else near.relative

    def _plain_error(self) -> float | None:
        """Return what `_near_error` does, for finite values of one order, without copies in float64: logits are large."""
        eps = torch.finfo(self.dtype).eps
        difference = self.got - self.want if eps <= torch.finfo(torch.float32).eps else self.got.float() - self.want.float()
        error, scale = float(difference.abs().max()), float(self.want.abs().max())
        if not scale <= 1 / eps or not error * (1 + eps) <= self._budget(scale, 0.0, has_reference=True):
            return None  # comparisons with NaN are false
        return error / scale if scale else 0.0

    @property
    def _can_be_wider(self) -> bool:
        return self.dtype is not torch.float64

    def _wide(self) -> torch.Tensor | None:
        """Return the output in float64, or None if there is no such run."""
        wide = None if self.reference.wide is None else parts_of(self.reference.wide[self.index]).double()
        return wide if wide is not None and wide.shape == self.want.shape else None

    def _distance(self, exact: torch.Tensor, *, is_reference: bool) -> _Distance:
        """Return the distance from `exact`; `is_reference` means that `exact` is, or counts as, more exact than eager."""
        got, want = self.got.double(), self.want.double()
        limit = torch.finfo(self.dtype).max
        is_number = want.isfinite()
        exact = torch.where(is_number & ~(exact.abs() <= limit), want, exact)  # no number of this dtype, but eager has one
        nothing = torch.zeros((), dtype=torch.float64, device=want.device)
        error = torch.where(is_number, _with_infinities((got - exact).abs()), nothing)
        # An infinity or NaN both in eager and in float64 is correct. In eager alone it means overflow in an intermediate
        # value: other programs may then give one as well, or the right number.
        is_right = _is_equal(got, want) | _is_equal(got, exact)
        is_right |= exact.isfinite() & (~got.isfinite() | ((got - exact).abs() <= self._half * exact.abs()))
        error = torch.where(is_number | is_right, error, torch.inf)
        magnitude = torch.where(is_number, exact.abs(), nothing)
        own = torch.where(is_number, (want - exact).abs(), nothing)
        scales, allowed = torch.zeros_like(error), torch.zeros_like(error)
        is_lost = ~is_number & ~_is_equal(want, exact)
        for members in _orders(magnitude, self.dtype):
            scale = float(magnitude[members].max())
            scales = torch.where(members, scale, scales)
            is_far = own > self._half * scale
            is_lost |= members & is_far
            for some in (members & is_far, members & ~is_far):  # elements that lost their digits do not excuse others
                if bool(some.any()):
                    budget = self._budget(scale, float(own[some].max()), has_reference=is_reference)
                    allowed = torch.where(some, budget, allowed)
        return _Distance(error, allowed, exact, scales, is_lost)

    def _budget(self, scale: float, eager_error: float, *, has_reference: bool) -> float:
        tolerance, accuracy = self.judge.tolerance, self.judge.accuracy
        if accuracy is not None:
            return accuracy * scale + tolerance.slack(self.dtype)
        return tolerance.allowed(self.dtype, scale, eager_error, has_reference=has_reference)

    @property
    def _half(self) -> float:
        """Half of the digits that the output can have, as a fraction of the value."""
        return self.judge.tolerance.half_of_digits(self.dtype)

    def _overflows(self, distance: _Distance) -> torch.Tensor:
        """Return True for infinities of the right sign so near the largest number that partial sums may overflow."""
        is_near = self.want.isfinite() & (distance.exact.abs() > torch.finfo(self.dtype).max / 4)
        return is_near & (self.got.double() == distance.exact.sign() * torch.inf)

    def _is_out_of_nowhere(self, distance: _Distance) -> torch.Tensor:
        """Return True for infinities and NaN that occur in no run of eager, which lost digits do not excuse.

        If partial sums may overflow, an infinity of the right sign may be right.
        """
        got = self.got.double()
        found = distance.error.isinf() & self.want.isfinite() & ~got.isfinite() & ~self._overflows(distance)
        if bool(found.any()):
            for outputs in self.reference.nudges(self._step, MANY_NUDGES):
                moved = parts_of(outputs[self.index]).double()
                found &= ~(moved.isnan() | (moved.isinf() & got.isinf()))
        if bool(found.any()) and self.usual_outputs is not None:
            found &= self._is_unlike_flushed(distance)
        return found

    @property
    def _step(self) -> float:
        return self.judge.accuracy or 0.0

    @property
    def _moves(self) -> float:
        """Allowed multiple of what perturbed inputs change in eager: many for roundings, 1 for a granted error."""
        return self.judge.tolerance.roundings if self.judge.accuracy is None else 1.0

    def _noise(self, step: float) -> torch.Tensor:
        """Return how far eager's outputs move if the inputs move by this fraction, or by at least one rounding.

        Each element counts as moving at least as far as the median, since one may stand still by chance in a few tries.
        """
        noise = torch.zeros(self.want.shape, dtype=torch.float64, device=self.want.device)
        for outputs in self.reference.nudged(step):
            moved, want = parts_of(outputs[self.index]).double(), self.want.double()
            distance = torch.where(_is_equal(moved, want), torch.zeros_like(noise), (moved - want).abs())
            noise = torch.maximum(noise, _with_infinities(distance))
        finite = noise[noise.isfinite()]
        return noise.clamp(min=float(finite.median())) if finite.numel() else noise

    def _usual_rounding(self, usual: torch.Tensor) -> float:
        """Return the rounding relative to usual values: exp(x) - 1 loses all digits of tiny x, which is harmless there."""
        values = parts_of(usual).double().abs()
        scale = float(values[values.isfinite()].max()) if bool(values.isfinite().any()) else 0.0
        return self._budget(scale, 0.0, has_reference=True)

    def _is_unlike_flushed(self, distance: _Distance) -> torch.Tensor:
        """Return True for elements that do not match eager's on flushed inputs either."""
        is_unlike = torch.ones_like(distance.wrong)
        for outputs in self.reference.flushed:
            got, want = self.got.double(), parts_of(outputs[self.index]).double()
            is_unlike &= ~(_is_equal(got, want) | ((got - want).abs() <= distance.allowed))
        return is_unlike

    def _unequal_if_flushed(self, unequal: torch.Tensor) -> torch.Tensor:
        """Leave out integers equal to eager's on flushed inputs, if these are tiny: x > 0 is false if x counts as 0."""
        if self.usual_outputs is not None and bool(unequal.any()):
            for outputs in self.reference.flushed:
                unequal = unequal & (self.got != outputs[self.index])
        return unequal

    def _firmly_unequal(self) -> torch.Tensor:
        """Return True for integers that differ from eager's, unless eager's own depend on roundings."""
        unequal = self.got != self.want
        if not bool(unequal.any()):
            return unequal
        others = [outputs[self.index] for outputs in self.reference.nudged(self._step)]
        wide = self.reference.wide
        if wide is not None and wide[self.index].shape == self.want.shape:
            others.append(wide[self.index])
        for other in others:
            unequal &= other == self.want
        return unequal

    def _check_equal(self, wrong: torch.Tensor) -> None:
        if bool(wrong.any()):
            place = _first(wrong)
            text = f"{self._text(place, self.want)}; {int(wrong.sum())} of {wrong.numel()} elements differ, none may"
            raise self._error(text, _NO_BUDGET)

    def _failure(self, distance: _Distance, wrong: torch.Tensor) -> AccuracyError:
        badness = torch.where(wrong, distance.error - distance.allowed, -1.0)
        place = _place(int(badness.reshape(-1).argmax()), badness)
        error, exact = float(distance.error[place]), float(distance.exact[place])
        kind = torch.finfo(self.dtype)
        sizes = [
            f"{_counted(error / (kind.eps * max(value, kind.tiny)))} ULP of the {name} value"
            for name, value in (("expected", abs(exact)), ("largest", float(distance.scale[place])))
        ]
        ulps = f" ({', '.join(sizes)})" if error < float("inf") else ""
        allowed = float(distance.allowed[place])
        text = f"{self._text(place, distance.exact)}; error {error:.3g}{ulps}, allowed {allowed:.3g}"
        return self._error(text, _BUDGET if error < float("inf") else _NO_BUDGET)

    def _text(self, place: tuple[int, ...], expected: torch.Tensor) -> str:
        output = self.judge.cluster.output_names[self.index]
        return (
            f"output {output} ({dtype_name(self.dtype)}) at {list(place)}: expected {_written(expected[place])}, "
            f"got {_written(self.got[place])}"
        )

    def _error(self, text: str, hint: str) -> AccuracyError:
        return AccuracyError(
            f"{text}; on {self.where}",
            backend=self.judge.backend,
            cluster=self.judge.cluster.name,
            hint=hint,
        )


_BUDGET = 'grant an error budget with options={"accuracy": ...} if this is acceptable'
_NO_BUDGET = 'no error budget covers this; without the backend (options={"exclude": ...}) it is not tried again'


def _with_infinities(distance: torch.Tensor) -> torch.Tensor:
    """Return the tensor with NaN replaced by infinity."""
    return distance.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _is_equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def _orders(magnitude: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Split elements by magnitude if some, mostly masks, are so large that errors of the others would seem small.

    If a rounding of the largest one exceeds the median of the others, it is of another order.
    """
    eps = torch.finfo(dtype).eps
    everything = torch.ones_like(magnitude, dtype=torch.bool)
    if float(magnitude.max()) <= 1 / eps:
        yield everything
        return
    is_giant = magnitude > magnitude[magnitude > 0].median() / eps
    yield from (members for members in (is_giant, ~is_giant) if bool(members.any()))


def _first(wrong: torch.Tensor) -> tuple[int, ...]:
    return _place(int(wrong.reshape(-1).to(torch.uint8).argmax()), wrong)


def _place(flat: int, values: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(flat, tuple(values.shape))))


def _counted(number: float) -> str:
    return f"{number:.0f}" if number < 1e9 else f"{number:.3g}"


def _written(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.9g}" if isinstance(number, float) else str(number)
