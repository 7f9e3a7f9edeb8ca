"""Compares an executable with eager before it is trusted: on real inputs, and on generated ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hub.errors import AccuracyError, InputRefused, RunError
from hub.plugin.graph import Cluster
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
from hub.verification.inputs import KINDS, Kind, generated
from hub.verification.reference import Reference
from hub.verification.sizes import is_announced

Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Verified:
    """What is known of an executable that can be trusted."""

    outputs: tuple[torch.Tensor, ...]
    """Those of the first trusted call, on the real inputs."""
    error: float
    """Largest max|error| / max|reference| over floating outputs, on the real inputs."""
    strides: tuple[tuple[int, ...], ...]
    """Those of eager's outputs on the real inputs, in elements."""
    is_finite_only: bool = False
    """True where infinities, NaN or integers beyond 2^20 give other results than eager, or may: `finite_only` guards it."""
    kinds: tuple[str, ...] = ()
    """Kinds of generated inputs that were tried and agreed."""
    notes: tuple[str, ...] = ()
    """What could not be tried, and why; what made `is_finite_only` true."""
    untried: tuple[str, ...] = ()
    """Kinds for which no time was left."""
    differs: bool = False
    """True where something differs on unusual inputs: that makes `is_finite_only` true for good."""
    reference: Reference | None = field(default=None, repr=False)
    """What eager gives on the real inputs, where it was run."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What the next process knows its own executable again by."""
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
    """Run an executable once, on real inputs, and compare it with eager: with the `reference`, where one is there.

    Without an `accuracy` budget (largest allowed max|error| / max|reference|), floating outputs must be as close to a
    float64 run of the cluster as `Tolerance` says. Integers and booleans must be equal. Raises ContractError for a wrong
    number of outputs, shape, dtype or device, for inputs written to and for outputs that alias inputs, weights or each
    other; AccuracyError for wrong numbers. Whatever the executable itself raises passes through.
    """
    trial = Trial(Judge.of(cluster, backend, accuracy), executable, tuple(inputs), reference)
    return Verified(trial.outputs, trial.error, trial.reference.strides, reference=trial.reference)


def recognized(
    cluster: Cluster, backend: str, executable: Function, inputs: Sequence[Any], fingerprint: Fingerprint
) -> Verified | None:
    """Run an executable once, on inputs on which another process has verified the same one; None where bits differ.

    A difference is no fault yet: `verify` says. Raises ContractError for inputs written to and for memory shared with
    inputs or weights; whatever the executable itself raises passes through.
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
    """Verify on real inputs, twice, then on generated ones in order of importance, while `budget_s` seconds last.

    With `saturates` (see `BackendInfo`) other numbers than eager's on generated inputs are told, and end or guard nothing.
    Usual values, and other sizes where there are symbolic ones, are tried in any case. Eager runs first on each; kinds on
    which it raises are left out. Raises as `verify` does, for any call. Differences and errors on inputs that hold
    infinities or NaN end nothing, but are told.
    """
    trial = Trial(Judge.of(cluster, backend, accuracy), executable, tuple(inputs), saturates=saturates)
    trial.run_again("the real inputs, second call")
    trial.run_generated(KINDS, time.perf_counter() + budget_s)
    check_untouched(trial.judge, trial.outputs, trial.copies)
    return trial.verified


@dataclass(slots=True)
class Trial:
    """An executable while it is tried; makes the first call at once."""

    judge: Judge
    executable: Function
    inputs: tuple[Any, ...]
    known: Reference | None = None
    saturates: bool = False
    reference: Reference = field(init=False)
    outputs: tuple[torch.Tensor, ...] = field(init=False)
    copies: tuple[torch.Tensor, ...] = field(init=False)
    """Of the first outputs, to see whether later calls write to them."""
    error: float = field(init=False)
    agreed: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    impossible: list[str] = field(default_factory=list[str])
    untried: list[str] = field(default_factory=list[str])
    differences: list[str] = field(default_factory=list[str])
    cut_off: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        # The executable first: eager must not be what makes it work, say by loading a library that it lacks.
        snapshot = Snapshot(self.inputs)
        self.outputs = tuple(self.executable(*self.inputs))
        check_inputs(self.judge, snapshot)
        self.reference = self.known or Reference(self.judge.cluster, self.inputs)
        check_form(self.judge, self.outputs, self.reference.outputs, self.inputs)
        self.error = real_error(self.judge, self.outputs, self.reference, "the real inputs")

    def run_again(self, where: str) -> None:
        """Call the executable on the real inputs once more. Raises as `verify` does."""
        self.copies = tuple(output.clone() for output in self.outputs)
        outputs = self._called(self.inputs, self.reference)
        check_apart(self.judge, self.outputs, outputs)
        check_untouched(self.judge, self.outputs, self.copies)
        real_error(self.judge, outputs, self.reference, where)

    def run_generated(self, kinds: Sequence[Kind], deadline: float) -> None:
        """Try kinds of generated inputs in order until the deadline (of `time.perf_counter`); certain ones always."""
        longest_s = 0.0
        is_over = False
        for kind in kinds:
            start = time.perf_counter()
            is_over = is_over or start + longest_s > deadline
            if is_over and not kind.is_certain:
                self.untried.append(kind.name)
                continue
            self._try(kind)
            longest_s = max(longest_s, time.perf_counter() - start)

    def reference_of(self, kind: Kind) -> Reference | None:
        """Return what eager gives on a kind of generated inputs; None where it raises, or where there are none."""
        reference, is_anything = None, False
        for inputs in generated(kind, self.judge.cluster, self.inputs):
            is_anything = True
            found = self._reference(inputs)
            reference = reference or found
            if found is not None and (found.is_finite or kind.unusual):
                return found
        if reference is None:
            self.impossible += [kind.name] if is_anything else []
        return reference  # division by a zero that no real call has says little of the rest

    def compare(self, kind: Kind, reference: Reference) -> None:
        """Run the executable on a kind of generated inputs. Raises as `verify` does."""
        outputs = self._called(reference.inputs, reference)
        where, beside = f"generated inputs ({kind.name})", self.outputs if kind.has_tiny else None
        check_values(self.judge, outputs, reference, where, tiny_beside=beside)

    def _try(self, kind: Kind) -> None:
        if (reference := self.reference_of(kind)) is None:
            return
        try:
            self.compare(kind, reference)
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
            if not kind.unusual:
                raise
            self.differences.append(f"raises on generated inputs ({kind.name}), where eager does not: {error.message}")
        else:
            self.agreed.append(kind.name)

    def _reference(self, inputs: tuple[Any, ...]) -> Reference | None:
        """Return eager's outputs, or None where it raises, or where sizes are not as captured: nobody makes such calls."""
        cluster = self.judge.cluster
        try:
            reference = Reference(cluster, inputs)
        except Exception:  # noqa: BLE001 - operators may refuse generated values in any way
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
        """What was found out."""
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


def _listed(what: str, names: Iterable[str]) -> tuple[str, ...]:
    text = ", ".join(names)
    return (f"{what}: {text}",) if text else ()
