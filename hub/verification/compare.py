"""Compares what an executable gave with what eager gives: form, memory, inputs and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from hub.errors import AccuracyError, ContractError
from hub.plugin.canonical import as_bytes
from hub.plugin.graph import Cluster
from hub.plugin.table import dtype_name
from hub.verification.parts import parts_of
from hub.verification.reference import MANY_NUDGES, Outputs, Reference
from hub.verification.tolerance import EAGER_FACTOR, Tolerance

NOTHING = 1e-3
"""An exact output whose largest value is this part of eager's largest error is nothing but what float64 rounds."""
EVEN = 30.0
"""Roundings are this many times as large as usual ones at most, and what moves them by this part of them or more."""
_autograd: Any = cast("Any", torch)._C._autograd
_set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = _autograd._unsafe_set_version_counter
"""What `torch.autograd._unsafe_preserve_version_counter` calls when it ends."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Whose outputs are compared, and by which budget."""

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
    """Inputs as they are now: finds out later whether somebody wrote to them, and puts them right."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._inputs = tuple(inputs)
        self._kept = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        self._versions = [_version(value) for value in inputs]

    def written(self) -> tuple[int, ...]:
        """Return the positions of the inputs that were written to since."""
        facts = zip(self._inputs, self._kept, self._versions, strict=True)
        return tuple(
            position
            for position, (value, copy, version) in enumerate(facts)
            if isinstance(value, torch.Tensor) and (_version(value) != version or not is_same(value, copy))
        )

    def restore(self, positions: Iterable[int]) -> None:
        """Return these inputs their old values, and their old counts of writes: to whoever counts, nothing has happened."""
        with torch.no_grad():
            for position in positions:
                value, version = self._inputs[position], self._versions[position]
                value.copy_(self._kept[position])
                if version is not None:
                    # Autograd would refuse to go back through an input that it has kept, and executables be built anew.
                    _set_versions((value,), (version,))


def _version(value: Any) -> int | None:
    """Inference tensors keep no count of their writes."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def is_same(value: torch.Tensor, copy: torch.Tensor) -> bool:
    """Return whether two tensors of one form have equal bytes: NaN equals itself, and -0 is not 0."""
    return not value.numel() or torch.equal(_bytes(value), _bytes(copy))


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return as_bytes(value.detach().resolve_conj().resolve_neg())


def check_inputs(judge: Judge, snapshot: Snapshot) -> None:
    """Raise ContractError, with the inputs put right, where the executable wrote to one."""
    if written := snapshot.written():
        snapshot.restore(written)
        raise judge.broken(f"the executable wrote to its input {judge.cluster.input_names[written[0]]}")


# --- Form and memory --------------------------------------------------------------------------------------------------


def check_form(judge: Judge, outputs: Sequence[Any], expected: Outputs, inputs: Sequence[Any]) -> None:
    """Raise ContractError for a wrong number, type, shape, dtype or device, and for memory shared unlike in eager."""
    if len(outputs) != len(expected):
        raise judge.broken(f"{len(outputs)} outputs, {len(expected)} expected")
    names = judge.cluster.output_names
    for name, got, want in zip(names, outputs, expected, strict=True):
        if not isinstance(got, torch.Tensor):
            raise judge.broken(f"output {name} is a {type(got).__name__}, no tensor")
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
    """Raise ContractError for outputs that share memory with inputs or weights, or with each other unlike in eager."""
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
    """Raise ContractError where outputs of two calls, both still alive, share memory."""
    taken = _storages(earlier)
    for name, got in zip(judge.cluster.output_names, later, strict=True):
        if got.numel() and _storage(got) in taken:
            raise judge.broken(f"output {name} lies in memory that an earlier call gave away")


def check_untouched(judge: Judge, outputs: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]) -> None:
    """Raise ContractError where outputs of an earlier call are no longer what they were."""
    for name, got, copy in zip(judge.cluster.output_names, outputs, copies, strict=True):
        if not is_same(got, copy):
            raise judge.broken(f"a later call wrote to output {name} of an earlier one")


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _storages(values: Iterable[Any]) -> set[int]:
    return {_storage(value) for value in values if isinstance(value, torch.Tensor) and value.numel()}


def shared(outputs: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Return pairs of outputs that begin at one address. Apart from that, outputs may well lie in one block of memory."""
    first: dict[int, int] = {}
    for position, value in enumerate(outputs):
        if value.numel() and (other := first.setdefault(value.data_ptr(), position)) != position:
            yield other, position


# --- Numbers ----------------------------------------------------------------------------------------------------------


def real_error(judge: Judge, outputs: Sequence[torch.Tensor], reference: Reference, where: str) -> float:
    """Compare numbers on real inputs, strictly; return the largest max|error| / max|reference|.

    Differences as large as those that one rounding of the inputs makes are allowed, as long as half of the digits agree: a
    place or a branch chosen otherwise is another answer to whoever reads it, however little decided in eager.

    `where` says for messages which call it was. Raises AccuracyError.
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
    tiny_beside: Sequence[torch.Tensor] | None = None,
) -> float:
    """Compare numbers on any inputs; gives the largest max|error| / max|reference| of what counts. Raises AccuracyError.

    More is forgiven than on the sample: four times what eager itself has lost, and differences as large as those that one
    rounding of the inputs makes, jumps among them. For inputs that are tiny, `tiny_beside` are the outputs on real
    ones: what is a rounding beside those is allowed, and denormal inputs may be taken for zero. An infinity or NaN that no
    run of eager gives is never forgiven, but for infinities of the right sign where sums may overflow.
    """
    errors = [
        _Output(judge, reference, index, got, where, None if tiny_beside is None else tiny_beside[index]).forgiving_error()
        for index, got in enumerate(outputs)
        if got.numel()
    ]
    return max(errors, default=0.0)


@dataclass(frozen=True, slots=True)
class _Distance:
    """How far one output is from the exact one, element by element, in float64."""

    error: torch.Tensor
    """Infinite where one is finite and the other is not; 0 where there is nothing to compare."""
    allowed: torch.Tensor
    exact: torch.Tensor
    scale: torch.Tensor
    """Largest finite value among the elements of one order of magnitude."""
    is_lost: torch.Tensor
    """True where eager itself is further than half of its digits from the exact element, or where one is no number."""

    @property
    def wrong(self) -> torch.Tensor:
        return self.error > self.allowed

    @property
    def relative(self) -> float:
        """Largest error, of those that are not wrong, over the largest value."""
        largest, scale = float(self.error.masked_fill(self.wrong, 0.0).max()), float(self.scale.max())
        return largest / scale if scale else 0.0


class _Output:
    """One output of one call, beside eager's."""

    def __init__(
        self,
        judge: Judge,
        reference: Reference,
        index: int,
        got: torch.Tensor,
        where: str,
        tiny_beside: torch.Tensor | None = None,
    ) -> None:
        self.judge, self.reference, self.index, self.where, self.tiny_beside = judge, reference, index, where, tiny_beside
        self.got, self.want = parts_of(got), parts_of(reference.outputs[index])
        self.dtype = self.want.dtype

    def strict_error(self) -> float:
        """Return the error relative to the largest value. Raise AccuracyError where it is larger than allowed.

        What is as near to eager as an executable may be to the exact result beside an eager without error is near enough to
        the exact one, however large eager's own error: float64 is computed for the others alone.
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
        if bool(distance.is_lost.any()):  # float64 has decided otherwise, say, and is another answer there
            eagers = torch.where(distance.is_lost, self.want.double(), distance.exact)
            distance = self._distance(eagers, is_reference=is_reference)
        wrong = distance.wrong
        if bool(wrong.any()):  # sums of values much larger than what is left of them cannot be more exact than their inputs
            noise = (self.judge.tolerance.roundings * self._noise(0.0)).clamp(max=self._half * distance.scale)
            wrong &= distance.error > distance.allowed + noise
        return self._judged(distance, wrong)

    def _budget_of_nothing(self, exact: torch.Tensor) -> float | None:
        """Return what is allowed where the exact output is nothing, and eager's is roundings alone; None where it is more.

        Sums that cancel give such outputs: the gradient of a bias before a normalization. No program gives eager's
        roundings. They are in all elements, about as large in each, and others where the inputs move by a rounding;
        where one of two branches was taken, some elements are something.
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
        """As `strict_error`, and forgive what `check_values` says."""
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
        if bool(wrong.any()) and self.tiny_beside is not None:
            wrong &= (distance.error > self._usual_rounding(self.tiny_beside)) & self._is_unlike_flushed(distance)
        return self._judged(distance, wrong)

    def _judged(self, distance: _Distance, wrong: torch.Tensor) -> float:
        """Return the error relative to the largest value. Raises AccuracyError where any element is wrong after all."""
        if not bool(wrong.any()):
            wrong = self._is_out_of_nowhere(distance)
        if bool(wrong.any()):
            raise self._failure(distance, wrong)
        return distance.relative

    def _near_error(self) -> float | None:
        """Return the error relative to the largest value where all of it is allowed even if eager were exact; else None."""
        if (error := self._plain_error()) is not None:
            return error
        near = self._distance(self.want.double(), is_reference=True)
        return None if bool(near.wrong.any()) else near.relative

    def _plain_error(self) -> float | None:
        """As `_near_error`, for finite values of one order, without copies in float64: a logits tensor has millions."""
        eps = torch.finfo(self.dtype).eps
        difference = self.got - self.want if eps <= torch.finfo(torch.float32).eps else self.got.float() - self.want.float()
        error, scale = float(difference.abs().max()), float(self.want.abs().max())
        if not scale <= 1 / eps or not error * (1 + eps) <= self._budget(scale, 0.0, has_reference=True):
            return None  # NaN is not within anything
        return error / scale if scale else 0.0

    @property
    def _can_be_wider(self) -> bool:
        return self.dtype is not torch.float64

    def _wide(self) -> torch.Tensor | None:
        """The output in float64, or None where there is no such run."""
        wide = None if self.reference.wide is None else parts_of(self.reference.wide[self.index]).double()
        return wide if wide is not None and wide.shape == self.want.shape else None

    def _distance(self, exact: torch.Tensor, *, is_reference: bool) -> _Distance:
        """`is_reference` says that `exact` is more exact than eager, or is taken to be."""
        got, want = self.got.double(), self.want.double()
        limit = torch.finfo(self.dtype).max
        is_number = want.isfinite()
        exact = torch.where(is_number & ~(exact.abs() <= limit), want, exact)  # no number of this dtype, but eager has one
        nothing = torch.zeros((), dtype=torch.float64, device=want.device)
        error = torch.where(is_number, _with_infinities((got - exact).abs()), nothing)
        # Infinite or NaN in eager and in float64 means that it belongs there. In eager alone it means overflow on the way:
        # then it is one of these for others too, or the number that it should be.
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
            for some in (members & is_far, members & ~is_far):  # what has lost its digits excuses nothing else
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
        """Half of the digits that the output can have, as a part of the number."""
        return self.judge.tolerance.half_of_digits(self.dtype)

    def _overflows(self, distance: _Distance) -> torch.Tensor:
        """Return True for infinities of the right sign, so near the largest number that parts of a sum may be too large."""
        is_near = self.want.isfinite() & (distance.exact.abs() > torch.finfo(self.dtype).max / 4)
        return is_near & (self.got.double() == distance.exact.sign() * torch.inf)

    def _is_out_of_nowhere(self, distance: _Distance) -> torch.Tensor:
        """Return True for infinities and NaN where no run of eager has any: lost digits do not excuse them.

        Where parts of a sum may be too large, an infinity of the right sign may be right.
        """
        got = self.got.double()
        found = distance.error.isinf() & self.want.isfinite() & ~got.isfinite() & ~self._overflows(distance)
        if bool(found.any()):
            for outputs in self.reference.nudges(self._step, MANY_NUDGES):
                moved = parts_of(outputs[self.index]).double()
                found &= ~(moved.isnan() | (moved.isinf() & got.isinf()))
        if bool(found.any()) and self.tiny_beside is not None:
            found &= self._is_unlike_flushed(distance)
        return found

    @property
    def _step(self) -> float:
        return self.judge.accuracy or 0.0

    @property
    def _moves(self) -> float:
        """How many times what moving the inputs changes in eager; roundings are many, a granted error is one."""
        return self.judge.tolerance.roundings if self.judge.accuracy is None else 1.0

    def _noise(self, step: float) -> torch.Tensor:
        """Return how far eager moves where the inputs move by this part of themselves, or by one rounding at least.

        No element is said to move less than half of them do: in a few tries one may stand still by chance.
        """
        noise = torch.zeros(self.want.shape, dtype=torch.float64, device=self.want.device)
        for outputs in self.reference.nudged(step):
            moved, want = parts_of(outputs[self.index]).double(), self.want.double()
            distance = torch.where(_is_equal(moved, want), torch.zeros_like(noise), (moved - want).abs())
            noise = torch.maximum(noise, _with_infinities(distance))
        finite = noise[noise.isfinite()]
        return noise.clamp(min=float(finite.median())) if finite.numel() else noise

    def _usual_rounding(self, usual: torch.Tensor) -> float:
        """What is a rounding beside usual values: exp(x) - 1 loses all digits of tiny ones, and nobody sees it there."""
        values = parts_of(usual).double().abs()
        scale = float(values[values.isfinite()].max()) if bool(values.isfinite().any()) else 0.0
        return self._budget(scale, 0.0, has_reference=True)

    def _is_unlike_flushed(self, distance: _Distance) -> torch.Tensor:
        """Return True for elements that are not eager's on flushed inputs either."""
        is_unlike = torch.ones_like(distance.wrong)
        for outputs in self.reference.flushed:
            got, want = self.got.double(), parts_of(outputs[self.index]).double()
            is_unlike &= ~(_is_equal(got, want) | ((got - want).abs() <= distance.allowed))
        return is_unlike

    def _unequal_if_flushed(self, unequal: torch.Tensor) -> torch.Tensor:
        """Leave out integers that are eager's on flushed inputs, where these are tiny: x > 0 is false if x counts as 0."""
        if self.tiny_beside is not None and bool(unequal.any()):
            for outputs in self.reference.flushed:
                unequal = unequal & (self.got != outputs[self.index])
        return unequal

    def _firmly_unequal(self) -> torch.Tensor:
        """Return True for integers that differ from eager's, where eager's own do not depend on roundings."""
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
            raise self._error(text)

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
        return self._error(f"{self._text(place, distance.exact)}; error {error:.3g}{ulps}, allowed {allowed:.3g}")

    def _text(self, place: tuple[int, ...], expected: torch.Tensor) -> str:
        output = self.judge.cluster.output_names[self.index]
        return (
            f"output {output} ({dtype_name(self.dtype)}) at {list(place)}: expected {_written(expected[place])}, "
            f"got {_written(self.got[place])}"
        )

    def _error(self, text: str) -> AccuracyError:
        return AccuracyError(
            f"{text}; on {self.where}",
            backend=self.judge.backend,
            cluster=self.judge.cluster.name,
            hint='grant an error budget with options={"accuracy": ...} if this is acceptable',
        )


def _with_infinities(distance: torch.Tensor) -> torch.Tensor:
    """Return infinity in place of NaN."""
    return distance.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _is_equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def _orders(magnitude: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Split elements where some are so large that beside them any error of the others would seem small: masks, mostly.

    A rounding of the largest one must not exceed the median of the others, else it is of another order.
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
