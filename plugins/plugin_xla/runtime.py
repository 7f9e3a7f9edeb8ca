"""Runs compiled programs with zero copies both ways, from any number of threads."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax  # noqa: F401 - imported before jaxlib it keeps XLA from logging to stderr
import torch
from jaxlib import _jax
from torch.utils.dlpack import to_dlpack

from hub.backend import Executable
from hub.errors import CompileError, HubError, InputRefused, RunError
from hub.graph import Cluster, TensorSpec
from hub.lowering.arguments import Sizes, with_weights

NAME = "xla"
META = "xla.json"
MOST_SIZES = 16
"""Programs that one executable holds, one for each combination of sizes met; a call with further ones runs in eager."""


@dataclass(frozen=True)
class Program:
    """A cluster compiled for given sizes."""

    loaded: Any
    """XLA's executable."""
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs and, behind these, its weights."""
    text: str = ""
    """The StableHLO it was compiled from; "" after a load."""


class XlaExecutable(Executable):
    """A compiled cluster: one program for each combination of sizes, the first made while compiling, others when met."""

    def __init__(
        self, cluster: Cluster, client: Any, programs: dict[Sizes, Program], build: Callable[[Sizes], Program]
    ) -> None:
        """`build` compiles for further sizes. Weights become arguments that stay where PyTorch has them."""
        self._cluster, self._programs, self._build = cluster, programs, build
        self._device = client.local_devices()[0]
        self._lock = threading.Lock()
        constants = cluster.constants
        self._weights = [array(constants[name], self._device) for name in with_weights(cluster).weights]
        self._inputs = len(cluster.inputs)
        self._dtypes = tuple(spec.dtype if isinstance(spec, TensorSpec) else None for spec in cluster.inputs)

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        """Runs one call. Raises InputRefused for sizes beyond `MOST_SIZES`, RunError for anything else."""
        try:
            program = self._program(inputs)
            values = [self._argument(position, inputs) for position in program.fed]
            return [tensor(one) for one in program.loaded.execute(values)]
        except HubError as error:
            error.backend, error.cluster = NAME, self._cluster.name
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name) from error

    def save(self, folder: Path) -> None:
        """Writes machine code for each combination of sizes met so far. Weights are not in it."""
        listed: list[dict[str, Any]] = []
        for place, (sizes, program) in enumerate(tuple(self._programs.items())):
            code = program.loaded.serialize()
            (folder / f"program{place}.xla").write_bytes(code)
            listed.append({"sizes": sizes, "fed": program.fed, "sha256": hashlib.sha256(code).hexdigest()})
        (folder / META).write_text(json.dumps({"programs": listed}))

    def dump(self, folder: Path) -> None:
        """Writes the FX program and, for each combination of sizes, StableHLO (not after a load) and optimised HLO."""
        (folder / "cluster.py.txt").write_text(self._cluster.module.print_readable(print_output=False))
        for place, program in enumerate(tuple(self._programs.values())):
            if program.text:
                (folder / f"program{place}.stablehlo.mlir").write_text(program.text)
            modules = program.loaded.hlo_modules()
            (folder / f"program{place}.hlo.txt").write_text("\n".join(module.to_string() for module in modules))

    def _program(self, inputs: Sequence[Any]) -> Program:
        sizes = tuple(tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in inputs)
        found = self._programs.get(sizes)
        return self._further(sizes) if found is None else found

    def _further(self, sizes: Sizes) -> Program:
        if problem := self._misfit(sizes):
            raise RunError(problem)
        if any(0 in size for size in sizes if isinstance(size, tuple)):
            raise InputRefused(f"sizes {list(sizes)}: no elements, over which torch-mlir may end the process")
        with self._lock:
            if (found := self._programs.get(sizes)) is not None:
                return found
            if len(self._programs) >= MOST_SIZES:
                raise InputRefused(f"sizes {list(sizes)} beyond the {MOST_SIZES} combinations that are compiled for")
            try:
                program = self._build(sizes)
            except CompileError as error:
                raise InputRefused(f"sizes {list(sizes)} cannot be compiled for: {error.message}") from error
            self._programs[sizes] = program
            return program

    def _misfit(self, sizes: Sizes) -> str | None:
        """Says which input has a size that the cluster does not allow."""
        if len(sizes) != self._inputs:
            return f"got {len(sizes)} inputs, {self._inputs} wanted"
        for name, spec, size in zip(self._cluster.input_names, self._cluster.inputs, sizes, strict=True):
            if not isinstance(spec, TensorSpec):
                continue
            wanted = [one if isinstance(one, int) else None for one in spec.shape]
            fits = isinstance(size, tuple) and len(size) == len(wanted)
            if not fits or any(one not in (None, got) for one, got in zip(wanted, size, strict=True)):  # pyright: ignore
                return f"input {name}: got {size}, compiled for {spec}"
        return None

    def _argument(self, position: int, inputs: Sequence[Any]) -> Any:
        if position >= self._inputs:
            return self._weights[position - self._inputs]
        value = inputs[position]
        if value.dtype is not self._dtypes[position]:
            name = self._cluster.input_names[position]
            raise RunError(f"input {name}: got {value.dtype}, compiled for {self._dtypes[position]}")
        return array(value, self._device)


def array(value: torch.Tensor, device: Any) -> Any:
    """Gives XLA's array over a tensor's own memory, or over that of a contiguous copy; XLA copies where alignment asks."""
    if not value.is_contiguous() or value.is_neg() or value.device.type != "cpu":
        value = value.cpu().resolve_neg().contiguous()
    return _jax.dlpack_managed_tensor_to_buffer(to_dlpack(value.detach()), device, None)


def tensor(value: Any) -> torch.Tensor:
    """Gives a tensor over the memory of XLA's array, which it keeps alive."""
    return torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(value))
