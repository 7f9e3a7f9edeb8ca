"""The output check: compares an executable with eager before it is trusted, on real and on generated inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hub.errors import AccuracyError, InputRefused, RunError
from hub.plugin.graph import Cluster
from hub.process.heap import is_lack_of_memory
from hub.verification.compare import (
    Judge,
    Snapshot,
    check_apart,
    check_form,
    check_inputs,
    check_memory,
    check_untouched,
    check_values,
    real_error,
    shared,
)
from hub.verification.fingerprint import Fingerprint, digest_of_outputs
from hub.verification.finite import is_finite, is_usual
from hub.verification.inputs import KINDS, WIDE_INTEGERS, Kind, generated
from hub.verification.reference import Reference
from hub.verification.sizes import is_announced

Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of the output check for an executable that can be trusted."""

    outputs: tuple[torch.Tensor, ...]
    """Outputs of the first trusted call, on the real inputs."""
    error: float
    """Largest max|error| / max|reference| over floating outputs, on the real inputs."""
    strides: tuple[tuple[int, ...], ...]
    """Strides of eager's outputs on the real inputs, in elements."""
    is_finite_only: bool = False
    """True if infinities, NaN or integers beyond 2^20 give or may give results unlike eager's: `finite_only` guards it."""
    kinds: tuple[str, ...] = ()
    """Kinds of generated inputs that were tried and agreed."""
    notes: tuple[str, ...] = ()
    """What could not be tried, with the reason, and what made `is_finite_only` true."""
    untried: tuple[str, ...] = ()
    """Kinds that were not tried for lack of time."""
    differs: bool = False
    """True if results differ on unusual inputs, which makes `is_finite_only` true permanently."""
    reference: Reference | None = field(default=None, repr=False)
    """Eager's outputs on the real inputs, if eager was run."""

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint by which the next process recognizes its own executable."""
        return Fingerprint(digest_of_outputs(self.outputs), self.error, self.strides)


def verify(
    cluster: Cluster,
    backend: str,
    executable: Function,
    inputs: Sequence[Any],
    accuracy: float | None,
    *,
    reference: Reference | None = None,
) -> Verified:
    """Run an executable once, on real inputs, and compare it with eager, or with the `reference` if one is given.

    Without an `accuracy` budget (largest allowed max|error| / max|reference|), floating outputs must be as close to a
    float64 run of the cluster as `Tolerance` requires. Integers and booleans must be equal. Raises ContractError for a
    wrong number of outputs, shape, dtype or device, for inputs that are written to, and for outputs that alias inputs,
    weights or each other. Raises AccuracyError for wrong numbers. Exceptions of the executable itself pass through.
    """
    trial = Trial(Judge.of(cluster, backend, accuracy), executable, tuple(inputs), reference)
    return Verified(trial.outputs, trial.error, trial.reference.strides, reference=trial.reference)


def recognized(
    cluster: Cluster, backend: str, executable: Function, inputs: Sequence[Any], fingerprint: Fingerprint
) -> Verified | None:
    """Run an executable once, on inputs on which another process verified the same one; return None if any bit differs.

    A difference is not yet an error: `verify` decides. Raises ContractError for inputs that are written to and for memory
    shared with inputs or weights. Exceptions of the executable itself pass through.
    """
    judge = Judge.of(cluster, backend, None)
    snapshot = Snapshot(tuple(inputs))
    outputs = tuple(executable(*inputs))
    check_inputs(judge, snapshot)
    if not all(isinstance(output, torch.Tensor) and output.layout is torch.strided for output in outputs):
        return None
    if any(shared(outputs)) or digest_of_outputs(outputs) != fingerprint.digest:
        return None
    check_memory(judge, outputs, outputs, inputs)
    return Verified(outputs, fingerprint.error, fingerprint.strides)


def verify_thoroughly(
    cluster: Cluster,
    backend: str,
    executable: Function,
    inputs: Sequence[Any],
    accuracy: float | None,
    *,
    budget_s: float,
    saturates: bool = False,
) -> Verified:
    """Verify on real inputs, twice, then on generated ones in order of importance, for up to `budget_s` seconds.

    With `saturates` (see `BackendInfo`), differences from eager on generated inputs are reported, but neither fail the
    executable nor guard it. Usual values, and other sizes if there are symbolic ones, are always tried. Eager runs first on
    each kind; kinds on which it raises are skipped. Raises as `verify` does, for any call. Differences and errors on inputs
    that hold infinities, NaN or extreme integers are reported, but do not fail the executable; on real inputs only if it is
    right on generated usual ones.
    """
    trial = Trial(Judge.of(cluster, backend, accuracy), executable, tuple(inputs), saturates=saturates, may_guard=True)
    trial.run_again("the real inputs, second call")
    trial.run_generated(KINDS, time.perf_counter() + budget_s)
    check_untouched(trial.judge, trial.outputs, trial.copies)
    if trial.excused is not None and not any(kind.name in trial.agreed for kind in KINDS if not kind.unusual):
        raise trial.excused
    return trial.verified


@dataclass(slots=True)
class Trial:
    """An executable under test; the constructor makes the first call."""

    judge: Judge
    executable: Function
    inputs: tuple[Any, ...]
    known: Reference | None = None
    saturates: bool = False
    may_guard: bool = False
    """True if the executable may differ on unusual real inputs, because a guard will keep them from it."""
    reference: Reference = field(init=False)
    outputs: tuple[torch.Tensor, ...] = field(init=False)
    copies: tuple[torch.Tensor, ...] = field(init=False)
    """Copies of the first outputs, to detect later calls that write to them."""
    error: float = field(init=False)
    excused: AccuracyError | None = None
    """The difference on the real inputs, if they are unusual."""
    agreed: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    impossible: list[str] = field(default_factory=list[str])
    untried: list[str] = field(default_factory=list[str])
    differences: list[str] = field(default_factory=list[str])
    cut_off: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        # The executable runs first, so that eager cannot be what makes it work, for example by loading a missing library.
        snapshot = Snapshot(self.inputs)
        self.outputs = tuple(self.executable(*self.inputs))
        check_inputs(self.judge, snapshot)
        self.reference = self.known or Reference(self.judge.cluster, self.inputs)
        check_form(self.judge, self.outputs, self.reference.outputs, self.inputs)
        try:
            self.error = real_error(self.judge, self.outputs, self.reference, "the real inputs")
        except AccuracyError as error:
            if not self.may_guard or self.saturates or all(map(_is_usual, self.inputs)):
                raise
            self.error, self.excused = 0.0, error
            self.differences.append(error.message)

    def run_again(self, where: str) -> None:
        """Call the executable on the real inputs once more. Raises as `verify` does."""
        self.copies = tuple(output.clone() for output in self.outputs)
        outputs = self._called(self.inputs, self.reference)
        check_apart(self.judge, self.outputs, outputs)
        check_untouched(self.judge, self.outputs, self.copies)
        self.check_real(outputs, where)

    def check_real(self, outputs: Sequence[torch.Tensor], where: str) -> None:
        """Raise AccuracyError if another call's outputs on the real inputs are wrong; a guard may keep these away."""
        if self.excused is None:
            real_error(self.judge, outputs, self.reference, where)

    def run_generated(self, kinds: Sequence[Kind], deadline: float) -> None:
        """Try kinds of generated inputs in order until the deadline (of `time.perf_counter`); certain kinds always."""
        longest_s = 0.0
        is_over = False
        for kind in kinds:
            start = time.perf_counter()
            is_over = is_over or start + longest_s > deadline
            if is_over and not kind.is_certain:
                self.untried.append(kind.name)
                continue
            if (reference := self.reference_of(kind)) is not None:
                self.compare(kind, reference)
            longest_s = max(longest_s, time.perf_counter() - start)

    def reference_of(self, kind: Kind) -> Reference | None:
        """Return eager's outputs on a kind of generated inputs; None if eager raises, or if there are no such inputs."""
        reference, is_anything = None, False
        for inputs in generated(kind, self.judge.cluster, self.inputs):
            is_anything = True
            found = self._reference(inputs)
            reference = reference or found
            if found is not None and (found.is_finite or kind.unusual):
                return found
        if reference is None:
            self.impossible += [kind.name] if is_anything else []
        return reference  # division by a zero that no real call has says little about the rest

    def compare(self, kind: Kind, reference: Reference) -> None:
        """Run the executable on a kind of generated inputs, and note the outcome. Raises as `verify` does."""
        where, usual = f"generated inputs ({kind.name})", self.outputs if kind.has_tiny else None
        try:
            check_values(self.judge, self._called(reference.inputs, reference), reference, where, usual_outputs=usual)
        except InputRefused:
            self.refused.append(kind.name)
        except AccuracyError as error:
            if self.saturates:
                self.cut_off.append(kind.name)
            elif kind.unusual:
                self.differences.append(error.message)
            else:
                raise
        except RunError as error:
            if not kind.unusual or is_lack_of_memory(error.__cause__):
                raise
            self.differences.append(f"raises on generated inputs ({kind.name}), where eager does not: {error.message}")
        else:
            self.agreed.append(kind.name)

    def _reference(self, inputs: tuple[Any, ...]) -> Reference | None:
        """Return eager's outputs; None if eager raises, or if sizes differ from the captured ones, as in no real call."""
        cluster = self.judge.cluster
        try:
            reference = Reference(cluster, inputs)
        except Exception:  # noqa: BLE001 - operators may reject generated values in any way
            return None
        return reference if is_announced(cluster.inputs, inputs, cluster.outputs, reference.outputs) else None

    def _called(self, inputs: tuple[Any, ...], reference: Reference) -> tuple[torch.Tensor, ...]:
        snapshot = Snapshot(inputs)
        outputs = tuple(self.executable(*inputs))
        check_inputs(self.judge, snapshot)
        check_form(self.judge, outputs, reference.outputs, inputs)
        return outputs

    @property
    def verified(self) -> Verified:
        """The results of the output check so far."""
        dtypes = {value.dtype for value in self.inputs if isinstance(value, torch.Tensor)}
        is_unknown = not self.saturates and any(kind.name in self.untried and dtypes & {*kind.unusual} for kind in KINDS)
        notes = (
            *(f"differs from eager and is guarded: {text}" for text in self.differences),
            *_listed("differs from eager where values are cut off, which its settings accept", self.cut_off),
            *_listed("eager raises on", self.impossible),
            *_listed("the executable refuses", self.refused),
        )
        return Verified(
            self.outputs,
            self.error,
            self.reference.strides,
            bool(self.differences) or is_unknown,
            kinds=tuple(self.agreed),
            notes=notes,
            untried=tuple(self.untried),
            differs=bool(self.differences),
            reference=self.reference,
        )


def _is_usual(value: Any) -> bool:
    """Return whether a guard would let a value through."""
    if not isinstance(value, torch.Tensor):
        return True
    if value.is_floating_point() or value.is_complex():
        return is_finite(value)
    return value.dtype not in WIDE_INTEGERS or is_usual(value)


def _listed(what: str, names: Iterable[str]) -> tuple[str, ...]:
    text = ", ".join(names)
    return (f"{what}: {text}",) if text else ()
