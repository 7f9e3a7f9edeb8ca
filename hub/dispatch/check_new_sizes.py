"""Checks an executable on the first real call of each new combination of symbolic sizes, until it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hub.plugin.graph import Cluster, ScalarSpec, hint
from hub.plugin.table import is_symbolic
from hub.process.heap import is_lack_of_memory
from hub.verification.compare import Judge, Snapshot, check_form, check_values
from hub.verification.reference import Reference

N_TRUSTED = 16
"""Consecutive combinations of sizes that must be right before an executable is trusted with all of them.

Errors with sizes affect a share of them: odd ones, those beyond some number, those that are rounded up. After 16 right
ones, an error that affects 17 % or more would have shown with a probability of 95 % (0.83 ** 16 = 0.05). Each costs one run
in eager, which is less than PyTorch takes to capture the program for other sizes.
"""


def has_sizes(cluster: Cluster) -> bool:
    """Return whether a cluster is called with different sizes."""
    return bool(_tensors(cluster) or _numbers(cluster))


def _tensors(cluster: Cluster) -> tuple[int, ...]:
    specs = enumerate(cluster.inputs)
    return tuple(at for at, spec in specs if not isinstance(spec, ScalarSpec) and any(map(is_symbolic, spec.shape)))


def _numbers(cluster: Cluster) -> tuple[int, ...]:
    specs = enumerate(cluster.inputs)
    return tuple(
        at for at, spec in specs if isinstance(spec, ScalarSpec) and spec.kind == "int" and is_symbolic(spec.value)
    )


class NewSizes:
    """An executable whose first call with each new combination of sizes is compared with eager. Thread-safe.

    The caller of such a call gets eager's outputs. Once `N_TRUSTED` combinations were right, `trusted` is called.
    """

    __slots__ = ("_accuracy", "_backend", "_cluster", "_executable", "_judge", "_known", "_numbers", "_tensors", "_trusted")

    def __init__(
        self,
        cluster: Cluster,
        backend: str,
        executable: Callable[..., Sequence[Any]],
        *,
        accuracy: float | None,
        trusted: Callable[[], None],
    ) -> None:
        self._cluster, self._backend, self._executable = cluster, backend, executable
        self._accuracy, self._trusted = accuracy, trusted
        self._tensors, self._numbers = _tensors(cluster), _numbers(cluster)
        self._known = self._captured()
        self._judge: Judge | None = None

    def _captured(self) -> set[tuple[Any, ...]]:
        """Return the sizes of the first real call, at which the executable was verified, if capture has seen it."""
        specs: Any = self._cluster.inputs
        try:
            shapes = (tuple(map(hint, specs[at].shape)) for at in self._tensors)
            return {(*shapes, *(hint(specs[at].value) for at in self._numbers))}
        except ValueError:
            return set()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run one call. Raises AccuracyError or ContractError if a new combination of sizes gives wrong results."""
        sizes = (*[tuple(inputs[at].shape) for at in self._tensors], *[inputs[at] for at in self._numbers])
        if sizes in self._known:
            return self._executable(*inputs)
        return self._checked(sizes, inputs)

    def _checked(self, sizes: tuple[Any, ...], inputs: tuple[Any, ...]) -> Sequence[Any]:
        judge = self._judge = self._judge or Judge.of(self._cluster, self._backend, self._accuracy)
        snapshot = Snapshot(inputs)
        outputs = tuple(self._executable(*inputs))
        if snapshot.written():
            if not (written := snapshot.written_by(self._executable, len(inputs))):
                return outputs  # another thread wrote to the inputs: there is nothing to compare with
            snapshot.restore(written)
            raise judge.broken(f"the executable wrote to its input {self._cluster.input_names[written[0]]}")
        try:
            reference = Reference(self._cluster, inputs)
        except Exception as error:
            if is_lack_of_memory(error):
                return outputs
            raise  # this call's own error: eager does not accept such inputs
        where = f"a live call with sizes that were not verified ({_listed(inputs)})"
        check_form(judge, outputs, reference.outputs, inputs)
        check_values(judge, outputs, reference, where)
        self._known.add(sizes)
        if len(self._known) >= N_TRUSTED:
            self.trust()
        return reference.outputs

    def trust(self) -> None:
        """Stop comparing."""
        self._trusted()


def _listed(inputs: Sequence[Any]) -> str:
    return ", ".join(str(list(value.shape)) if isinstance(value, torch.Tensor) else str(value) for value in inputs[:4])
