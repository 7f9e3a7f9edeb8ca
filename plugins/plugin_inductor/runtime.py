"""The executable: Inductor's innermost callable behind only the checks that the contract requires."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    CompileSettings,
    Executable,
    InputRefused,
    RunError,
    using_threads,
)
from plugin_inductor import stored, traced
from plugin_inductor.checked import has_checks
from plugin_inductor.compiler import Program
from plugin_inductor.torch_private import DisableAutocast, is_any_autocast_enabled, set_grad_enabled

_get_num_threads = torch.get_num_threads
_is_grad_enabled = torch.is_grad_enabled


class InductorExecutable(Executable):
    """One compiled cluster. It keeps the cluster, because the cluster's weights are the program's constants."""

    uses_openmp = True

    def __init__(self, cluster: Cluster, settings: CompileSettings, program: Program) -> None:
        self._call = program.call
        self._guards = program.guards
        self._read_sizes = program.guards.read
        self._has_checks = has_checks(cluster)
        self._held_sizes: tuple[int, ...] = ()
        self._threads = settings.threads
        self._cluster = cluster
        self._settings = settings
        self._program = program

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call; see `Executable`. Raise InputRefused for sizes that the program was not compiled for.

        Raise it, too, for an index out of range or a divisor of zero: eager raises its own error then.
        """
        if self._read_sizes is not None:
            self._check_sizes(self._read_sizes(inputs))
        if is_any_autocast_enabled() or _get_num_threads() != self._threads:
            return self._run_in_own_modes(inputs)
        if _is_grad_enabled():
            return self._run_without_gradients(inputs)
        return self._run(inputs)

    def save(self, folder: Path) -> None:
        """Write the program, its kernels as shared libraries, and the constants that are not simply weights.

        Raise CompileError if a kernel or a constant cannot be written.
        """
        stored.save(self._program, folder)

    def dump(self, folder: Path) -> None:
        """Write the received program, Inductor's graphs, intermediate forms and sources, and the guards."""
        traced.dump(self._cluster, self._settings, self._program, folder)

    def _check_sizes(self, sizes: tuple[int, ...]) -> None:
        if sizes == self._held_sizes:
            return
        if broken := self._guards.broken(sizes):
            raise InputRefused(f"guard {broken} does not hold", backend="inductor", cluster=self._cluster.name)
        self._held_sizes = sizes

    def _run(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        try:
            outputs = self._call(list(inputs))
        except Exception as error:  # noqa: BLE001 - generated code may raise anything
            outputs = self._run_restrided(inputs, error)
        if not self._has_checks:
            return outputs
        *outputs, alarm = outputs
        if alarm:
            text = "an index is out of range, or an integer is divided by zero"
            raise InputRefused(text, backend="inductor", cluster=self._cluster.name)
        return outputs

    def _run_without_gradients(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Run without gradients: autograd forbids library calls that write into outputs. Cheaper than `torch.no_grad`."""
        set_grad_enabled(False)
        try:
            return self._run(inputs)
        finally:
            set_grad_enabled(True)

    def _run_in_own_modes(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Run without the caller's autocast and thread count, which would change library calls inside the program."""
        with using_threads(self._threads), torch.no_grad(), DisableAutocast():
            return self._run(inputs)

    def _run_restrided(self, inputs: Sequence[Any], error: Exception) -> Sequence[torch.Tensor]:
        """Run again, with inputs copied into the compiled strides. Raise the error if all inputs had them."""
        fitting = [self._restrided(position, inputs) for position in range(len(inputs))]
        if all(one is other for one, other in zip(fitting, inputs, strict=True)):
            raise self._failure(error) from error
        try:
            return self._call(fitting)
        except Exception as second:  # noqa: BLE001 - generated code may raise anything
            raise self._failure(second) from error

    def _restrided(self, position: int, inputs: Sequence[Any]) -> Any:
        value, texts = inputs[position], self._program.strides[position]
        if not isinstance(value, torch.Tensor) or value.dim() != len(texts):
            return value
        wanted = self._guards.evaluate(texts, inputs)
        return value if value.stride() == wanted else copy_into_strides(value, wanted)

    def _failure(self, error: Exception) -> RunError:
        text = f"{type(error).__name__}: {error}"
        return RunError(text, backend="inductor", cluster=self._cluster.name, hint="the cluster runs in eager")


def copy_into_strides(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a copy with other strides. Elements along a dim of stride 0 are equal: the first one is copied."""
    copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    target, source = copy, value
    for dim, stride in enumerate(strides):
        if stride == 0 and value.shape[dim] > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)
    return copy
