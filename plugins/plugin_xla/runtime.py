"""Runs compiled programs, from any number of threads: with zero-copy inputs and outputs on the CPU and on GPUs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    Executable,
    HubError,
    InputRefused,
    RunError,
    TensorSpec,
)
from hub.toolkit.arguments import Sizes, with_weights
from hub.toolkit.programs import Programs
from plugin_xla.exchange import Exchange

NAME = "xla"
META = "xla.json"


@dataclass(frozen=True)
class Program:
    """A cluster compiled for given sizes."""

    loaded: Any
    """XLA's executable."""
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs followed by its weights."""
    text: str = ""
    """The StableHLO it was compiled from; "" after a load."""


class XlaExecutable(Executable):
    """A compiled cluster: one program per combination of sizes, the first from compilation, others made on first use."""

    def __init__(
        self,
        cluster: Cluster,
        device: Any,
        exchange: Exchange,
        programs: dict[Sizes, Program],
        build: Callable[[Sizes], Program],
    ) -> None:
        """Prepare weights as arguments, over PyTorch's memory or copied once. `build` compiles for further sizes."""
        self._cluster = cluster
        self._programs = Programs(cluster, programs, build)
        self._device, self._exchange = device, exchange
        constants = cluster.constants
        self._weights = [exchange.give(constants[name], device) for name in with_weights(cluster).weights]
        self._inputs = len(cluster.inputs)
        self._dtypes = tuple(spec.dtype if isinstance(spec, TensorSpec) else None for spec in cluster.inputs)

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        """Run one call. Raise InputRefused for too many size combinations and other dtypes, RunError for other failures."""
        try:
            program = self._programs.of(inputs)
            values = [self._argument(position, inputs) for position in program.fed]
            return [self._exchange.take(one) for one in program.loaded.execute(values)]
        except HubError as error:
            error.backend, error.cluster = NAME, self._cluster.name
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name) from error

    def save(self, folder: Path) -> None:
        """Write machine code for each combination of sizes so far, without weights."""
        listed: list[dict[str, Any]] = []
        for place, (sizes, program) in enumerate(self._programs):
            code = program.loaded.serialize()
            (folder / f"program{place}.xla").write_bytes(code)
            listed.append({"sizes": sizes, "fed": program.fed, "sha256": hashlib.sha256(code).hexdigest()})
        (folder / META).write_text(json.dumps({"programs": listed}))

    def dump(self, folder: Path) -> None:
        """Write the FX program and, for each combination of sizes, StableHLO (not after a load) and optimised HLO."""
        (folder / "cluster.py.txt").write_text(self._cluster.module.print_readable(print_output=False))
        for place, (_, program) in enumerate(self._programs):
            if program.text:
                (folder / f"program{place}.stablehlo.mlir").write_text(program.text)
            modules = program.loaded.hlo_modules()
            (folder / f"program{place}.hlo.txt").write_text("\n".join(module.to_string() for module in modules))

    def _argument(self, position: int, inputs: Sequence[Any]) -> Any:
        if position >= self._inputs:
            return self._weights[position - self._inputs]
        value = inputs[position]
        if value.dtype is not self._dtypes[position]:
            name = self._cluster.input_names[position]
            # Not an error: some of eager's kernels return other dtypes than fake tensors.
            raise InputRefused(f"input {name}: got {value.dtype}, compiled for {self._dtypes[position]}")
        return self._exchange.give(value, self._device)
