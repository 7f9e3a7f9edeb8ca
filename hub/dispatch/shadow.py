"""Shadow mode: runs a share of live calls in eager too, to detect a wrong executable while the model runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hub.errors import InputRefused
from hub.plugin.graph import Cluster
from hub.process.state import HERE, kept_state, told_changes
from hub.verification.compare import Judge, Snapshot, check_apart, check_form, check_values
from hub.verification.reference import Reference


@dataclass(frozen=True, slots=True)
class Drift:
    """Shadow mode's results for one cluster so far."""

    n_checked: int
    worst: float
    """Largest max|error| / max|reference| of a checked call."""

    def __str__(self) -> str:
        calls = f"{self.n_checked} call{'s' if self.n_checked != 1 else ''}"
        return f"shadow mode: {calls} checked in eager, largest error {self.worst:.2g} of the largest value"


ReportDrift = Callable[[str, str, Drift], None]
"""Callback with (backend, cluster, drift) after each checked call that was right."""


class Shadowed:
    """An executable with a share of its calls compared with eager. Thread-safe.

    The first call is always checked. The others are chosen at random, seeded by the cluster's name, so that a process that
    makes the same calls checks the same ones.
    """

    __slots__ = ("_chance", "_drift", "_earlier", "_judge", "_lock", "_report", "_share", "executable")

    def __init__(
        self,
        cluster: Cluster,
        backend: str,
        executable: Callable[..., Sequence[Any]],
        *,
        share: float,
        accuracy: float | None,
        report: ReportDrift | None,
    ) -> None:
        self._judge = Judge.of(cluster, backend, accuracy)
        self.executable, self._share, self._report = executable, share, report
        self._chance = random.Random(cluster.name)
        self._drift = Drift(n_checked=0, worst=0.0)
        self._earlier: tuple[torch.Tensor, ...] = ()
        """Outputs of the last checked call. The caller got copies, so memory that is returned twice does no harm."""
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call. If it is wrong, restore inputs and weights and raise ContractError or AccuracyError."""
        if self._drift.n_checked and self._chance.random() >= self._share:
            return self.executable(*inputs)
        return self._checked(inputs)

    def _checked(self, inputs: tuple[Any, ...]) -> Sequence[torch.Tensor]:
        given = _Given(self._judge.cluster, inputs)
        try:
            with _state_kept(self._judge):
                outputs = tuple(self.executable(*inputs))
        except BaseException as error:
            written = given.restore(self.executable) if given.has_changed else ""
            if written and isinstance(error, InputRefused):  # it would keep refusing, and writing
                raise self._judge.broken(written) from error
            raise
        if given.has_changed:
            if written := given.restore(self.executable):  # before eager reads it
                raise self._judge.broken(written)
            return outputs  # another thread wrote to the inputs or weights: there is nothing to compare with
        reference = Reference(self._judge.cluster, inputs)
        check_form(self._judge, outputs, reference.outputs, inputs)
        check_apart(self._judge, self._earlier, outputs)
        self._earlier = outputs
        error = check_values(self._judge, outputs, reference, "a live call, checked by shadow mode")
        self._note(error)
        return [output.clone() for output in outputs]

    def _note(self, error: float) -> None:
        with self._lock:
            drift = self._drift = Drift(self._drift.n_checked + 1, max(self._drift.worst, error))
        if self._report is not None:
            self._report(self._judge.backend, self._judge.cluster.name, drift)


@contextmanager
def _state_kept(judge: Judge) -> Generator[None]:
    """Restore state of this process that an executable changes, and raise ContractError.

    If other Python threads are running, only this thread's own state is compared.
    """
    with kept_state() as changed:
        yield
    if text := told_changes(changed, HERE, "the executable"):
        raise judge.broken(text)


class _Given:
    """Current inputs and weights of a cluster for one call.

    The copies of the weights live for one checked call only. Copies kept for longer would also detect writes in unchecked
    calls, and would undo the user's own writes to a weight in the meantime.
    """

    def __init__(self, cluster: Cluster, inputs: Sequence[Any]) -> None:
        weights = {name: value for name, value in cluster.constants.items() if value.layout is torch.strided}
        self._names = (*(f"its input {name}" for name in cluster.input_names), *(f"the weight {name}" for name in weights))
        self._snapshot, self._n_inputs = Snapshot((*inputs, *weights.values())), len(inputs)

    @property
    def has_changed(self) -> bool:
        """Return whether an input or a weight is not what it was, by whatever thread."""
        return bool(self._snapshot.written())

    def restore(self, executable: Callable[..., Any]) -> str:
        """Restore the old values of what the executable wrote to; return the first of these, "" for nothing.

        Another thread's writes, of a learner or into a shared buffer, stay.
        """
        written = self._snapshot.written_by(executable, self._n_inputs)
        self._snapshot.restore(written)
        return f"the executable wrote to {self._names[written[0]]}" if written else ""
