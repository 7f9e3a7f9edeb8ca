"""The backend: selects nodes by its table, compiles through torch-mlir and IREE, and loads saved programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hub.plugin import (
    ACCEPTED,
    Backend,
    CompileError,
    CompileSettings,
    HubError,
    Support,
    compile_failure,
    refused,
)
from hub.toolkit.arguments import Sizes, captured_sizes
from hub.toolkit.open_sizes import is_open
from plugin_iree.compiler import Refused, compiled
from plugin_iree.device import device
from plugin_iree.lower import lower, lower_open
from plugin_iree.settings import Settings
from plugin_iree.sizes import least_size, needs_each
from plugin_iree.support import OPERATORS

if TYPE_CHECKING:
    from hub.plugin import Cluster
    from plugin_iree.lower import Lowered
    from plugin_iree.runtime import IreeExecutable, Program, Weights

NAME = "iree"
META = "iree.json"
_PROBE = """
func.func @main(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
  %one = torch.constant.int 1
  %sum = torch.aten.add.Tensor %x, %x, %one : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.int -> !torch.vtensor<[2],f32>
  return %sum : !torch.vtensor<[2],f32>
}
"""  # noqa: E501 - MLIR's


def create(settings: Settings | None = None) -> Iree:
    """Return the backend; called once per process for each distinct settings."""
    return Iree(settings or Settings())


class Iree(Backend):
    """IREE on the CPU, or on a GPU if its settings name one."""

    operators = OPERATORS

    def __init__(self, settings: Settings) -> None:
        """Store the settings; import nothing heavy."""
        self._settings = settings

    def probe(self) -> Support:
        """Compile and run one addition."""
        if self._settings.missing:
            return refused(self._settings.missing)
        try:
            got = self._sum()
        except Exception as error:  # noqa: BLE001 - IREE raises anything
            return refused(f"IREE cannot run: {type(error).__name__}: {error}")
        return ACCEPTED if got == [2.0, 4.0] else refused(f"1+1 and 2+2 gave {got}")

    def compile(self, cluster: Cluster, settings: CompileSettings) -> IreeExecutable:
        """Compile a cluster for all sizes if the result is correct; otherwise for the sizes of its capture.

        Raise CompileError with the compiler's reason.
        """
        from plugin_iree.runtime import weights_of

        try:
            self._require_target()
            weights = weights_of(cluster)
            if (general := self._general(cluster, settings, weights)) is not None:
                return self._executable(cluster, settings, weights, {}, general)
            sizes = captured_sizes(cluster)
            return self._executable(cluster, settings, weights, {sizes: self._built(cluster, settings, weights, sizes)})
        except HubError:
            raise
        except Exception as error:
            raise compile_failure(NAME, cluster, "IREE cannot compile it", _said(error)) from error

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> IreeExecutable:
        """Restore programs from the files of `save`; the weights are the cluster's."""
        from plugin_iree.runtime import weights_of

        try:
            self._require_target()
            weights = weights_of(cluster)
            listed = json.loads((folder / META).read_text())["programs"]
            found = [self._read(folder, place, entry, settings, weights) for place, entry in enumerate(listed)]
            general = next((program for sizes, program in found if sizes is None), None)
            programs = {sizes: program for sizes, program in found if sizes is not None}
            return self._executable(cluster, settings, weights, programs, general)
        except Exception as error:
            raise compile_failure(NAME, cluster, "IREE cannot load it", _said(error)) from error

    def _require_target(self) -> None:
        if self._settings.missing:
            raise CompileError(self._settings.missing, backend=NAME, hint="set iree.target to cpu, or install the driver")

    def _sum(self) -> list[float]:
        from plugin_iree.runtime import Weights, exchange, invoked, loaded

        where = device(self._settings.target, 1)
        program = loaded(compiled(_PROBE, self._settings), (0,), where, Weights(()))
        view, tensor = exchange(self._settings.target)
        (result,) = invoked(program, [view(torch.tensor([1.0, 2.0]), where)], 1)
        summed: Any = tensor(result, torch.float32, where)  # torch's stub does not type list elements
        return summed.tolist()

    def _device(self, settings: CompileSettings) -> Any:
        return device(self._settings.target, settings.threads)

    def _executable(
        self,
        cluster: Cluster,
        settings: CompileSettings,
        weights: Weights,
        programs: dict[Sizes, Program],
        general: Program | None = None,
    ) -> IreeExecutable:
        from plugin_iree.runtime import IreeExecutable

        build = partial(self._built, cluster, settings, weights)
        return IreeExecutable(cluster, self._settings, self._device(settings), weights, programs, build, general)

    def _general(self, cluster: Cluster, settings: CompileSettings, weights: Weights) -> Program | None:
        """Compile for all sizes; None if there is only one combination, or if each one needs a program of its own."""
        if not is_open(cluster) or any(map(needs_each, cluster.nodes)):
            return None
        least = max(map(least_size, cluster.nodes), default=0)
        with suppress(CompileError):  # a compiler error that the table does not predict costs speed, not the cluster
            return self._through(cluster, settings, weights, lambda: lower_open(cluster, least))
        return None

    def _built(self, cluster: Cluster, settings: CompileSettings, weights: Weights, sizes: Sizes) -> Program:
        return self._through(cluster, settings, weights, lambda: lower(cluster, sizes))

    def _through(
        self, cluster: Cluster, settings: CompileSettings, weights: Weights, lowering: Callable[[], Lowered]
    ) -> Program:
        """Compile one program. Raise CompileError, which names the compiler that refused it."""
        from plugin_iree.runtime import loaded

        try:
            lowered = lowering()
        except Exception as error:
            raise compile_failure(NAME, cluster, "torch-mlir cannot read it", _said(error)) from error
        try:
            code, where = compiled(lowered.text, self._settings), self._device(settings)
            return loaded(code, lowered.fed, where, weights, text=lowered.text, condition=lowered.condition)
        except Exception as error:
            raise compile_failure(NAME, cluster, "IREE cannot compile it", _said(error)) from error

    def _read(
        self, folder: Path, place: int, entry: Any, settings: CompileSettings, weights: Weights
    ) -> tuple[Sizes | None, Program]:
        from plugin_iree.runtime import loaded

        code = (folder / f"program{place}.vmfb").read_bytes()
        if hashlib.sha256(code).hexdigest() != entry["sha256"]:  # IREE runs any code that it loads
            raise ValueError(f"program{place}.vmfb is damaged")
        program = loaded(code, entry["fed"], self._device(settings), weights, condition=entry["condition"])
        sizes: list[list[int] | float] | None = entry["sizes"]
        if sizes is None:
            return None, program
        return tuple(tuple(size) if isinstance(size, list) else size for size in sizes), program


def _said(error: Exception) -> Exception | str:
    return str(error) if isinstance(error, Refused) else error  # the compiler's own message, whole
