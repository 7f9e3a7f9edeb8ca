"""The compiled programs of one cluster: one for all sizes, or one for each combination, built when it first occurs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from hub.errors import CompileError, InputRefused, RunError
from hub.plugin.graph import Cluster, TensorSpec
from hub.toolkit.arguments import Sizes
from hub.toolkit.open_sizes import condition_of

MAX_SIZES = 16
"""Largest number of programs in one executable; a call with further sizes runs in eager."""
ProgramT = TypeVar("ProgramT")


class Programs(Generic[ProgramT]):
    """Programs of a cluster by sizes. Threads may look up programs concurrently."""

    def __init__(
        self,
        cluster: Cluster,
        found: dict[Sizes, ProgramT],
        build: Callable[[Sizes], ProgramT],
        *,
        general: ProgramT | None = None,
        condition: str = "",
    ) -> None:
        """Take what compiles further sizes, those that `general` does not serve; `build` may raise CompileError.

        `general` is correct for sizes for which `condition`, made by `hub.toolkit.open_sizes`, holds.
        """
        self._cluster, self._found, self._build = cluster, found, build
        self.general = general
        self._is_served = condition_of(condition or "False", len(cluster.inputs))
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[Sizes, ProgramT]]:
        """Iterate over the programs built for given sizes so far."""
        return iter(tuple(self._found.items()))

    def __len__(self) -> int:
        """Return the number of programs built for given sizes so far."""
        return len(self._found)

    def of(self, inputs: Sequence[Any]) -> ProgramT:
        """Return the program for a call's inputs.

        Raise RunError if the inputs do not fit the cluster, and InputRefused if there is no program and will be none.
        """
        sizes = tuple(tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in inputs)
        found = self._found.get(sizes)
        if found is not None:
            return found
        if problem := _misfit(self._cluster, sizes):
            raise RunError(problem)
        if self.general is not None and self._is_served(*inputs):
            return self.general
        return self._further(sizes)

    def _further(self, sizes: Sizes) -> ProgramT:
        if any(0 in size for size in sizes if isinstance(size, tuple)):
            raise InputRefused(f"sizes {list(sizes)}: no elements, over which torch-mlir may end the process")
        with self._lock:
            if (found := self._found.get(sizes)) is not None:
                return found
            if len(self._found) >= MAX_SIZES:
                raise InputRefused(f"sizes {list(sizes)} beyond the {MAX_SIZES} combinations that are compiled for")
            try:
                program = self._build(sizes)
            except CompileError as error:
                raise InputRefused(f"sizes {list(sizes)} cannot be compiled for: {error.message}") from error
            self._found[sizes] = program
            return program


def _misfit(cluster: Cluster, sizes: Sizes) -> str:
    """Return which input has a size that a cluster does not allow; "" if all fit."""
    if len(sizes) != len(cluster.inputs):
        return f"got {len(sizes)} inputs, {len(cluster.inputs)} expected"
    for name, spec, size in zip(cluster.input_names, cluster.inputs, sizes, strict=True):
        if isinstance(spec, TensorSpec) and not (isinstance(size, tuple) and _fits(size, spec)):
            return f"input {name}: got {size}, compiled for {spec}"
    return ""


def _fits(size: Sequence[int], spec: TensorSpec) -> bool:
    return len(size) == len(spec.shape) and all(
        not isinstance(wanted, int) or wanted == got for wanted, got in zip(spec.shape, size, strict=True)
    )
