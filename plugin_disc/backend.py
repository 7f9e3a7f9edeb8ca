"""The DISC backend."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import fx

from hub.plugin import (
    Backend,
    Cluster,
    CompileError,
    CompileSettings,
    Executable,
    HubError,
    Support,
    operator_name,
    refused,
    run_addition,
)
from hub.toolkit.operators import PLACES_IN_WINDOWS

from .compiler import NAME
from .external import CANNOT_RUN, PROGRAM, compile_program
from .mhlo import program
from .runtime import build, restore
from .settings import Settings
from .support import OPERATORS


class Disc(Backend):
    """The backend that compiles each cluster to its own machine code."""

    def __init__(self, own: Settings) -> None:
        self._own = own

    def probe(self) -> Support:
        """Compile and run one addition; the reason explains the use of BladeDISC's compiler, if it is installed."""
        found = run_addition(self)
        return Support(accepted=True, reason=self._compilers()) if found.accepted else found

    def _compilers(self) -> str:
        """Return how BladeDISC's compiler is used, for people; "" if there is only our own."""
        if self._own.compiler:
            return f"clusters are compiled by {self._own.compiler} too, for the debug folder; {CANNOT_RUN}"
        found = shutil.which(PROGRAM)
        return f"{found} is not called: HUB_DISC_COMPILER does not name it; and {CANNOT_RUN}" if found else ""

    def supports(self, node: fx.Node) -> Support:
        """Look the node up in the operator table, unless the user denies it to DISC."""
        if denial := self._own.denial(node):
            return refused(denial)
        return OPERATORS.supports(node)

    def keeps_order(self, node: fx.Node) -> bool:
        """Return True for the indices of a maximum in a window: the first one, or that of the last NaN, as in eager."""
        return operator_name(node) in PLACES_IN_WINDOWS

    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Lower, fuse, and compile by LLVM; before that by BladeDISC's compiler, if set. `effort` has no effect."""
        try:
            if refusal := self._own.refusal():
                raise CompileError(refusal, hint="leave it out, or name BladeDISC's compiler in `compiler`")
            foreign = compile_program(program(cluster), self._own) if self._own.compiler else None
            level = self._own.cpu_fast_math_level
            kept_bytes, log_dir = self._kept_bytes(), self._own.log_dir
            return build(cluster, settings, level=level, foreign=foreign, kept_bytes=kept_bytes, log_dir=log_dir)
        except HubError as error:
            error.backend, error.cluster = NAME, cluster.name
            raise

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:  # noqa: ARG002 - in the code
        """Load saved machine code, without compiling anything again."""
        return restore(folder, cluster, kept_bytes=self._kept_bytes())

    def _kept_bytes(self) -> int:
        return self._own.kept_mb << 20


def create(own: Settings | None = None) -> Disc:
    """Return the backend; without settings, those of TorchBlade's variables apply."""
    return Disc(Settings() if own is None else own)
